//! Opens sockets: names are resolved, every address is tried, the next one first next time.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::net::{TcpStream, lookup_host};

use super::Connect;
use crate::clock;
use crate::config::Target;

/// Addresses of a name, as of when they were looked up.
#[derive(Debug)]
struct Resolved {
    addresses: Arc<[SocketAddr]>,
    at: Instant,
    turn: usize,
}

/// Connects over TCP.
#[derive(Debug)]
pub struct Tcp {
    resolved: Mutex<HashMap<(String, u16), Resolved>>,
    resolve_every: Duration,
}

impl Tcp {
    pub fn new(resolve_every: Duration) -> Self {
        Self { resolved: Mutex::new(HashMap::new()), resolve_every }
    }

    /// The addresses of the target and which of them to try first.
    async fn addresses(&self, target: &Target) -> io::Result<(Arc<[SocketAddr]>, usize)> {
        let key = (target.host.clone(), target.port);
        let now = clock::now();
        if let Some(it) = self.resolved().get_mut(&key)
            && now.saturating_duration_since(it.at) < self.resolve_every
        {
            it.turn = it.turn.wrapping_add(1);
            return Ok((Arc::clone(&it.addresses), it.turn));
        }
        let found: Arc<[SocketAddr]> =
            lookup_host((target.host.as_str(), target.port)).await?.collect();
        if found.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
        }
        let resolved = Resolved { addresses: Arc::clone(&found), at: now, turn: 0 };
        self.resolved().insert(key, resolved);
        Ok((found, 0))
    }

    fn resolved(&self) -> std::sync::MutexGuard<'_, HashMap<(String, u16), Resolved>> {
        self.resolved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn open(&self, target: &Target) -> io::Result<TcpStream> {
        if let Ok(ip) = target.host.parse::<IpAddr>() {
            return TcpStream::connect((ip, target.port)).await;
        }
        let (addresses, turn) = self.addresses(target).await?;
        let mut last = None;
        for step in 0..addresses.len() {
            match TcpStream::connect(addresses[turn.wrapping_add(step) % addresses.len()]).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = Some(error),
            }
        }
        // None of them answers: what was looked up may be out of date.
        self.resolved().remove(&(target.host.clone(), target.port));
        Err(last.expect("there is at least one address"))
    }
}

impl Connect for Tcp {
    type Io = TcpStream;

    async fn connect(&self, target: &Target) -> io::Result<TcpStream> {
        let stream = self.open(target).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}
