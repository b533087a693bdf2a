//! The service with the default pair: the same texts in every mode, over HTTP.

use std::time::Duration;

use clap::Parser;
use engine::config::Config;
use engine::config::raw::Line;
use engine::runner::start;
use serde_json::{Value, json};

use crate::serve::fixture::Service;

const CHAT: &str = "/v1/chat/completions";

async fn service(mode: &str) -> Service {
    let model = deploy::fetch::default_model(&mut |_| ()).unwrap();
    let model = model.to_str().unwrap().to_owned();
    let common = ["--memory", "256MiB", "--listen", "127.0.0.1:0", "--device", "cpu:0"];
    let head = deploy::head::shipped().unwrap();
    let head = head.to_str().unwrap();
    let mode: Vec<&str> = match mode {
        "eagle3" => vec!["--mode", "eagle3", "--draft", head, "--draft-max", "4"],
        other => vec!["--mode", other],
    };
    let words = ["engine", "--model", &model].into_iter().chain(common).chain(mode);
    let config = Config::new(Line::try_parse_from(words).unwrap().raw).unwrap();
    let serve = config.serve.clone();
    let service = Service::run(serve, Box::new(move || start::start(&config)), None).await;
    service.until_within(Duration::from_secs(120), "/health", |it| it.status == 200).await;
    service
}

fn requests() -> Vec<Value> {
    let chat = |text: &str, more: Value| {
        let mut request = json!({ "messages": [{ "role": "user", "content": text }] });
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        request
    };
    vec![
        chat("Why is the sky blue?", json!({ "max_tokens": 24, "temperature": 0 })),
        chat("Tell a story.", json!({ "max_tokens": 24, "seed": 5, "n": 2, "logprobs": true })),
        chat(
            "Count to ten.",
            json!({ "max_tokens": 24, "temperature": 0, "frequency_penalty": 0.5, "stop": ["5"] }),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn all_modes_write_the_same() {
    let mut texts: Vec<Vec<Value>> = Vec::new();
    let mut accepted = Vec::new();
    for mode in ["baseline", "eagle3", "ngram"] {
        let service = service(mode).await;
        let mut answers = Vec::new();
        let mut sum = 0;
        for request in requests() {
            let answer = service.post(CHAT, &request).await;
            assert_eq!(answer.status, 200, "{answer:?}");
            let answer = answer.json();
            let details = &answer["usage"]["completion_tokens_details"];
            sum += details["accepted_prediction_tokens"].as_u64().unwrap();
            answers.push(answer["choices"].clone());
        }
        service.until_idle().await;
        texts.push(answers);
        accepted.push(sum);
    }
    assert_eq!(texts[0], texts[1]);
    assert_eq!(texts[0], texts[2]);
    assert_eq!(accepted[0], 0);
    assert!(10 < accepted[1], "{accepted:?}");
}
