//! What fits: which models the kernels take, how many pages there is memory for.

use kernels::cuda::Device;
use kernels::ops::attend::is_few;
use kernels::ops::bf16;
use kernels::ops::collective::RANKS_MAX;
use kernels::ops::rope::Pages;
use kernels::ops::rows::PAGE_TOKENS;

use super::shard::Shard;
use super::weights::refused;
use super::{CudaOptions, KvMemory, head};
use crate::backend::layer::Sizes;
use crate::backend::{BackendError, Shape};
use crate::model::{HeadConfig, ModelConfig};

/// Memory that is left alone when keys and values take their share.
const SPARE_BYTES: u64 = 512 << 20;
/// Drafts of one entry at most: with its own token they fit the kernel for few rows.
const HELD_MAX: u32 = 7;
/// Words of an entry's own lists: tokens it may not choose, biases.
const LIST_WORDS_MAX: usize = 4096;

/// Sizes that the kernels were not made for.
pub(super) fn check(
    model: &ModelConfig,
    head: Option<&HeadConfig>,
    options: &CudaOptions,
) -> Result<(), BackendError> {
    let dims = [Some(model.head_dim), head.map(|it| it.head_dim)];
    if let Some(dim) = dims.into_iter().flatten().find(|it| ![64, 128].contains(it)) {
        return Err(refused(
            "attention",
            &format!("heads of {dim} are not supported, 64 and 128 are"),
        ));
    }
    if head.is_some_and(|it| it.hidden != model.hidden) {
        return Err(refused("the draft head", "its hidden size is not the target's"));
    }
    let groups = [
        Some((model.heads / model.kv_heads, model.head_dim)),
        head.map(|it| (it.heads / it.kv_heads, it.head_dim)),
    ];
    if let Some((group, _)) = groups.into_iter().flatten().find(|it| !is_few(1, it.0, it.1)) {
        let why = format!("{group} query heads on one of keys and values are not supported");
        return Err(refused("attention", &why));
    }
    let sizes = [options.lanes, options.rows_max, options.context_max];
    if sizes.contains(&0) || options.rows_max < options.lanes {
        return Err(refused("a step", "it needs a row for each lane"));
    }
    shared(model, head, options)
}

/// What the GPUs cannot share.
fn shared(
    model: &ModelConfig,
    head: Option<&HeadConfig>,
    options: &CudaOptions,
) -> Result<(), BackendError> {
    let ranks = options.cards.len();
    let whole =
        [Some(("the model", Sizes::from(model))), head.map(|it| ("the draft head", it.into()))];
    for (what, sizes) in whole.into_iter().flatten() {
        if let Some(why) = Shard::refuses(ranks, sizes) {
            return Err(BackendError {
                detail: format!("{what} is too small for its GPUs: {why}"),
            });
        }
    }
    if RANKS_MAX < ranks {
        let detail = format!("{ranks} GPUs cannot compute together, {RANKS_MAX} is the most");
        return Err(BackendError { detail });
    }
    if 1 < ranks && options.share.is_some() {
        let detail = "engines can share weights on one GPU each only".to_owned();
        return Err(BackendError { detail });
    }
    Ok(())
}

/// Rows of a step that choose a token, at most.
pub(super) fn choosers_max(options: &CudaOptions) -> usize {
    options.lanes as usize * (1 + options.drafts_max as usize)
}

/// Memory of a rank for one page, in bytes.
pub(super) fn page_bytes(model: &ModelConfig, head: Option<&HeadConfig>, shard: Shard) -> usize {
    let kv_heads = shard.kv_heads(model.kv_heads).len();
    let values = model.layers * Pages::page_values(kv_heads, model.head_dim);
    let tokens = PAGE_TOKENS * size_of::<u32>();
    values * size_of::<bf16>() + head.map_or(0, |it| head::page_bytes(it, shard)) + tokens
}

/// Places of a text. A plan may begin behind the longest outcome of the one before it.
pub(super) fn positions(options: &CudaOptions) -> usize {
    let positions = options.context_max + 2 * (options.drafts_max + 1);
    (positions as usize).next_multiple_of(PAGE_TOKENS)
}

/// Drafts of one entry that the kernels take.
pub(super) fn held_max(model: &ModelConfig, options: &CudaOptions) -> u32 {
    let group = model.heads / model.kv_heads;
    let fits = |held: &u32| is_few(1 + *held as usize, group, model.head_dim);
    (0..=options.drafts_max.min(HELD_MAX)).rev().find(fits).unwrap_or(0)
}

/// Pages of so many bytes that there is memory for.
pub(super) fn page_count(
    device: &Device,
    page_bytes: usize,
    options: &CudaOptions,
) -> Result<u32, BackendError> {
    let page = page_bytes as u64;
    let free = device.memory_free()?.saturating_sub(SPARE_BYTES);
    let bytes = match options.memory {
        KvMemory::Pages(pages) => u64::from(pages) * page,
        KvMemory::Bytes(bytes) => bytes,
        KvMemory::Fraction(share) => {
            #[expect(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "a share")]
            let bytes = (free as f64 * share) as u64;
            bytes
        }
    };
    let pages = u32::try_from(bytes / page).unwrap_or(u32::MAX);
    let needed = u64::from(options.context_min).div_ceil(PAGE_TOKENS as u64);
    if free < bytes || u64::from(pages) < needed {
        let detail = format!(
            "the GPU has {} MiB left beside the weights, {} MiB of them for keys and values; one \
             text of {} tokens takes {} MiB",
            free >> 20,
            bytes >> 20,
            options.context_min,
            (needed * page).div_ceil(1 << 20),
        );
        return Err(BackendError { detail });
    }
    Ok(pages)
}

/// Words of the longest step: lists, page tables of new sequences, masks.
pub(super) fn words_max(
    model: &ModelConfig,
    options: &CudaOptions,
    choosers_max: usize,
    positions: usize,
) -> usize {
    let (lanes, rows) = (options.lanes as usize, options.rows_max as usize);
    let masks = choosers_max * model.vocab.div_ceil(32);
    64 + lanes * (LIST_WORDS_MAX + 3 * positions / PAGE_TOKENS) + 4 * rows + masks
}

/// Without pages yet.
pub(super) fn shape(model: &ModelConfig, options: &CudaOptions, held_max: u32) -> Shape {
    Shape {
        pages: 0,
        page_tokens: u32::try_from(PAGE_TOKENS).expect("a page is small"),
        vocab: u32::try_from(model.vocab).expect("token ids are u32"),
        rows_max: options.rows_max,
        lanes: options.lanes,
        held_max,
        ahead_max: 1,
    }
}
