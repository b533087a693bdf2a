//! The access log: one JSON line for each request, written by a thread of its own.

use std::fs::OpenOptions;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::metrics::Metrics;
use crate::spans::{self, Spans};
use crate::trace::Trace;

const LINES_MAX: usize = 8192;

/// Where lines go. Without a path nothing is written; without spans as well no line is made.
#[derive(Debug)]
pub struct AccessLog {
    sender: Option<SyncSender<String>>,
    spans: Option<Spans>,
    writer: Option<JoinHandle<()>>,
    reopen: Arc<AtomicBool>,
    metrics: Arc<Metrics>,
}

impl AccessLog {
    /// Writes to `path`, or to the standard output for `-`. Errors when it cannot be opened.
    pub fn open(
        path: Option<&Path>,
        spans: Option<Spans>,
        metrics: Arc<Metrics>,
    ) -> io::Result<Arc<Self>> {
        let reopen = Arc::new(AtomicBool::new(false));
        let Some(path) = path else {
            return Ok(Arc::new(Self { sender: None, spans, writer: None, reopen, metrics }));
        };
        let output = open(path)?;
        let (sender, receiver) = sync_channel(LINES_MAX);
        let (path, again) = (path.to_owned(), Arc::clone(&reopen));
        let counts = Arc::clone(&metrics);
        let thread = thread::Builder::new().name("access-log".to_owned());
        let writer = thread.spawn(move || write(&receiver, output, &path, &again, &counts))?;
        let (sender, writer) = (Some(sender), Some(writer));
        Ok(Arc::new(Self { sender, spans, writer, reopen, metrics }))
    }

    pub fn is_on(&self) -> bool {
        self.sender.is_some() || self.spans.is_some()
    }

    /// Requests become spans of traces.
    pub fn has_spans(&self) -> bool {
        self.spans.is_some()
    }

    /// Opens the file again, after somebody moved it away.
    pub fn reopen(&self) {
        self.reopen.store(true, Ordering::Relaxed);
    }

    fn send(&self, line: String) {
        if let Some(sender) = &self.sender
            && sender.try_send(line).is_err()
        {
            self.metrics.access_log_dropped.inc();
        }
    }
}

impl Drop for AccessLog {
    /// What has been said is written before the process ends.
    fn drop(&mut self) {
        self.sender = None;
        if let Some(writer) = self.writer.take() {
            drop(writer.join());
        }
    }
}

fn open(path: &Path) -> io::Result<Box<dyn Write + Send>> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdout()));
    }
    Ok(Box::new(OpenOptions::new().create(true).append(true).open(path)?))
}

fn write(
    lines: &Receiver<String>,
    output: Box<dyn Write + Send>,
    path: &Path,
    again: &AtomicBool,
    metrics: &Metrics,
) {
    let mut output = BufWriter::new(output);
    loop {
        if again.swap(false, Ordering::Relaxed)
            && let Ok(reopened) = open(path)
        {
            finish(&mut output, metrics);
            output = BufWriter::new(reopened);
        }
        match lines.recv_timeout(Duration::from_millis(200)) {
            // A line that cannot be written is lost; requests go on.
            Ok(line) => {
                if output.write_all(line.as_bytes()).is_err() {
                    metrics.access_log_dropped.inc();
                }
            }
            // What a full disk does not take now stays for the next time.
            Err(RecvTimeoutError::Timeout) => drop(output.flush()),
            Err(RecvTimeoutError::Disconnected) => return finish(&mut output, metrics),
        }
    }
}

/// Writes what is left to write; what cannot be written is counted.
fn finish(output: &mut BufWriter<Box<dyn Write + Send>>, metrics: &Metrics) {
    if output.flush().is_err() {
        let lines = output.buffer().iter().filter(|it| **it == b'\n').count();
        metrics.access_log_dropped.inc_by(u64::try_from(lines).unwrap_or(u64::MAX));
    }
}

/// One request's line; written when it is dropped.
#[derive(Debug)]
pub struct Line {
    log: Arc<AccessLog>,
    pub at: SystemTime,
    pub peer: String,
    pub method: String,
    pub path: String,
    pub request_id: String,
    pub trace: Option<Trace>,
    pub endpoint: Option<Arc<str>>,
    pub reason: Option<&'static str>,
    pub outcome: &'static str,
    pub status: Option<u16>,
    pub attempts: u32,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub first_byte: Option<Duration>,
    pub elapsed: Duration,
}

impl Line {
    pub fn new(log: Arc<AccessLog>, at: SystemTime) -> Self {
        Self {
            log,
            at,
            peer: String::new(),
            method: String::new(),
            path: String::new(),
            request_id: String::new(),
            trace: None,
            endpoint: None,
            reason: None,
            outcome: "client_gone",
            status: None,
            attempts: 0,
            bytes_in: 0,
            bytes_out: 0,
            first_byte: None,
            elapsed: Duration::ZERO,
        }
    }
}

#[derive(Serialize)]
struct Written<'a> {
    at: f64,
    peer: &'a str,
    method: &'a str,
    path: &'a str,
    request_id: &'a str,
    endpoint: Option<&'a str>,
    reason: Option<&'a str>,
    outcome: &'a str,
    status: Option<u16>,
    attempts: u32,
    bytes_in: u64,
    bytes_out: u64,
    first_byte_ms: Option<f64>,
    elapsed_ms: f64,
}

impl Drop for Line {
    fn drop(&mut self) {
        if let (Some(spans), Some(trace)) = (&self.log.spans, self.trace)
            && trace.is_sampled()
        {
            spans.send(spans::span(self, &trace));
        }
        if self.log.sender.is_none() {
            return;
        }
        let millis = |it: Duration| (it.as_secs_f64() * 1e6).round() / 1e3;
        let since_epoch = self.at.duration_since(UNIX_EPOCH).unwrap_or_default();
        let written = Written {
            at: millis(since_epoch) / 1e3,
            peer: &self.peer,
            method: &self.method,
            path: &self.path,
            request_id: &self.request_id,
            endpoint: self.endpoint.as_deref(),
            reason: self.reason,
            outcome: self.outcome,
            status: self.status,
            attempts: self.attempts,
            bytes_in: self.bytes_in,
            bytes_out: self.bytes_out,
            first_byte_ms: self.first_byte.map(millis),
            elapsed_ms: millis(self.elapsed),
        };
        let mut text = serde_json::to_string(&written).expect("plain fields serialise");
        text.push('\n');
        self.log.send(text);
    }
}

#[cfg(test)]
mod tests;
