//! A grammar made of a hash: what may follow depends on every token it has walked.

use engine::batch::guide::{Guide, Stuck};
use engine::batch::ids::TokenId;

use crate::rng::mix;

/// Allows about two tokens of three, ends after some tokens, and breaks if told to.
#[derive(Clone, Debug)]
pub struct Rails {
    pub vocab: u32,
    /// Complete after this many tokens.
    pub ends_after: usize,
    /// Cannot go on after this many tokens.
    pub sticks_after: usize,
    /// States from the start, the present one last.
    states: Vec<u64>,
}

impl Rails {
    pub fn new(seed: u64, vocab: u32, ends_after: usize, sticks_after: usize) -> Self {
        Self { vocab, ends_after, sticks_after, states: vec![mix(seed)] }
    }

    fn allows(&self, token: u32) -> bool {
        let state = self.states.last().expect("never rewound past the start");
        let always = state % u64::from(self.vocab) == u64::from(token);
        always || !mix(state ^ u64::from(token)).is_multiple_of(3)
    }
}

impl Guide for Rails {
    fn allow(&mut self, mask: &mut [u32]) -> Result<(), Stuck> {
        assert!(mask.iter().all(|it| *it == 0), "a mask comes empty");
        assert!(!self.is_complete(), "nobody asks what follows the end");
        if self.sticks_after < self.states.len() {
            return Err(Stuck { detail: format!("stuck after {}", self.sticks_after) });
        }
        for token in (0..self.vocab).filter(|it| self.allows(*it)) {
            mask[token as usize / 32] |= 1 << (token % 32);
        }
        Ok(())
    }

    fn advance(&mut self, token: TokenId) -> bool {
        let is_allowed = self.allows(token.0) && !self.is_complete();
        if is_allowed {
            let state = self.states.last().expect("never rewound past the start");
            self.states.push(mix(state ^ (u64::from(token.0) << 32)));
        }
        is_allowed
    }

    fn rewind(&mut self, tokens: u32) {
        self.states.truncate(self.states.len() - tokens as usize);
        assert!(!self.states.is_empty(), "rewound past the start");
    }

    fn is_complete(&self) -> bool {
        self.ends_after < self.states.len()
    }
}
