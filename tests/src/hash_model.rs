//! A language model made of a hash: its logits depend on every token before, and on nothing else.

use engine::batch::guide::{Guide, Stuck};
use engine::batch::ids::TokenId;
use engine::batch::plan::TokenLogprobs;
use engine::batch::sampling::{Past, Sampling, choose};
use engine::batch::step::Finish;

use crate::rng::mix;

/// All tokens of a text so far, as one number: what a model's hidden state stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Text(u64);

impl Text {
    pub fn then(self, token: TokenId) -> Self {
        Self(mix(self.0 ^ (u64::from(token.0) + 0x5851_f42d_4c95_7f2d)))
    }

    /// One for each token, between -4 and 4 in steps of 1/8, so that ties happen.
    pub fn logits(self, vocab: u32) -> Vec<f32> {
        let logit = |token: u32| {
            let step = mix(self.0.wrapping_add(u64::from(token) + 1)) % 65;
            f32::from(u8::try_from(step).expect("below 65")) / 8.0 - 4.0
        };
        (0..vocab).map(logit).collect()
    }
}

/// What a request gets when nothing else is there: no engine, no pages, no drafts.
#[derive(Clone, Debug, PartialEq)]
pub struct Alone {
    pub tokens: Vec<TokenId>,
    pub logprobs: Vec<TokenLogprobs>,
    pub finish: Finish,
}

/// Writes a text token by token.
pub fn alone(
    prompt: &[TokenId],
    new_max: u32,
    sampling: &Sampling,
    mut guide: Option<Box<dyn Guide>>,
    vocab: u32,
) -> Alone {
    let mut all = prompt.to_vec();
    let mut logprobs = Vec::new();
    let mut text = prompt.iter().fold(Text::default(), |text, token| text.then(*token));
    let finish = loop {
        let mut mask = vec![0; vocab.div_ceil(32) as usize];
        if let Some(guide) = &mut guide
            && let Err(Stuck { detail }) = guide.allow(&mut mask)
        {
            break Finish::Stuck(Stuck { detail });
        }
        let past = past(&all, prompt.len());
        let mask = guide.is_some().then_some(mask.as_slice());
        let (token, report) = choose(&mut text.logits(vocab), sampling, past, mask);
        all.push(token);
        text = text.then(token);
        logprobs.extend(report);
        if sampling.stop_tokens.contains(&token) {
            break Finish::Stop(token);
        }
        assert!(guide.as_mut().is_none_or(|it| it.advance(token)), "the mask let it through");
        if guide.as_ref().is_some_and(|it| it.is_complete()) {
            break Finish::Complete;
        }
        if all.len() - prompt.len() == new_max as usize {
            break Finish::Length;
        }
    };
    Alone { tokens: all.split_off(prompt.len()), logprobs, finish }
}

/// `all` stands before the token to choose; the first `outputs_start` are prompt.
pub fn past(all: &[TokenId], outputs_start: usize) -> Past<impl Iterator<Item = TokenId>> {
    let count = |it: usize| u32::try_from(it).expect("texts are short");
    Past {
        tokens: all.iter().copied(),
        position: count(all.len()),
        outputs_start: count(outputs_start),
    }
}
