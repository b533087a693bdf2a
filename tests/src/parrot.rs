//! A model that says what it is told: what stands in the last line of its prompt after the first
//! `>`, then the end token.
//!
//! So a test of the service writes the answer that it wants into the prompt. Under a mask it says
//! something short that is allowed instead. It can be made to wait before each step, and to fail.

use std::sync::mpsc::Receiver;

use engine::backend::{Backend, BackendError, Shape};
use engine::batch::ids::{PageId, TokenId};
use engine::batch::plan::{Entry, StepChoices, StepPlan, TokenLogprobs, accept};

use crate::rng::mix;
use crate::toy;

#[derive(Debug)]
pub struct Parrot {
    shape: Shape,
    slots: Vec<TokenId>,
    choices: StepChoices,
    behaviour: Behaviour,
}

/// How it departs from an even pace.
#[derive(Debug, Default)]
pub struct Behaviour {
    /// One message lets it compute one step; once the sender is gone it runs free.
    pub pace: Option<Receiver<()>>,
    /// Fail after so many steps.
    pub steps_max: Option<u32>,
}

impl Parrot {
    pub fn new(shape: Shape, behaviour: Behaviour) -> Self {
        let slots = vec![TokenId(0); (shape.pages * shape.page_tokens) as usize];
        Self { shape, slots, choices: StepChoices::default(), behaviour }
    }

    fn slot(&self, pages: &[PageId], position: u32) -> usize {
        let page = pages[(position / self.shape.page_tokens) as usize];
        (page.0 * self.shape.page_tokens + position % self.shape.page_tokens) as usize
    }

    /// The token that follows the one at `position`, before any mask.
    fn wish(&self, entry: &Entry, pages: &[PageId], position: u32) -> TokenId {
        let read = |at| self.slots[self.slot(pages, at)];
        let prompt: Vec<TokenId> = (0..entry.outputs_start).map(read).collect();
        let line = prompt.iter().rposition(|it| *it == toy::token(b'\n')).map_or(0, |it| it + 1);
        let mark = prompt[line..].iter().position(|it| *it == toy::token(b'>'));
        let mark = line + mark.map_or(0, |it| it + 1);
        let index = position + 1 - entry.outputs_start;
        let sampling = &entry.sampling;
        let told = prompt[mark..].get(index as usize).copied().unwrap_or(toy::END);
        let mut choice = told;
        if 0.0 < sampling.temperature && told != toy::END {
            let noise = mix(sampling.seed ^ u64::from(index)) % 26;
            choice = toy::token(b'a' + u8::try_from(noise).expect("below 26"));
        }
        if let Some((token, _)) = sampling.bias.iter().find(|(_, shift)| 50.0 < *shift) {
            choice = *token;
        }
        if sampling.stop_tokens.contains(&choice) && index < sampling.outputs_min {
            choice = toy::token(b'.');
        }
        choice
    }

    /// Right at even places of the text, wrong at odd ones.
    fn guess(&self, entry: &Entry, pages: &[PageId], position: u32) -> TokenId {
        let choice = self.wish(entry, pages, position);
        let is_right = (position + 1 - entry.outputs_start).is_multiple_of(2);
        if is_right { choice } else { TokenId((choice.0 + 1) % self.shape.vocab) }
    }
}

/// So likely is the token, and those after it are as well.
fn report(token: &TokenId, chosen: f32, top: u32) -> TokenLogprobs {
    TokenLogprobs { chosen, top: (0..top).map(|it| (TokenId(token.0 + it), chosen)).collect() }
}

/// The wish if the mask allows it, else what ends a text soonest.
fn allowed(mask: &[u32], wish: TokenId) -> TokenId {
    let allows = |it: &TokenId| mask[(it.0 / 32) as usize] & (1 << (it.0 % 32)) != 0;
    let ends = b"\"}],:".iter().map(|it| toy::token(*it));
    let others = (b'0'..=b'9').chain(b'!'..=u8::MAX).chain(0..=b' ').map(toy::token);
    let mut wishes = [wish, toy::END].into_iter().chain(ends).chain(others);
    wishes.find(allows).expect("a mask allows something")
}

impl Backend for Parrot {
    fn shape(&self) -> Shape {
        self.shape
    }

    fn submit(&mut self, plan: &StepPlan) -> Result<(), BackendError> {
        if let Some(pace) = &self.behaviour.pace
            && pace.recv().is_err()
        {
            self.behaviour.pace = None;
        }
        if let Some(steps) = &mut self.behaviour.steps_max {
            let Some(left) = steps.checked_sub(1) else {
                return Err(BackendError { detail: "the parrot is dead".to_owned() });
            };
            *steps = left;
        }
        let mut rows = plan.rows.iter();
        let mut scored = plan.scored.as_slice();
        let mut masks = plan.masks.chunks_exact(self.shape.vocab.div_ceil(32) as usize);
        for entry in &plan.entries {
            assert!(!entry.chained, "this backend takes one plan at a time");
            let pages = &plan.pages[entry.pages.clone()];
            let mut tokens: Vec<TokenId> =
                rows.by_ref().take(entry.rows_known() as usize).copied().collect();
            for (position, &token) in (entry.start..).zip(&tokens) {
                let slot = self.slot(pages, position);
                self.slots[slot] = token;
            }
            for position in entry.start + entry.rows_known()..entry.start + entry.rows() {
                let guess = self.guess(entry, pages, position - 1);
                let slot = self.slot(pages, position);
                self.slots[slot] = guess;
                tokens.push(guess);
            }
            let end = entry.start + entry.rows();
            let mut chosen = Vec::new();
            for position in end - entry.choices_max()..end {
                let wish = self.wish(entry, pages, position);
                let mask = entry.masked.then(|| masks.next().expect("a mask for each row"));
                chosen.push(mask.map_or(wish, |it| allowed(it, wish)));
            }
            let kept = accept(&tokens[entry.fed as usize..], &chosen);
            let top = entry.sampling.prompt_logprobs.unwrap_or(0);
            let scored = scored.split_off(..entry.scored as usize).expect("a token a row");
            self.choices.scored.extend(scored.iter().map(|it| report(it, -0.5, top)));
            self.choices.tokens.extend_from_slice(kept);
            self.choices.counts.push(u32::try_from(kept.len()).expect("small"));
            if let Some(top) = entry.sampling.logprobs {
                self.choices.logprobs.extend(kept.iter().map(|it| report(it, -0.25, top)));
            }
        }
        Ok(())
    }

    fn collect(&mut self, choices: &mut StepChoices) -> Result<(), BackendError> {
        *choices = std::mem::take(&mut self.choices);
        Ok(())
    }
}
