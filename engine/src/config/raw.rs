//! What the operator wrote: flags and file as text. Nothing is looked up or judged here.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{Args, Parser, Subcommand};
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

use crate::config::ConfigError;

/// Serves one replica of a language model over an OpenAI-compatible HTTP interface.
#[derive(Debug, Parser)]
#[command(name = "crossover-engine", version, args_conflicts_with_subcommands = true)]
pub struct Line {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub raw: Raw,
    /// TOML file with the same keys as the flags; a flag wins over the file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print the configuration that results, and stop
    #[arg(long)]
    pub print_config: bool,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Print what is understood of a model or of a draft head, and stop
    Inspect {
        /// A GGUF file, a directory of safetensors or of a draft head, or the id of either
        path: PathBuf,
        /// The model that a draft head belongs to
        #[arg(long, value_name = "PATH")]
        model: Option<PathBuf>,
    },
}

/// A value as it stands on the command line or in the file. Numbers and words are judged later,
/// so that one start can report every mistake.
#[derive(Clone, Debug, PartialEq)]
pub struct Word(pub String);

impl FromStr for Word {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

impl<'de> Deserialize<'de> for Word {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        struct AnyScalar;
        impl Visitor<'_> for AnyScalar {
            type Value = Word;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string or a number")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Word, E> {
                Ok(Word(text.to_owned()))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Word, E> {
                Ok(Word(number.to_string()))
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Word, E> {
                Ok(Word(number.to_string()))
            }

            fn visit_bool<E: Error>(self, value: bool) -> Result<Word, E> {
                Err(E::invalid_type(Unexpected::Bool(value), &self))
            }
        }
        source.deserialize_any(AnyScalar)
    }
}

/// Declares the flags once: each is an option of the command line and a key of the file.
macro_rules! flags {
    ($($(#[doc = $doc:literal])+ $name:ident: $shown:literal,)+) => {
        /// The flags as written; also the keys of the file.
        #[derive(Args, Clone, Debug, Default, Deserialize)]
        #[serde(rename_all = "kebab-case", deny_unknown_fields)]
        pub struct Raw {
            $($(#[doc = $doc])+ #[arg(long, value_name = $shown)] pub $name: Option<Word>,)+
        }

        impl Raw {
            /// What stands here, and where nothing does, what stands in `other`.
            pub fn or(self, other: Self) -> Self {
                Self { $($name: self.$name.or(other.$name),)+ }
            }
        }
    };
}

flags! {
    /// The model: a GGUF file, a directory of safetensors with config.json and tokenizer.json, or
    /// the id of a Hugging Face repository that was fetched before
    model: "PATH",
    /// Where weights come from: auto (the files), or dummy (by chance, in the sizes of
    /// config.json), for speed tests on a GPU [default: auto]
    load_format: "FORMAT",
    /// What becomes of weights on a GPU: none (bf16), or fp8 (e4m3 with a scale for each output:
    /// half the memory, faster at small batches) [default: none]
    quantization: "KIND",
    /// How tokens are made: baseline, eagle3 (needs --draft) or ngram [default: baseline]
    mode: "MODE",
    /// Directory of the EAGLE-3 draft head, or its id as with --model
    draft: "DIR",
    /// Where repositories that were fetched are kept [default: HF_HUB_CACHE, HF_HOME/hub, or
    /// ~/.cache/huggingface/hub]
    hub_cache: "DIR",
    /// Drafts a sequence may get in one step, 0 to 16 [default: 3 with eagle3, 4 with ngram]
    draft_max: "K",
    /// Draft only while at most this many requests are decoding; `auto` takes the depths from the
    /// calibration file [default: no limit]
    draft_until: "N|auto",
    /// Calibration file written by `crossover-bench calibrate`
    calibration: "FILE",
    /// Layers of the model whose input the draft head reads, such as 2,15,27 [default: what the
    /// head says, else 2, L/2 and L-3]
    eagle_layers: "LIST",
    /// Pretend that the draft at each place is accepted with this probability, once those before
    /// it are, such as 0.8,0.7; only with --load-format dummy, and labelled everywhere
    /// [default: off]
    simulate_acceptance: "LIST",
    /// Where to compute: cpu, cpu:0-1 (a set of cores), cuda:0 (a GPU by its number), or GPU-...
    /// or MIG-... (a card or a part of one by its identifier); cuda:0,1 computes on both together
    /// [default: cpu]
    device: "DEVICE",
    /// GPUs that compute one model together, counted on from the one that --device names
    /// [default: as many as --device names]
    tensor_parallel_size: "N",
    /// Activations on the CPU: f32 (exact reference) or int8 (fast) [default: int8]
    activations: "KIND",
    /// Address to listen on [default: 127.0.0.1:8101]
    listen: "ADDR",
    /// Names under which requests may ask for the model, comma-separated; the first is shown
    /// [default: the name the model gives itself]
    served_model_name: "NAMES",
    /// Longest prompt and answer together, in tokens [default: what the model was made for]
    context_max: "TOKENS",
    /// Requests that are computed at once [default: 32; on a GPU 256]
    running_max: "N",
    /// Requests that may wait beside those for which places are free; more are refused, with 0 all
    /// that find no free place [default: 256]
    waiting_max: "N",
    /// Tokens that one step may read: the chunk in which prompts are read
    /// [default: 256; on a GPU 2048]
    rows_max: "N",
    /// Prompt tokens in a step in which others decode: less lets those wait less; a step takes a
    /// few less where all its rows are then a multiple of 256 [default: a quarter of rows-max]
    prompt_rows_max: "N",
    /// Memory for keys and values, such as 512MiB or 2GiB, on each GPU [default: see
    /// --memory-fraction]
    memory: "SIZE",
    /// Share of the memory that is free beside the weights to use for keys and values
    /// [default: 0.25; on a GPU 0.9]
    memory_fraction: "SHARE",
    /// Folder through which engines of the same model on the same card share its weights: who comes
    /// first loads them, who comes later maps them [default: each has its own]
    share_weights: "DIR",
    /// What to do with request fields that the engine does not know: ignore or reject
    /// [default: ignore]
    unknown_fields: "RULE",
    /// Origins of pages in browsers that may ask and read answers, comma-separated, each with its
    /// scheme, or * for all [default: none]
    allowed_origins: "ORIGINS",
    /// Largest request body [default: 16MiB]
    body_max: "SIZE",
    /// Open connections; more wait to be accepted [default: 1024]
    connections_max: "N",
    /// Longest time a request may take, waiting included [default: 3600]
    request_seconds_max: "SECONDS",
    /// Time for running requests to end after SIGTERM [default: 30]
    drain_seconds: "SECONDS",
    /// Log lines as text or json [default: text]
    log_format: "KIND",
    /// Log filter, such as warn or engine=debug [default: info]
    log: "FILTER",
}

/// Where this user keeps what can be made again, as the XDG base directory rules say.
pub fn cache_home() -> Option<PathBuf> {
    let set = |name: &str| env::var_os(name).map(PathBuf::from).filter(|it| it.is_absolute());
    set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|it| it.join(".cache")))
}

/// Where the hub's own tools keep what they fetch, as far as the environment says.
pub fn hub_cache() -> PathBuf {
    let named = |name: &str| env::var_os(name).map(PathBuf::from).filter(|it| it.is_absolute());
    named("HF_HUB_CACHE")
        .or_else(|| named("HF_HOME").map(|it| it.join("hub")))
        .or_else(|| cache_home().map(|it| it.join("huggingface/hub")))
        .unwrap_or_default()
}

impl Raw {
    /// Reads the file; one error for all of it, since a broken file cannot be judged key by key.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let fail = |detail: String| ConfigError { flag: "config", detail };
        let text = fs::read_to_string(path)
            .map_err(|error| fail(format!("cannot read {}: {error}", path.display())))?;
        toml::from_str(&text)
            .map_err(|error| fail(format!("{}: {}", path.display(), error.to_string().trim_end())))
    }
}
