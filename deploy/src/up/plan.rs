//! What `up` starts, as values: command lines and the router's configuration.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::programs::Programs;
use crate::config::flags::Quantization;
use crate::config::{Speculation, Up, is_gpu, reachable};

/// More than an engine runs well on cores, and on a GPU; the router's queue takes the rest.
const IN_FLIGHT_MAX: u32 = 64;
const IN_FLIGHT_MAX_GPU: u32 = 256;
/// What each of two engines on one card takes of the memory that is free beside the weights.
const SHARE_OF_ONE_CARD: &str = "0.4";
const DWELL_MS: u64 = 1000;
/// After a request to stop, streams get this long.
const DRAIN_S: u64 = 5;

/// Three programs. The two engines come first.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) dir: PathBuf,
    pub(super) programs: [Launch; 3],
    router_file: String,
}

/// One program, its arguments, and where its output goes.
#[derive(Clone, Debug)]
pub(super) struct Launch {
    pub(super) name: &'static str,
    pub(super) program: PathBuf,
    pub(super) args: Vec<OsString>,
    pub(super) log: PathBuf,
}

#[derive(Debug, Serialize)]
struct RouterFile {
    listen: String,
    admin: String,
    policy: Policy,
    shutdown: Shutdown,
    endpoint: Vec<Endpoint>,
}

#[derive(Debug, Serialize)]
struct Policy {
    kind: &'static str,
    high: u32,
    low: u32,
    dwell_ms: u64,
}

#[derive(Debug, Serialize)]
struct Shutdown {
    settle_ms: u64,
    drain_ms_max: u64,
}

#[derive(Debug, Serialize)]
struct Endpoint {
    name: &'static str,
    role: &'static str,
    url: String,
    kind: &'static str,
    in_flight_max: u32,
}

impl Plan {
    pub(super) fn new(config: &Up, programs: &Programs, model: &Path, dir: &Path) -> Self {
        let launch = |name, program: &Path, args| Launch {
            name,
            program: program.to_owned(),
            args,
            log: dir.join(format!("{}.log", str::replace(name, " ", "-"))),
        };
        let file = dir.join("router.toml");
        let router = vec!["--config".into(), file.into()];
        Self {
            dir: dir.to_owned(),
            programs: [
                launch("speculative engine", &programs.engine, speculative(config, model, dir)),
                launch("throughput engine", &programs.engine, throughput(config, model, dir)),
                launch("router", &programs.router, router),
            ],
            router_file: router_file(config),
        }
    }

    /// Writes the router's configuration.
    pub(super) fn write(&self) -> Result<(), String> {
        let file = self.dir.join("router.toml");
        fs::write(&file, &self.router_file)
            .map_err(|it| format!("cannot write {}: {it}", file.display()))
    }
}

fn router_file(config: &Up) -> String {
    let at = &config.addresses;
    let endpoint = |role, address, device: &str| Endpoint {
        name: role,
        role,
        url: format!("http://{}", reachable(address)),
        kind: "crossover",
        in_flight_max: if is_gpu(device) { IN_FLIGHT_MAX_GPU } else { IN_FLIGHT_MAX },
    };
    let [speculative, throughput] = &config.devices;
    let file = RouterFile {
        listen: at.listen.to_string(),
        admin: at.admin.to_string(),
        policy: Policy { kind: "switch", high: config.high, low: config.low, dwell_ms: DWELL_MS },
        shutdown: Shutdown { settle_ms: 0, drain_ms_max: DRAIN_S * 1000 },
        endpoint: vec![
            endpoint("speculative", at.speculative, speculative),
            endpoint("throughput", at.throughput, throughput),
        ],
    };
    toml::to_string(&file).expect("strings and small numbers")
}

fn speculative(config: &Up, model: &Path, dir: &Path) -> Vec<OsString> {
    let mut args = engine(config, model, dir, 0);
    let mut add = |flag: &str, value: OsString| args.extend([flag.into(), value]);
    match &config.speculation {
        Speculation::Eagle3 { head } => {
            add("--mode", "eagle3".into());
            add("--draft", head.into());
        }
        Speculation::Ngram => add("--mode", "ngram".into()),
    }
    if let Some(drafts) = config.draft_max {
        add("--draft-max", drafts.to_string().into());
    }
    if let Some(requests) = config.draft_until {
        add("--draft-until", requests.to_string().into());
    }
    args
}

fn throughput(config: &Up, model: &Path, dir: &Path) -> Vec<OsString> {
    let mut args = engine(config, model, dir, 1);
    args.extend(["--mode", "baseline"].map(OsString::from));
    args
}

/// What both engines are told; `which` is 0 for the speculative one.
fn engine(config: &Up, model: &Path, dir: &Path, which: usize) -> Vec<OsString> {
    let listen = [config.addresses.speculative, config.addresses.throughput][which];
    let [one, other] = &config.devices;
    let same = is_gpu(one) && one == other;
    let fraction = same.then(|| ("--memory-fraction", SHARE_OF_ONE_CARD.into()));
    // Several cards hold a part of each matrix each: engines cannot share those.
    let is_shared = same && !one.contains(',');
    let fp8 = (config.quantization == Quantization::Fp8).then(|| ("--quantization", "fp8".into()));
    let weights = is_shared.then(|| ("--share-weights", dir.join("weights").into()));
    [
        ("--model", OsString::from(model)),
        ("--device", config.devices[which].clone().into()),
        ("--activations", config.activations.label().into()),
        ("--listen", listen.to_string().into()),
        ("--drain-seconds", DRAIN_S.to_string().into()),
    ]
    .into_iter()
    .chain(fp8)
    .chain(fraction)
    .chain(weights)
    .flat_map(|(flag, value)| [flag.into(), value])
    .collect()
}
