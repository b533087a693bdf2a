//! Chooses tokens from logits, and keeps the drafts that equal the choice.

use kernels::cpu::PAGE_TOKENS;

use super::rows::Part;
use crate::batch::ids::TokenId;
use crate::batch::plan::StepChoices;
use crate::batch::sampling::{Past, choose};

/// Chooses after the last own row of a part, and after each draft that equals the choice before
/// it. Every choice is made by the ordinary sampler with the noise of its position, so a draft
/// that is kept is the token that would have been chosen without it.
///
/// logits: (rows, vocabulary), one row for each that the part may choose after; masks: (rows,
/// words), empty for none; tokens: the token in each slot, (pages, 16).
pub(super) fn choose_kept(
    part: &mut Part<'_>,
    (logits, vocab): (&mut [f32], usize),
    masks: &[u32],
    tokens: &[u32],
    choices: &mut StepChoices,
) {
    let entry = part.entry;
    let before = choices.tokens.len();
    let mut masks = masks.chunks_exact(vocab.div_ceil(32));
    for (at, logits) in (part.fed() - 1..).zip(logits.chunks_exact_mut(vocab)) {
        let place = part.place(at);
        let token_at = |slot: usize| {
            let page = place.pages[slot / PAGE_TOKENS] as usize;
            TokenId(tokens[page * PAGE_TOKENS + slot % PAGE_TOKENS])
        };
        let past = Past {
            tokens: (0..=place.slot).map(token_at),
            position: part.position(at) + 1,
            outputs_start: entry.outputs_start,
        };
        let (token, logprobs) = choose(logits, &entry.sampling, past, masks.next());
        choices.tokens.push(token);
        choices.logprobs.extend(logprobs);
        let kept = at + 1 - part.fed();
        part.kept = at + 1;
        if part.drafts().get(kept) != Some(&token.0) {
            break;
        }
    }
    let count = choices.tokens.len() - before;
    choices.counts.push(u32::try_from(count).expect("few drafts"));
}
