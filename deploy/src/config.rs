//! What the front door was told: flags and environment as written, then what follows from them.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::fetch::Source;
use crate::head;
use crate::machine::Cores;

pub mod flags;
pub mod raw;

use flags::Addresses;

/// The exit code for a configuration that cannot be run.
pub const EXIT_USAGE: u8 = 64;

/// A checked `crossover up`.
#[derive(Clone, Debug)]
pub struct Up {
    pub model: Source,
    pub speculation: Speculation,
    pub draft_max: Option<u32>,
    pub draft_until: Option<u32>,
    pub activations: flags::Activations,
    pub quantization: flags::Quantization,
    pub high: u32,
    pub low: u32,
    /// Of the speculative instance, then of the throughput instance.
    pub devices: [String; 2],
    pub addresses: Addresses,
    pub wait_max: Duration,
}

/// How the speculative instance guesses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Speculation {
    Eagle3 { head: PathBuf },
    Ngram,
}

/// One mistake of the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    pub flag: &'static str,
    pub why: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--{}: {}", self.flag, self.why)
    }
}

impl Up {
    /// # Errors
    /// Every mistake at once.
    pub fn check(flags: &flags::Up, cores: &Cores) -> Result<Self, Vec<ConfigError>> {
        let mut errors = Vec::new();
        let mut refuse = |flag, why: String| errors.push(ConfigError { flag, why });
        let model = flags.model.model.parse().unwrap_or_else(|it: crate::fetch::FetchError| {
            refuse("model", it.to_string());
            Source::Default
        });
        let speculation = speculation(flags, &model).unwrap_or_else(|why| {
            refuse("head", why);
            Speculation::Ngram
        });
        if flags.high == 0 {
            refuse("high", "0 would leave the speculative instance without work".to_owned());
        }
        let low = flags.low.unwrap_or(flags.high - flags.high / 4);
        if flags.high < low {
            refuse("low", format!("{low} is above --high, which is {}", flags.high));
        }
        for (flag, why) in clashes(&flags.addresses) {
            refuse(flag, why);
        }
        let halves = cores.halves();
        let [speculative, throughput] = [&flags.device_speculative, &flags.device_throughput];
        let devices = [
            speculative.clone().unwrap_or_else(|| halves[0].clone()),
            throughput.clone().unwrap_or_else(|| halves[1].clone()),
        ];
        let cpu = devices.iter().find(|it| !is_gpu(it));
        if let (flags::Quantization::Fp8, Some(cpu)) = (flags.quantization, cpu) {
            refuse("quantization", format!("fp8 is for GPUs, and one instance computes on {cpu}"));
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        Ok(Self {
            model,
            speculation,
            draft_max: flags.draft_max,
            draft_until: flags.draft_until,
            activations: flags.activations,
            quantization: flags.quantization,
            high: flags.high,
            low,
            devices,
            addresses: flags.addresses,
            wait_max: Duration::from_secs(flags.wait_max.into()),
        })
    }
}

/// Whether an instance on this device computes on a GPU.
pub fn is_gpu(device: &str) -> bool {
    !device.starts_with("cpu")
}

fn speculation(flags: &flags::Up, model: &Source) -> Result<Speculation, String> {
    let head = match (&flags.head, model) {
        _ if flags.ngram => return Ok(Speculation::Ngram),
        (Some(head), _) => head.clone(),
        (None, Source::Default) => head::shipped().ok_or(
            "the shipped draft head is not beside this program; name its directory, or give \
             --ngram",
        )?,
        (None, _) => {
            let why = "the shipped draft head fits the default model only; name one that was made \
                       for this model, or give --ngram";
            return Err(why.to_owned());
        }
    };
    let config = head.join("config.json");
    if config.is_file() {
        Ok(Speculation::Eagle3 { head })
    } else {
        Err(format!("there is no {}", config.display()))
    }
}

/// Addresses that cannot be had together, each with the later of the two flags.
fn clashes(addresses: &Addresses) -> Vec<(&'static str, String)> {
    let all = addresses.all();
    let mut found = Vec::new();
    for (at, (flag, address)) in all.iter().enumerate() {
        if address.port() == 0 {
            found.push((*flag, "port 0 is no port that others could be told".to_owned()));
        }
        let same = |other: &SocketAddr| {
            other.port() == address.port()
                && (other.ip() == address.ip()
                    || other.ip().is_unspecified()
                    || address.ip().is_unspecified())
        };
        if let Some((before, _)) = all[..at].iter().find(|(_, it)| same(it)) {
            found.push((*flag, format!("{address} is taken by --{before}")));
        }
    }
    found
}

/// Where a client on this machine reaches what listens at `address`.
pub fn reachable(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(it) if it.ip().is_unspecified() => ([127, 0, 0, 1], it.port()).into(),
        SocketAddr::V6(it) if it.ip().is_unspecified() => {
            (std::net::Ipv6Addr::LOCALHOST, it.port()).into()
        }
        other => other,
    }
}

/// The cache that the flags name, else the user's.
///
/// # Errors
/// `NoHome` when the flags name none and the environment neither.
pub fn cache(named: Option<&Path>) -> Result<crate::fetch::Cache, crate::fetch::FetchError> {
    match named {
        Some(dir) => Ok(crate::fetch::Cache::at(dir)),
        None => crate::fetch::Cache::of_user(&raw::Environment::read()),
    }
}

#[cfg(test)]
mod tests;
