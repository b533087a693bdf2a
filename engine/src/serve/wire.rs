//! The load report as sent. ARCHITECTURE.md gives its form; the router reads `server_load`.

use serde::Serialize;

use crate::batch::load::EngineLoad;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LoadReport {
    /// Requests within the engine, running or waiting.
    pub server_load: u32,
    pub running: u32,
    pub waiting: u32,
    /// Share of the pages in use, 0 to 1.
    pub kv_usage: f64,
    pub mode: &'static str,
    pub model: String,
    /// Drafts a request may get in a step now.
    pub draft_depth: u32,
    pub draining: bool,
}

impl LoadReport {
    pub fn new(load: &EngineLoad, mode: &'static str, model: &str, draining: bool) -> Self {
        Self {
            server_load: load.running + load.waiting,
            running: load.running,
            waiting: load.waiting,
            kv_usage: f64::from(load.pages_used) / f64::from(load.pages_total.max(1)),
            mode,
            model: model.to_owned(),
            draft_depth: load.depth,
            draining,
        }
    }
}
