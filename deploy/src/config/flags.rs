//! The command line as written.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Puts a pair of engines and the router up on this machine, and looks after it.
#[derive(Clone, Debug, Parser)]
#[command(name = "crossover", version)]
pub struct Line {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Start two engines and the router, and stop them together on Ctrl-C
    Up(Box<Up>),
    /// Bring a model to this machine, and stop
    Fetch(Fetch),
    /// Say what this machine has, and what is missing for `up`
    Doctor(Doctor),
    /// Ask a running router what goes where
    Status(Status),
    /// Configurations of the router and the engines
    #[command(subcommand)]
    Config(Settings),
    /// The systemd units
    #[command(subcommand)]
    Units(Units),
    /// Run a program that ends when this one's parent does
    #[command(hide = true)]
    RunChild(RunChild),
}

/// Where a model comes from and where it is kept.
#[derive(Args, Clone, Debug)]
pub struct Model {
    /// The model: `default`, a GGUF file, a directory of safetensors, or a Hugging Face repository
    /// as `owner/name[@revision][:file.gguf]`
    #[arg(long, value_name = "MODEL", default_value = "default")]
    pub model: String,
    /// Directory to keep fetched models in [default: crossover/models in the user's cache]
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
}

#[derive(Args, Clone, Debug)]
pub struct Up {
    #[command(flatten)]
    pub model: Model,
    /// Directory of the EAGLE-3 draft head [default: the shipped head of the default model]
    #[arg(long, value_name = "DIR", conflicts_with = "ngram")]
    pub head: Option<PathBuf>,
    /// Speculate by repeating what the text has said before; needs no draft head
    #[arg(long)]
    pub ngram: bool,
    /// Drafts a request may get in one step, 0 to 16 [default: the engine's]
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(0..=16))]
    pub draft_max: Option<u32>,
    /// Draft only while at most this many requests are decoding [default: no limit]
    #[arg(long, value_name = "N")]
    pub draft_until: Option<u32>,
    /// Activations on the CPU: int8 is fast, f32 is the exact reference
    #[arg(long, value_enum, default_value_t = Activations::Int8)]
    pub activations: Activations,
    /// Weights on GPUs: none is bf16, fp8 halves them; both instances get the same
    #[arg(long, value_enum, value_name = "KIND", default_value_t = Quantization::None)]
    pub quantization: Quantization,
    /// More requests in flight than this go to the throughput instance
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub high: u32,
    /// At this many requests in flight or fewer, new ones go to the speculative instance again
    /// [default: three quarters of --high]
    #[arg(long, value_name = "N")]
    pub low: Option<u32>,
    /// Where the speculative instance computes, such as cpu:0-3, cuda:0 or cuda:0,1 [default: half
    /// the cores]
    #[arg(long, value_name = "DEVICE")]
    pub device_speculative: Option<String>,
    /// Where the throughput instance computes [default: the other half]
    #[arg(long, value_name = "DEVICE")]
    pub device_throughput: Option<String>,
    #[command(flatten)]
    pub addresses: Addresses,
    /// Seconds to wait until all three are ready
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub wait_max: u32,
    /// Directory for logs and the router's configuration [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
}

/// Who listens where.
#[derive(Args, Clone, Copy, Debug)]
pub struct Addresses {
    /// Address of the endpoint for clients
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8000")]
    pub listen: SocketAddr,
    /// Address of the router's metrics and readiness
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8001")]
    pub admin: SocketAddr,
    /// Address of the speculative engine
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8101")]
    pub speculative: SocketAddr,
    /// Address of the throughput engine
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8102")]
    pub throughput: SocketAddr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Activations {
    Int8,
    F32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Quantization {
    None,
    Fp8,
}

#[derive(Args, Clone, Debug)]
pub struct Fetch {
    #[command(flatten)]
    pub model: Model,
}

#[derive(Args, Clone, Debug)]
pub struct Doctor {
    #[command(flatten)]
    pub model: Model,
    #[command(flatten)]
    pub addresses: Addresses,
}

#[derive(Args, Clone, Debug)]
pub struct Status {
    /// Address of the router's admin port
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8001")]
    pub admin: SocketAddr,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Debug, Subcommand)]
pub enum Settings {
    /// Say what is wrong with files, as the programs that would run them see it
    Check {
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Print a configuration with every common key explained
    Example { which: Example },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Example {
    Router,
    Speculative,
    Throughput,
}

#[derive(Clone, Debug, Subcommand)]
pub enum Units {
    /// Write units, users and configurations; what is in /etc/crossover already is kept
    Install(Install),
}

#[derive(Args, Clone, Debug)]
pub struct Install {
    /// Directory to write below
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub root: PathBuf,
    /// Directory of the three programs [default: this one's]
    #[arg(long, value_name = "DIR")]
    pub programs: Option<PathBuf>,
    /// Say what would be written, and write nothing
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Args, Clone, Debug)]
pub struct RunChild {
    /// The process that must be this one's parent
    #[arg(long)]
    pub parent: u32,
    #[arg(trailing_var_arg = true, required = true, allow_hyphen_values = true)]
    pub command: Vec<std::ffi::OsString>,
}

impl Addresses {
    /// Every address with the flag that sets it.
    pub fn all(&self) -> [(&'static str, SocketAddr); 4] {
        [
            ("listen", self.listen),
            ("admin", self.admin),
            ("speculative", self.speculative),
            ("throughput", self.throughput),
        ]
    }
}

impl Activations {
    /// The engine's word for it.
    pub fn label(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::F32 => "f32",
        }
    }
}
