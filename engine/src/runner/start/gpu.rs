//! Lays a model out on a GPU, as a configuration asks.

use kernels::cuda::Card;
use kernels::ops::matmul::Format;

use crate::backend::Backend;
use crate::backend::cuda::{CudaBackend, CudaOptions, Dummy, KvMemory, kv_bytes_per_page};
use crate::clock;
use crate::config::raw::cache_home;
use crate::config::{Config, LoadFormat, Memory, Mode, Quantization, size};
use crate::model::{Head, Model};

/// The backend, ready to serve, and the longest text that it has room for.
pub(super) fn backend(
    config: &Config,
    cards: &[Card],
    model: &Model,
    head: Option<&Head>,
) -> Result<(Box<dyn Backend>, u32), String> {
    let context_max = super::context_max(config, &model.config)?;
    let depths = match &config.mode {
        // All up to the most: fewer are made at the end of an answer, and where one wants less.
        Mode::Eagle3 { depth, .. } => (0..=depth.max).collect(),
        Mode::Baseline | Mode::Ngram { .. } => vec![0],
    };
    let drafts_max = match &config.mode {
        Mode::Eagle3 { depth, .. } | Mode::Ngram { depth } => depth.max,
        Mode::Baseline => 0,
    };
    let options = CudaOptions {
        cards: cards.to_vec(),
        cache: cache_home().map(|it| it.join("crossover/kernels")),
        memory: match config.memory {
            Memory::Bytes(bytes) => KvMemory::Bytes(bytes),
            Memory::Fraction(share) => KvMemory::Fraction(share),
        },
        weights: match config.quantization {
            Quantization::None => Format::Bf16,
            Quantization::Fp8 => Format::Fp8,
        },
        context_max,
        context_min: config.context_max.unwrap_or(super::CONTEXT_MIN).min(context_max),
        rows_max: config.rows_max,
        lanes: config.running_max,
        drafts_max,
        simulated: simulated(&config.mode),
        records: true,
        share: config.share_weights.clone(),
    };
    let start = clock::now();
    let head_config = head.map(|it| &it.config);
    let backend = match config.load_format {
        LoadFormat::Auto => CudaBackend::new(model, head, &options),
        LoadFormat::Dummy => {
            CudaBackend::dummy(Dummy { model: &model.config, head: head_config }, &options)
        }
    };
    let mut backend = backend.map_err(|error| format!("--device: {}", error.detail))?;
    let laid = clock::now();
    backend.record_all(&depths).map_err(|error| error.to_string())?;
    let facts = backend.facts();
    let (major, minor) = facts.capability;
    let kernels = if facts.compiled_ahead { "built in" } else { "compiled at start" };
    let each = if cards.len() == 1 { String::new() } else { format!("{} x ", cards.len()) };
    tracing::info!(
        "{each}{}, compute capability {major}.{minor}, {}; kernels {kernels}; laid out in {:.1} s, \
         steps recorded in {:.1} s",
        facts.name,
        size::show(facts.memory_bytes),
        (laid - start).as_secs_f64(),
        (clock::now() - laid).as_secs_f64(),
    );
    if let Some(told) = backend.shared() {
        let how =
            if told.is_taken { "mapped from another engine" } else { "laid out for others too" };
        tracing::info!("weights: {}, {how}", size::show(told.bytes));
    }
    let shape = backend.shape();
    let page_bytes = kv_bytes_per_page(&model.config, head_config) as u64;
    tracing::info!(
        "keys and values: {} in {} pages of {} tokens, {} a token",
        size::show(u64::from(shape.pages) * page_bytes),
        shape.pages,
        shape.page_tokens,
        size::show(page_bytes / u64::from(shape.page_tokens)),
    );
    let fits = shape.pages.saturating_mul(shape.page_tokens);
    Ok((Box::new(backend), context_max.min(fits)))
}

/// The rates of drafts that are kept by chance only.
fn simulated(mode: &Mode) -> Vec<f32> {
    match mode {
        Mode::Eagle3 { simulated: Some(rates), .. } =>
        {
            #[expect(clippy::cast_possible_truncation, reason = "a probability need not be exact")]
            rates.iter().map(|it| *it as f32).collect()
        }
        _ => Vec::new(),
    }
}
