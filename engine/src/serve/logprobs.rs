//! How likely tokens were, in the two shapes that clients know.

use serde_json::{Map, Value, json};

use crate::batch::ids::TokenId;
use crate::serve::choice::TokenReport;
use crate::serve::ready::Ready;

/// JSON has no infinity; this is what others send in its place.
const LEAST: f32 = -9999.0;

pub fn for_completions(ready: &Ready, reports: &[TokenReport]) -> Value {
    let text = |token| String::from_utf8_lossy(&ready.speech.bytes(token)).into_owned();
    let top = |report: &TokenReport| -> Value {
        let mut map = Map::new();
        for (token, logprob) in &report.logprobs.top {
            map.insert(text(*token), json!(finite(*logprob)));
        }
        map.entry(text(report.token)).or_insert_with(|| json!(finite(report.logprobs.chosen)));
        map.into()
    };
    let all = |one: &dyn Fn(&TokenReport) -> Value| reports.iter().map(one).collect::<Vec<_>>();
    json!({
        "tokens": all(&|it| json!(text(it.token))),
        "token_logprobs": all(&|it| json!(finite(it.logprobs.chosen))),
        "top_logprobs": all(&top),
        "text_offset": all(&|it| json!(it.offset)),
    })
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
