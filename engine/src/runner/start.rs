//! Builds the engine that a configuration asks for: files, memory, device.

use std::sync::Arc;

use kernels::cpu::{PAGE_TOKENS, pin_current};

use crate::backend::Backend;
use crate::backend::cpu::{CpuBackend, CpuOptions, kv_bytes_per_page};
use crate::batch::step::{Engine, Limits};
use crate::clock;
use crate::config::{
    Activations, Config, DepthRule, Device, LoadFormat, Memory, Mode, Quantization, Until, size,
};
use crate::draft::depth::Depth;
use crate::draft::held::Held;
use crate::draft::ngram::Ngram;
use crate::draft::{DRAFTS_MAX, Drafter, Silent};
use crate::model::{
    Head, Loaded, Model, ModelConfig, hub, load, load_dummy, load_dummy_head, load_head,
};
use crate::runner::memory;
use crate::serve::Started;
use crate::serve::language::Language;
use crate::serve::ready::About;

mod gpu;

/// Tokens that the n-gram drafter looks back for.
const NGRAM_TOKENS: usize = 3;
/// A context shorter than this serves nobody.
const CONTEXT_MIN: u32 = 128;

/// Builds it, in the thread that will own it. The error is one line for the operator.
pub fn start(config: &Config) -> Result<Started, String> {
    let path = hub::resolve(&config.model, &config.hub_cache)?;
    let loaded = match config.load_format {
        LoadFormat::Auto => load(&path),
        LoadFormat::Dummy => load_dummy(&path),
    };
    let loaded = loaded.map_err(|error| error.to_string())?;
    let head = read_head(config, &loaded)?;
    let Loaded { model, tokenizer, template, stop_tokens, notes, .. } = loaded;
    for note in notes {
        tracing::info!("{note}");
    }
    let device = device(&config.device);
    let (backend, context_max) = match &device {
        Device::Cpu { cores } => on_cores(config, cores, &model, head.as_ref())?,
        Device::Cuda { cards } => gpu::backend(config, cards, &model, head.as_ref())?,
    };
    let names = match config.names.as_slice() {
        // The folder of a repository has the name of a revision.
        [] if path != config.model => vec![config.model.display().to_string()],
        [] => vec![model.config.name.clone()],
        names => names.to_vec(),
    };
    let limits = Limits {
        waiting_max: config.waiting_max as usize,
        tokens_max: context_max,
        prompt_rows_max: config.prompt_rows_max,
    };
    let (drafter, depth) = drafter(&config.mode);
    let page_tokens = backend.shape().page_tokens;
    let engine = Engine::new(limits, backend, drafter, depth);
    let about = About {
        fingerprint: fingerprint(config, &model.config.name),
        names,
        mode: config.mode.name(),
        context_max,
        scores_prompts: matches!(config.device, Device::Cpu { .. }),
        created: clock::unix_seconds(),
        quantisation: match config.quantization {
            Quantization::None => model.quantisation(),
            Quantization::Fp8 => "fp8".to_owned(),
        },
        device: device.to_string(),
        config: config.to_string(),
    };
    tracing::info!(
        "serving {} in mode {}, texts of up to {} tokens",
        about.names.join(", "),
        about.mode,
        about.context_max
    );
    let vocab = u32::try_from(model.config.vocab).expect("token ids are u32");
    Ok(Started {
        engine,
        speech: Arc::new(Language { tokenizer, template, stop_tokens, vocab }),
        about,
        page_tokens,
        inbox_max: (config.waiting_max + config.running_max) as usize,
        simulated_acceptance: matches!(config.mode, Mode::Eagle3 { simulated: Some(_), .. }),
    })
}

/// The device with all cores that there are, where the flag names none.
fn device(wanted: &Device) -> Device {
    match wanted {
        Device::Cpu { cores } if cores.is_empty() => Device::Cpu { cores: memory::cores() },
        named => named.clone(),
    }
}

fn read_head(config: &Config, loaded: &Loaded) -> Result<Option<Head>, String> {
    let Mode::Eagle3 { head, layers, simulated, .. } = &config.mode else { return Ok(None) };
    if let Some(rates) = simulated {
        tracing::warn!("acceptance is simulated, {rates:?}: the texts mean nothing");
    }
    let head = hub::resolve(head, &config.hub_cache)?;
    let found = match config.load_format {
        LoadFormat::Auto => load_head(&head, &loaded.model.config, layers.clone()),
        LoadFormat::Dummy => load_dummy_head(&head, &loaded.model.config, layers.clone()),
    };
    let found = found.map_err(|error| error.to_string())?;
    for note in found.notes {
        tracing::info!("{note}");
    }
    tracing::info!("the head reads the inputs of layers {:?}", found.head.config.captured_layers);
    Ok(Some(found.head))
}

/// The backend on some cores; and the longest text that it has room for.
fn on_cores(
    config: &Config,
    cores: &[usize],
    model: &Model,
    head: Option<&Head>,
) -> Result<(Box<dyn Backend>, u32), String> {
    let sizes = Sizes::new(config, model, head)?;
    tracing::info!("{}", sizes.line);
    let Some(&first) = cores.first() else {
        return Err(
            "--device cpu: the system does not say which cores there are; name them".to_owned()
        );
    };
    // The calling thread is the first of the team.
    pin_current(first).map_err(|error| error.to_string())?;
    let options = CpuOptions {
        cores: cores.to_vec(),
        activations: numbers(config.activations),
        pages: sizes.pages,
        rows_max: config.rows_max,
        lanes: config.running_max,
        held_max: DRAFTS_MAX,
    };
    let backend = CpuBackend::new(model, head, &options).map_err(|error| error.to_string())?;
    Ok((Box::new(backend), sizes.context_max))
}

fn drafter(mode: &Mode) -> (Box<dyn Drafter>, Depth) {
    match mode {
        Mode::Baseline => (Box::new(Silent), Depth::none()),
        Mode::Eagle3 { depth, .. } => (Box::new(Held), self::depth(depth)),
        Mode::Ngram { depth } => (Box::new(Ngram { context: NGRAM_TOKENS }), self::depth(depth)),
    }
}

fn depth(rule: &DepthRule) -> Depth {
    match &rule.until {
        Until::Always => Depth::always(rule.max),
        Until::Decoding(requests) => Depth::until(*requests, rule.max),
        Until::Table(lines) => {
            let lines: Vec<(u32, u32)> =
                lines.iter().map(|(requests, drafts)| (*requests, rule.max.min(*drafts))).collect();
            Depth::table(&lines).expect("the configuration checked that it rises")
        }
    }
}

fn numbers(activations: Activations) -> kernels::cpu::Activations {
    match activations {
        Activations::F32 => kernels::cpu::Activations::F32,
        Activations::Int8 => kernels::cpu::Activations::Int8,
    }
}

/// Equal for engines whose texts are equal: the mode is not part of it.
fn fingerprint(config: &Config, model: &str) -> String {
    let arithmetic = match (&config.device, config.activations) {
        (Device::Cuda { .. }, _) if config.quantization == Quantization::Fp8 => "fp8",
        (Device::Cuda { .. }, _) => "bf16",
        (Device::Cpu { .. }, Activations::F32) => "f32",
        (Device::Cpu { .. }, Activations::Int8) => "int8",
    };
    format!("crossover-{}-{model}-{arithmetic}", env!("CARGO_PKG_VERSION"))
}

/// The longest text that is asked for, not longer than what the model was made for.
fn context_max(config: &Config, model: &ModelConfig) -> Result<u32, String> {
    let made_for = u32::try_from(model.context_max).unwrap_or(u32::MAX);
    match config.context_max {
        Some(wanted) if made_for < wanted => Err(format!(
            "--context-max: {wanted} is more than the {made_for} tokens the model was made for"
        )),
        wanted => Ok(wanted.unwrap_or(made_for)),
    }
}

/// What memory allows.
#[derive(Debug, PartialEq)]
struct Sizes {
    pages: u32,
    context_max: u32,
    /// Says what was taken.
    line: String,
}

impl Sizes {
    fn new(config: &Config, model: &Model, head: Option<&Head>) -> Result<Self, String> {
        let (head, activations) = (head.map(|it| &it.config), numbers(config.activations));
        let page_bytes = kv_bytes_per_page(&model.config, head, activations) as u64;
        let wanted = context_max(config, &model.config)?;
        Self::fit(config, wanted, page_bytes, memory::available())
    }

    fn fit(
        config: &Config,
        wanted: u32,
        page_bytes: u64,
        available: Option<u64>,
    ) -> Result<Self, String> {
        let (budget, share) = budget(config.memory, available)?;
        let page_tokens = u32::try_from(PAGE_TOKENS).expect("a page is small");
        // More than all running requests can fill would be of no use to them; a second share is
        // for the pages that later prompts may find.
        let useful = u64::from(wanted.div_ceil(page_tokens)) * u64::from(config.running_max) * 2;
        let pages = u32::try_from((budget / page_bytes).min(useful)).unwrap_or(u32::MAX);
        let fits = pages.saturating_mul(page_tokens);
        if fits < CONTEXT_MIN || (config.context_max.is_some() && fits < wanted) {
            let needed = u64::from(wanted.div_ceil(page_tokens)) * page_bytes;
            return Err(format!(
                "--memory: {} hold keys and values for {fits} tokens; \
                 one text of {wanted} needs {}",
                size::show(budget),
                size::show(needed)
            ));
        }
        let line = format!(
            "keys and values: {} ({share}) in {pages} pages of {page_tokens} tokens, {} a token",
            size::show(u64::from(pages) * page_bytes),
            size::show(page_bytes / u64::from(page_tokens)),
        );
        Ok(Self { pages, context_max: wanted.min(fits), line })
    }
}

/// Bytes to take at most, and how that came about.
fn budget(memory: Memory, available: Option<u64>) -> Result<(u64, String), String> {
    match (memory, available) {
        (Memory::Bytes(bytes), Some(available)) if available < bytes => Err(format!(
            "--memory: {} were asked for, and {} are available",
            size::show(bytes),
            size::show(available)
        )),
        (Memory::Bytes(bytes), _) => Ok((bytes, "as asked for".to_owned())),
        (Memory::Fraction(share), Some(available)) => {
            #[expect(clippy::cast_precision_loss, reason = "a share need not be exact")]
            #[expect(clippy::cast_possible_truncation, reason = "not more than `available`")]
            #[expect(clippy::cast_sign_loss, reason = "shares are positive")]
            let bytes = (available as f64 * share) as u64;
            Ok((bytes, format!("at most {share} of {} available", size::show(available))))
        }
        (Memory::Fraction(_), None) => {
            Err("--memory-fraction: the system does not say what is available; give --memory"
                .to_owned())
        }
    }
}

#[cfg(test)]
mod tests;
