//! The meaning of single words of the configuration. Errors end the sentence "'WORD' ...".

use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use kernels::cuda::Card;
use tracing_subscriber::EnvFilter;

use crate::config::{
    ANY_ORIGIN, Activations, Device, LoadFormat, Quantization, UnknownFields, size,
};

pub(super) fn seconds(count: u32) -> Duration {
    Duration::from_secs(count.into())
}

pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "is not an address such as 127.0.0.1:8101".to_owned())
}

pub(super) fn activations(text: &str) -> Result<Activations, String> {
    match text {
        "f32" => Ok(Activations::F32),
        "int8" => Ok(Activations::Int8),
        _ => Err("is not f32 or int8".to_owned()),
    }
}

pub(super) fn rule(text: &str) -> Result<UnknownFields, String> {
    match text {
        "ignore" => Ok(UnknownFields::Ignore),
        "reject" => Ok(UnknownFields::Reject),
        _ => Err("is not ignore or reject".to_owned()),
    }
}

pub(super) fn log_format(text: &str) -> Result<bool, String> {
    match text {
        "text" => Ok(false),
        "json" => Ok(true),
        _ => Err("is not text or json".to_owned()),
    }
}

pub(super) fn log_filter(text: &str) -> Result<String, String> {
    let filter = EnvFilter::try_new(text).map(|_| text.to_owned());
    filter.map_err(|error| format!("is not a filter such as warn or engine=debug: {error}"))
}

pub(super) fn names(text: &str) -> Result<Vec<String>, String> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let names: Vec<String> = text.split(',').map(|it| it.trim().to_owned()).collect();
    if names.iter().any(String::is_empty) {
        return Err("has an empty name".to_owned());
    }
    Ok(names)
}

/// `*`, or origins as browsers write them: a scheme, a host and perhaps a port.
pub(super) fn origins(text: &str) -> Result<Vec<String>, String> {
    let is_origin = |it: &String| {
        let rest = it.split_once("://").filter(|(scheme, _)| !scheme.is_empty());
        let is_name = |it: char| it.is_ascii_graphic() && !"/?#@*".contains(it);
        rest.is_some_and(|(_, host)| !host.is_empty() && host.chars().all(is_name))
    };
    let origins = names(text)?;
    let all = origins.iter().all(|it| it == ANY_ORIGIN || is_origin(it));
    all.then_some(origins)
        .ok_or_else(|| "is not * or a list of origins such as https://chat.example".to_owned())
}

pub(super) fn body_size(text: &str) -> Result<usize, String> {
    let bytes = size::parse(text)?;
    let fits = (1024..=1 << 30).contains(&bytes);
    fits.then(|| usize::try_from(bytes).expect("below a GiB"))
        .ok_or_else(|| "is not between 1KiB and 1GiB".to_owned())
}

pub(super) fn fraction(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if 0.0 < share && share <= 1.0 => Ok(share),
        _ => Err("is not a share above 0 and at most 1".to_owned()),
    }
}

/// `cpu`, `cpu:0-3,6`, `cuda:1`, `cuda:0,1`, `GPU-...` or `MIG-...`.
pub(super) fn device(text: &str) -> Result<Device, String> {
    if text == "cpu" {
        return Ok(Device::Cpu { cores: Vec::new() });
    }
    if let Some(set) = text.strip_prefix("cpu:") {
        return cores(set).map(|cores| Device::Cpu { cores });
    }
    cards(text).map(|cards| Device::Cuda { cards })
}

/// GPUs that compute together; after the first a bare number will do, as in `cuda:0,1`.
fn cards(text: &str) -> Result<Vec<Card>, String> {
    let mut cards = Vec::new();
    for part in text.split(',') {
        let bare = if cards.is_empty() { None } else { Some(part) };
        let number = part.strip_prefix("cuda:").or(bare).map(str::parse);
        let card = match number {
            Some(Ok(number)) => Card::Number(number),
            _ if part.starts_with("MIG-") || part.starts_with("GPU-") => {
                Card::Named(part.to_owned())
            }
            _ if part == text => return Err("is not cpu, cpu:0-1, cuda:0 or MIG-...".to_owned()),
            _ => return Err(format!("has '{part}' where a GPU such as cuda:1 should be")),
        };
        if cards.contains(&card) {
            return Err(format!("names '{part}' twice"));
        }
        cards.push(card);
    }
    Ok(cards)
}

pub(super) fn load_format(text: &str) -> Result<LoadFormat, String> {
    match text {
        "auto" => Ok(LoadFormat::Auto),
        "dummy" => Ok(LoadFormat::Dummy),
        _ => Err("is not auto or dummy".to_owned()),
    }
}

pub(super) fn quantization(text: &str) -> Result<Quantization, String> {
    match text {
        "none" => Ok(Quantization::None),
        "fp8" => Ok(Quantization::Fp8),
        _ => Err("is not none or fp8".to_owned()),
    }
}

fn cores(set: &str) -> Result<Vec<usize>, String> {
    const CORE_MAX: usize = 4095;
    let mut cores = Vec::new();
    for part in set.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let bounds = (first.parse::<usize>(), last.parse::<usize>());
        let (Ok(first), Ok(last)) = bounds else {
            return Err(format!("has '{part}' where a core or a range such as 0-3 should be"));
        };
        if last < first || CORE_MAX < last {
            return Err(format!("has the range '{part}', which holds no cores"));
        }
        cores.extend(first..=last);
    }
    let named = cores.len();
    cores.sort_unstable();
    cores.dedup();
    if cores.len() < named { Err("names a core twice".to_owned()) } else { Ok(cores) }
}

fn items<T: FromStr>(text: &str) -> Option<Vec<T>> {
    text.split(',').map(|it| it.trim().parse().ok()).collect()
}

pub(super) fn layers(text: &str) -> Result<Vec<usize>, String> {
    items(text).ok_or_else(|| "is not a list of layers such as 2,15,27".to_owned())
}

pub(super) fn rates(text: &str) -> Result<Vec<f64>, String> {
    let rates: Option<Vec<f64>> = items(text);
    rates
        .filter(|it| it.iter().all(|rate| (0.0..=1.0).contains(rate)))
        .ok_or_else(|| "is not a list of probabilities such as 0.8,0.7".to_owned())
}

/// `4:5,8:3`: up to 4 decoding requests 5 drafts, up to 8 of them 3, beyond that none.
pub(super) fn table(text: &str) -> Result<Vec<(u32, u32)>, String> {
    let pair = |it: &str| {
        let (requests, drafts) = it.split_once(':')?;
        Some((requests.trim().parse().ok()?, drafts.trim().parse().ok()?))
    };
    let table: Option<Vec<(u32, u32)>> = text.split(',').map(pair).collect();
    table
        .filter(|it| it.windows(2).all(|two| two[0].0 < two[1].0))
        .ok_or_else(|| "is not a rising table such as 4:5,8:3".to_owned())
}
