//! How a token is chosen from logits: a pure function of the request, the tokens so far and the
//! position, so that a text never depends on when or beside whom it was written.

use crate::batch::ids::TokenId;

/// A request's wishes. Bounds are checked where requests enter.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// The noise is a pure function of (seed, position, token).
    pub seed: u64,
    /// 0 takes the likeliest token.
    pub temperature: f32,
    /// Keep this many of the likeliest; 0 keeps all.
    pub top_k: u32,
    /// Keep the likeliest whose probabilities sum to this; 1 keeps all.
    pub top_p: f32,
    /// Keep those at least this likely relative to the likeliest; 0 keeps all.
    pub min_p: f32,
    /// Subtracted once from the logit of each token that stands in the output.
    pub presence_penalty: f32,
    /// Subtracted once for each time it stands there.
    pub frequency_penalty: f32,
    /// Divides positive and multiplies negative logits of tokens in prompt or output; 1 is off.
    pub repetition_penalty: f32,
    /// Added to the logit of a token.
    pub bias: Vec<(TokenId, f32)>,
    /// Tokens that may not be chosen while the output is shorter than `outputs_min`.
    pub stop_tokens: Vec<TokenId>,
    pub outputs_min: u32,
    /// How many of the likeliest tokens to report beside the chosen one; `None` reports nothing.
    pub logprobs: Option<u32>,
}

impl Sampling {
    /// The likeliest token, nothing else.
    pub fn greedy() -> Self {
        Self {
            seed: 0,
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            bias: Vec::new(),
            stop_tokens: Vec::new(),
            outputs_min: 0,
            logprobs: None,
        }
    }
}
