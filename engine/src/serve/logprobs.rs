//! How likely tokens were, in the two shapes that clients know.

use serde_json::{Map, Value, json};

use crate::batch::ids::TokenId;
use crate::batch::plan::TokenLogprobs;
use crate::serve::choice::TokenReport;
use crate::serve::ready::Ready;

/// JSON has no infinity; this is what others send in its place.
const LEAST: f32 = -9999.0;

/// A prompt that stands before an answer.
#[derive(Clone, Copy, Debug)]
pub struct Prompt<'a> {
    pub tokens: &'a [TokenId],
    pub skips_special: bool,
    /// How likely its tokens after the first are; none if they are not told.
    pub scores: &'a [TokenLogprobs],
}

pub fn for_completions(ready: &Ready, prompt: Prompt<'_>, reports: &[TokenReport]) -> Value {
    let text = |token| String::from_utf8_lossy(&ready.speech.bytes(token)).into_owned();
    let top = |(token, logprobs): &(TokenId, Option<&TokenLogprobs>)| -> Value {
        let Some(logprobs) = logprobs else { return Value::Null };
        let mut map = Map::new();
        for (token, logprob) in &logprobs.top {
            map.insert(text(*token), json!(finite(*logprob)));
        }
        map.entry(text(*token)).or_insert_with(|| json!(finite(logprobs.chosen)));
        map.into()
    };
    let (mut tokens, mut offsets) = prompt.laid(ready);
    tokens.extend(reports.iter().map(|it| (it.token, Some(&it.logprobs))));
    offsets.extend(reports.iter().map(|it| it.offset));
    let chosen = |it: Option<&TokenLogprobs>| it.map(|it| finite(it.chosen));
    json!({
        "tokens": tokens.iter().map(|it| text(it.0)).collect::<Vec<_>>(),
        "token_logprobs": tokens.iter().map(|it| chosen(it.1)).collect::<Vec<_>>(),
        "top_logprobs": tokens.iter().map(top).collect::<Vec<_>>(),
        "text_offset": offsets,
    })
}

impl<'a> Prompt<'a> {
    /// Its tokens, with where they begin in the text; nothing if they are not told. Nobody knows
    /// how likely the first is.
    fn laid(self, ready: &Ready) -> (Vec<(TokenId, Option<&'a TokenLogprobs>)>, Vec<usize>) {
        // Nor is one of a single token, of which nothing is known.
        if self.scores.is_empty() {
            return (Vec::new(), Vec::new());
        }
        let mut speller = ready.speech.speller(self.skips_special);
        let mut end = 0;
        let offset = |token: &TokenId| {
            let start = end;
            end += speller.push(*token).chars().count();
            start
        };
        let offsets = self.tokens.iter().map(offset).collect();
        let scores = [None].into_iter().chain(self.scores.iter().map(Some));
        (self.tokens.iter().copied().zip(scores).collect(), offsets)
    }
}

pub fn for_chat(ready: &Ready, reports: &[TokenReport]) -> Value {
    let entry = |token: TokenId, logprob: f32| {
        let bytes = ready.speech.bytes(token);
        let mut map = Map::new();
        map.insert("token".to_owned(), json!(String::from_utf8_lossy(&bytes)));
        map.insert("logprob".to_owned(), json!(finite(logprob)));
        map.insert("bytes".to_owned(), json!(bytes));
        map
    };
    let whole = |report: &TokenReport| -> Value {
        let mut map = entry(report.token, report.logprobs.chosen);
        let top = report.logprobs.top.iter().map(|(token, it)| Value::from(entry(*token, *it)));
        map.insert("top_logprobs".to_owned(), top.collect());
        map.into()
    };
    json!({ "content": reports.iter().map(whole).collect::<Vec<_>>(), "refusal": null })
}

fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { LEAST }
}
