//! Takes a new configuration while running: on SIGHUP, or when a watched file changes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::access::AccessLog;
use crate::config::check;
use crate::config::raw::Args;
use crate::config::{Config, ConfigErrors};
use crate::fleet::Fleet;
use crate::probe::identity;
use crate::upstream::tcp::Tcp;

/// How often watched files are looked at.
pub const WATCH_EVERY: Duration = Duration::from_secs(1);

/// Reads the configuration again.
#[derive(Debug)]
pub struct Reloader {
    pub args: Args,
    pub fleet: Arc<Fleet>,
    pub access: Arc<AccessLog>,
    /// Asks endpoints what they are.
    pub connector: Arc<Tcp>,
}

/// What a file looks like from outside.
type Mark = (PathBuf, Option<(SystemTime, u64)>);

impl Reloader {
    /// Takes the new configuration if all of it is right; the old one stays otherwise. Running
    /// requests and their counts go on either way.
    pub async fn reload(&self) -> bool {
        self.access.reopen();
        match self.load().await {
            Ok(config) => {
                for name in self.fleet.live().config.needs_restart(&config) {
                    tracing::warn!(name, "differs, but is only read at start");
                }
                config.tell_doubts();
                self.fleet.reload(config);
                self.fleet.metrics.reloaded("ok");
                tracing::info!("configuration reloaded");
                true
            }
            Err(errors) => {
                for error in &errors.0 {
                    tracing::error!(field = error.field, why = error.why, "bad configuration");
                }
                tracing::error!("the old configuration stays");
                self.fleet.metrics.reloaded("refused");
                false
            }
        }
    }

    async fn load(&self) -> Result<Config, ConfigErrors> {
        let config = check::load(&self.args)?;
        let errors = identity::stale(&config, &*self.connector).await;
        if errors.is_empty() { Ok(config) } else { Err(ConfigErrors(errors)) }
    }

    /// The state of all files that the configuration came from.
    pub fn marks(&self) -> Vec<Mark> {
        let files = self.fleet.live().config.files.clone();
        let mark = |path: &PathBuf| {
            let found = std::fs::metadata(path).ok()?;
            Some((found.modified().ok()?, found.len()))
        };
        files.into_iter().map(|path| (path.clone(), mark(&path))).collect()
    }

    /// Reloads whenever a file has changed and stayed the same for one look; never returns.
    pub async fn watch(&self) {
        let mut loaded = self.marks();
        let mut seen = loaded.clone();
        loop {
            tokio::time::sleep(WATCH_EVERY).await;
            if !self.fleet.live().config.watch {
                continue;
            }
            let now = self.marks();
            if now != loaded && now == seen {
                self.reload().await;
                // What a refused file names is not known; look at the same files again.
                loaded = self.marks();
            }
            seen = now;
        }
    }
}
