//! What an engine is told at start: checked once, complete, no value that means "default".

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use kernels::cuda::Card;

use crate::config::judge::{Judge, memory, mode};
use crate::config::raw::Raw;
use crate::config::words::{
    activations, address, body_size, device, load_format, log_filter, log_format, names, origins,
    quantization, rule, seconds,
};

pub mod calibration;
mod judge;
pub mod raw;
mod show;
pub mod size;
mod words;

/// Stands for pages of every origin.
pub const ANY_ORIGIN: &str = "*";

/// Time for a client to begin a request, and for one to send its head.
const HEAD_MAX: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// A path, or the id of a repository in `hub_cache`; so is the draft head's.
    pub model: PathBuf,
    pub load_format: LoadFormat,
    pub quantization: Quantization,
    pub hub_cache: PathBuf,
    pub mode: Mode,
    pub device: Device,
    pub activations: Activations,
    pub memory: Memory,
    /// Where engines on one card find each other's weights.
    pub share_weights: Option<PathBuf>,
    /// Names under which the model is served; empty to take the name it gives itself.
    pub names: Vec<String>,
    /// Longest prompt and answer together; `None` for what the model was made for.
    pub context_max: Option<u32>,
    pub running_max: u32,
    pub waiting_max: u32,
    pub rows_max: u32,
    /// Prompt tokens in a step in which others decode.
    pub prompt_rows_max: u32,
    pub serve: Serve,
    pub log: Log,
}

/// How tokens are made.
#[derive(Clone, Debug, PartialEq)]
pub enum Mode {
    Baseline,
    Eagle3 {
        head: PathBuf,
        /// Layers to capture; `None` for what the head says.
        layers: Option<Vec<usize>>,
        depth: DepthRule,
        /// Probability that the draft at each place is accepted, instead of comparing.
        simulated: Option<Vec<f64>>,
    },
    Ngram {
        depth: DepthRule,
    },
}

impl Mode {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Eagle3 { .. } => "eagle3",
            Self::Ngram { .. } => "ngram",
        }
    }
}

/// How many drafts a sequence gets.
#[derive(Clone, Debug, PartialEq)]
pub struct DepthRule {
    pub max: u32,
    pub until: Until,
}

/// Up to how much load drafts are made.
#[derive(Clone, Debug, PartialEq)]
pub enum Until {
    Always,
    /// While at most this many requests are decoding.
    Decoding(u32),
    /// As many as the calibration says: (decoding requests at most, drafts).
    Table(Vec<(u32, u32)>),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Device {
    /// The cores to use; empty for all.
    Cpu { cores: Vec<usize> },
    /// One GPU, or several that compute together.
    Cuda { cards: Vec<Card> },
}

impl Device {
    fn is_gpu(&self) -> bool {
        matches!(self, Self::Cuda { .. })
    }
}

/// Where weights come from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LoadFormat {
    /// From the files.
    Auto,
    /// By chance, in the sizes that config.json names: for speed tests.
    Dummy,
}

/// What becomes of weights that are laid out for a GPU. The name is the flag's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Quantization {
    /// bf16.
    None,
    /// e4m3 with a scale for each output.
    Fp8,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activations {
    F32,
    Int8,
}

/// Memory for keys and values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Memory {
    Bytes(u64),
    /// Share of what is available when the weights are loaded.
    Fraction(f64),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Serve {
    pub listen: SocketAddr,
    pub unknown_fields: UnknownFields,
    /// Origins of pages in browsers that may ask and read: none, some, or [`ANY_ORIGIN`].
    pub allowed_origins: Vec<String>,
    pub body_max: usize,
    pub connections_max: usize,
    /// Time for a client to begin a request, and for one to send its head.
    pub head_max: Duration,
    /// Longest time a request may take.
    pub request_max: Duration,
    /// Time for running requests to end once asked to stop.
    pub drain_max: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum UnknownFields {
    Ignore,
    Reject,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Log {
    pub json: bool,
    pub filter: String,
}

/// One mistake of the operator.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigError {
    pub flag: &'static str,
    pub detail: String,
}

/// Every mistake in one start.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for error in &self.0 {
            writeln!(f, "--{}: {}", error.flag, error.detail)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

impl Config {
    pub fn new(raw: Raw) -> Result<Self, ConfigErrors> {
        let mut judge = Judge::default();
        let model = judge.required("model", raw.model.clone());
        let mode = mode(&mut judge, &raw);
        let device = judge.parsed("device", raw.device, "cpu", device);
        let device = judge.together(device, raw.tensor_parallel_size);
        let load_format = judge.parsed("load-format", raw.load_format, "auto", load_format);
        let quantization = judge.parsed("quantization", raw.quantization, "none", quantization);
        let share_weights = raw.share_weights.map(|it| PathBuf::from(it.0));
        judge.suits(&device, load_format, quantization, share_weights.is_some());
        judge.simulated(&mode, load_format);
        let (running, rows) = if device.is_gpu() { (256, 2048) } else { (32, 256) };
        let running_max = judge.whole("running-max", raw.running_max, running, 1..=4096);
        let rows_max = judge.whole("rows-max", raw.rows_max, rows, 1..=65_536);
        if rows_max < running_max {
            let detail = format!(
                "{rows_max} is less than running-max {running_max}: a step reads \
                at least one token of each running request"
            );
            judge.error("rows-max", detail);
        }
        let share = if device.is_gpu() { "0.9" } else { "0.25" };
        let connections_max =
            judge.whole("connections-max", raw.connections_max, 1024, 1..=1_000_000);
        let config = Self {
            model: model.into(),
            load_format,
            quantization,
            hub_cache: raw.hub_cache.map_or_else(raw::hub_cache, |it| it.0.into()),
            mode,
            device,
            activations: judge.parsed("activations", raw.activations, "int8", activations),
            memory: memory(&mut judge, raw.memory, raw.memory_fraction, share),
            share_weights,
            names: judge.parsed("served-model-name", raw.served_model_name, "", names),
            context_max: raw
                .context_max
                .map(|word| judge.whole("context-max", Some(word), 1, 2..=10_000_000)),
            running_max,
            waiting_max: judge.whole("waiting-max", raw.waiting_max, 256, 0..=65_536),
            rows_max,
            prompt_rows_max: judge.whole(
                "prompt-rows-max",
                raw.prompt_rows_max,
                rows_max.div_ceil(4),
                1..=rows_max,
            ),
            serve: Serve {
                listen: judge.parsed("listen", raw.listen, "127.0.0.1:8101", address),
                unknown_fields: judge.parsed("unknown-fields", raw.unknown_fields, "ignore", rule),
                allowed_origins: judge.parsed("allowed-origins", raw.allowed_origins, "", origins),
                body_max: judge.parsed("body-max", raw.body_max, "16MiB", body_size),
                connections_max: usize::try_from(connections_max).expect("fits the bound"),
                head_max: HEAD_MAX,
                request_max: seconds(judge.whole(
                    "request-seconds-max",
                    raw.request_seconds_max,
                    3600,
                    1..=86_400,
                )),
                drain_max: seconds(judge.whole("drain-seconds", raw.drain_seconds, 30, 0..=86_400)),
            },
            log: Log {
                json: judge.parsed("log-format", raw.log_format, "text", log_format),
                filter: judge.parsed("log", raw.log, "info", log_filter),
            },
        };
        if judge.errors.is_empty() { Ok(config) } else { Err(ConfigErrors(judge.errors)) }
    }
}

#[cfg(test)]
mod tests;
