//! Asks the same in every way that must give the same.

use serde_json::{Value, json};

use crate::serve::fixture::{Answer, Service, Setup};

pub(super) const CHAT: &str = "/v1/chat/completions";
pub(super) const COMPLETIONS: &str = "/v1/completions";

pub(super) fn say(text: &str) -> Value {
    json!([{ "role": "user", "content": text }])
}

pub(super) fn with(mut request: Value, more: Value) -> Value {
    let Value::Object(more) = more else { panic!("{more} is no object") };
    request.as_object_mut().unwrap().extend(more);
    request
}

/// A text that lasts for thousands of steps.
pub(super) fn long_text(stream: bool) -> Value {
    json!({
        "prompt": ">abcdefgh", "temperature": 0, "stream": stream, "max_tokens": 4000,
        "ignore_eos": true,
    })
}

/// A service of two lanes that takes a step when it is told to.
pub(super) fn paced() -> Setup {
    Setup { is_paced: true, lanes: 2, context_max: 4096, ..Setup::default() }
}

/// The text of each choice of a stream, and its finish reason.
pub(super) fn streamed(answer: &Answer) -> Vec<(String, String)> {
    let mut texts: Vec<(String, String)> = Vec::new();
    let events = answer.events();
    assert_eq!(events.last().unwrap(), "[DONE]");
    for event in &events[..events.len() - 1] {
        let event: Value = serde_json::from_str(event).unwrap();
        for choice in event["choices"].as_array().unwrap() {
            let index = usize::try_from(choice["index"].as_u64().unwrap()).unwrap();
            texts.resize(texts.len().max(index + 1), Default::default());
            let text = choice["text"].as_str().or(choice["delta"]["content"].as_str());
            texts[index].0 += text.unwrap_or_default();
            if let Some(reason) = choice["finish_reason"].as_str() {
                assert_eq!(texts[index].1, "", "a text ends once");
                texts[index].1 = reason.to_owned();
            }
        }
    }
    texts
}

pub(super) fn whole(answer: &Answer) -> Vec<(String, String)> {
    assert_eq!(answer.status, 200, "{answer:?}");
    let answer = answer.json();
    let read = |choice: &Value| {
        let text = choice["text"].as_str().or(choice["message"]["content"].as_str());
        (text.unwrap().to_owned(), choice["finish_reason"].as_str().unwrap().to_owned())
    };
    answer["choices"].as_array().unwrap().iter().map(read).collect()
}

/// Asks whole and streamed, in services with and without drafts, and gives the one text that all
/// of them must give, for the same number of tokens.
pub(super) async fn ask(path: &str, request: Value) -> Vec<(String, String)> {
    let mut texts = Vec::new();
    let mut tokens = Vec::new();
    for depth in [0, 1, 4] {
        let service = Service::start(Setup { depth, ..Setup::default() }).await;
        let answer = service.post(path, &request).await;
        texts.push(whole(&answer));
        tokens.push(answer.json()["usage"]["completion_tokens"].clone());
        let request = with(request.clone(), json!({ "stream": true }));
        texts.push(streamed(&service.post(path, &request).await));
        service.until_idle().await;
    }
    assert!(texts.windows(2).all(|two| two[0] == two[1]), "{texts:?}");
    assert!(tokens.windows(2).all(|two| two[0] == two[1]), "{tokens:?} for {texts:?}");
    texts.swap_remove(0)
}

pub(super) async fn check(path: &str, request: Value, wanted: &[(&str, &str)]) {
    let texts = ask(path, request.clone()).await;
    let texts: Vec<(&str, &str)> = texts.iter().map(|it| (&*it.0, &*it.1)).collect();
    assert_eq!(texts, wanted, "{request}");
}
