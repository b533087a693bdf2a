//! One text as it grows: tokens in, text that may be shown out, cut where it must end.

use std::sync::Arc;
use std::time::Instant;

use crate::batch::ids::TokenId;
use crate::batch::plan::TokenLogprobs;
use crate::batch::step::Finish;
use crate::runner::{EndReason, Round};
use crate::serve::speech::{Speech, Speller};
use crate::serve::wishes::Stops;
use crate::text::stop::StopStrings;

/// What a round adds to a text.
#[derive(Debug, Default)]
pub struct Delta {
    pub text: String,
    pub logprobs: Vec<TokenReport>,
    /// How likely the prompt's tokens after the first were; in the first of a text's.
    pub prompt: Vec<TokenLogprobs>,
    pub finish: Option<Ending>,
}

/// Why a text ended, as clients know it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ending {
    Stop,
    Length,
    Abort,
    /// The grammar that the client gave could not go on.
    Stuck,
}

impl Ending {
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Abort => "abort",
            Self::Stuck => "error",
        }
    }
}

/// How likely a token was, and where its text begins.
#[derive(Debug)]
pub struct TokenReport {
    pub token: TokenId,
    pub logprobs: TokenLogprobs,
    /// Characters of the text before it.
    pub offset: usize,
}

/// What a text cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    pub tokens: u32,
    /// Guesses among the tokens, and those that were wrong.
    pub accepted: u32,
    pub rejected: u32,
    /// Prompt tokens that were found in kept pages.
    pub cached: u32,
}

/// When a text's first step began, when its first round came and when its last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    pub started: Instant,
    pub first: Instant,
    pub last: Instant,
}

#[derive(Debug)]
pub struct Choice {
    pub seed: u64,
    pub cost: Cost,
    pub times: Option<Times>,
    speller: Box<dyn Speller>,
    finder: StopStrings,
    stops: Arc<Stops>,
    reports: bool,
    /// Whether the prompt is all that was asked for, and the token after it is nobody's.
    only_prompt: bool,
    /// Characters of the whole text so far, shown or held back.
    len: usize,
}

impl Choice {
    /// `len` is how many characters stand before the answer.
    pub fn new(
        speech: &dyn Speech,
        stops: &Arc<Stops>,
        skips_special: bool,
        reports: bool,
        seed: u64,
        len: usize,
    ) -> Self {
        Self {
            seed,
            cost: Cost::default(),
            times: None,
            speller: speech.speller(skips_special),
            finder: StopStrings::new(&stops.strings, stops.include),
            stops: Arc::clone(stops),
            reports,
            only_prompt: false,
            len,
        }
    }

    /// For a request of no tokens whose prompt must be read all the same.
    #[must_use]
    pub fn only_prompt(self) -> Self {
        Self { only_prompt: true, ..self }
    }

    /// Takes a round. After one with a finish there is no other.
    pub fn take(&mut self, round: Round) -> Delta {
        let Round { mut tokens, logprobs, prompt, guessed, kept, cached, mut end, started, at } =
            round;
        if self.only_prompt {
            tokens.clear();
            end = end.map(|_| EndReason::Loop(Finish::Length));
        }
        // An end that comes by itself may not know.
        self.cost.cached = self.cost.cached.max(cached);
        self.times.get_or_insert(Times { started, first: at, last: at }).last = at;
        let mut delta = Delta { prompt, ..Delta::default() };
        let mut logprobs = logprobs.into_iter();
        let finish = end.as_ref().map(ending);
        let mut used = 0;
        for &token in &tokens {
            used += 1;
            self.cost.tokens += 1;
            if self.reports
                && let Some(logprobs) = logprobs.next()
            {
                delta.logprobs.push(TokenReport { token, logprobs, offset: self.len });
            }
            let is_end = end.as_ref() == Some(&stopped_at(token)) && used as usize == tokens.len();
            if is_end && !self.stops.include {
                break;
            }
            let piece = self.speller.push(token);
            if self.show(&piece, &mut delta) {
                break;
            }
        }
        let kept = kept.min(used);
        self.cost.accepted += kept;
        self.cost.rejected += guessed - kept;
        if delta.finish.is_none() && finish.is_some() {
            let rest = self.speller.finish();
            if !self.show(&rest, &mut delta) {
                delta.text.push_str(&self.finder.finish());
                delta.finish = finish;
            }
        }
        delta
    }

    /// Adds a piece of text, or what of it may be shown; true if a stop string ended the text.
    fn show(&mut self, piece: &str, delta: &mut Delta) -> bool {
        self.len += piece.chars().count();
        if self.cost.tokens < self.stops.tokens_min {
            delta.text.push_str(piece);
            return false;
        }
        let found = self.finder.push(piece);
        delta.text.push_str(&found.text);
        if found.stopped.is_some() {
            delta.finish = Some(Ending::Stop);
        }
        found.stopped.is_some()
    }
}

fn stopped_at(token: TokenId) -> EndReason {
    EndReason::Loop(Finish::Stop(token))
}

fn ending(reason: &EndReason) -> Ending {
    match reason {
        EndReason::Loop(Finish::Stop(_) | Finish::Complete) => Ending::Stop,
        EndReason::Loop(Finish::Length) => Ending::Length,
        EndReason::Loop(Finish::Stuck(_)) => Ending::Stuck,
        EndReason::Aborted | EndReason::Expired => Ending::Abort,
    }
}

#[cfg(test)]
pub(crate) mod tests;
