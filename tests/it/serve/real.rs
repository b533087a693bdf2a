//! The service with the default pair: the same texts in every mode, over HTTP.

use std::time::Duration;

use clap::Parser;
use engine::config::Config;
use engine::config::raw::Line;
use engine::runner::start;
use serde_json::{Value, json};

use crate::serve::asking::{CHAT, COMPLETIONS, with};
use crate::serve::fixture::Service;

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

/// Requests of every kind, each of them short.
fn requests() -> Vec<(&'static str, Value)> {
    let chat = |text: &str, more: Value| {
        let request = json!({
            "messages": [{ "role": "user", "content": text }], "max_tokens": 24, "temperature": 0,
        });
        (CHAT, with(request, more))
    };
    let plain = |more: Value| {
        let prompt = "one two one two one two one";
        (COMPLETIONS, with(json!({ "prompt": prompt, "max_tokens": 16, "seed": 3 }), more))
    };
    let person = json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "maxLength": 8 }, "age": { "type": "integer" },
        },
        "required": ["name", "age"], "additionalProperties": false,
    });
    let schema = json!({ "name": "person", "schema": person });
    vec![
        chat("Why is the sky blue?", json!({})),
        chat("Tell a story.", json!({ "temperature": 1, "seed": 5, "n": 2, "logprobs": true })),
        chat("Count to ten.", json!({ "frequency_penalty": 0.5, "stop": ["5"] })),
        chat("Say ha many times.", json!({ "repetition_penalty": 1.3, "logprobs": true })),
        chat(
            "Hello",
            json!({ "presence_penalty": 1, "min_tokens": 20, "temperature": 0.7, "seed": 1 }),
        ),
        chat(
            "Describe Ann, 7.",
            json!({
                "response_format": { "type": "json_schema", "json_schema": schema },
                "max_tokens": 48,
            }),
        ),
        chat("A date.", json!({ "structured_outputs": { "regex": "[0-9]{4}-[0-9]{2}-[0-9]{2}" } })),
        chat(
            "Yes or no?",
            json!({
                "structured_outputs": { "choice": ["yes", "no", "maybe"] }, "logprobs": true,
                "top_logprobs": 3,
            }),
        ),
        plain(json!({ "top_k": 20, "top_p": 0.9, "min_p": 0.02, "logprobs": 2 })),
        plain(json!({ "n": 3, "temperature": 1.3, "echo": true })),
        plain(json!({ "n": 2, "temperature": 0.9, "echo": true, "logprobs": 1 })),
        plain(json!({ "ignore_eos": true, "logit_bias": { "28": 3, "30": -100 } })),
        plain(json!({ "speculative": false, "temperature": 0 })),
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
        for (path, request) in requests() {
            let answer = service.post(path, &request).await;
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

/// Each field that steers the choice does to the text what its name says. Here rather than with a
/// parrot, which has no opinion to be steered.
#[tokio::test(flavor = "multi_thread")]
async fn fields_steer_the_text() {
    let service = service("eagle3").await;
    let prompt = "one two one two one two one two one";
    let base = json!({ "prompt": prompt, "max_tokens": 12, "temperature": 0 });
    let text = async |more: Value| {
        let answer = service.post(COMPLETIONS, &with(base.clone(), more)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let twos = |text: &str| text.matches(" two").count();
    let greedy = text(json!({})).await;
    assert!(3 < twos(&greedy), "{greedy}");
    let warm = json!({ "temperature": 1.8, "seed": 1 });
    let free = text(warm.clone()).await;
    assert_ne!(free, greedy);
    assert_ne!(free, text(with(warm.clone(), json!({ "seed": 2 }))).await);
    for only_the_likeliest in [json!({ "top_k": 1 }), json!({ "top_p": 0 }), json!({ "min_p": 1 })]
    {
        assert_eq!(text(with(warm.clone(), only_the_likeliest)).await, greedy);
    }
    for off in [json!({ "top_k": 0 }), json!({ "top_k": -1 }), json!({ "top_p": 1, "min_p": 0 })] {
        assert_eq!(text(with(warm.clone(), off)).await, free);
    }
    for less in ["frequency_penalty", "presence_penalty", "repetition_penalty"] {
        let less = json!({ less: 2 });
        let penalised = text(less.clone()).await;
        assert_ne!(penalised, greedy, "{less}");
    }
    let two = json!({ "prompt": " two", "add_special_tokens": false });
    let two = service.post("/tokenize", &two).await.json()["tokens"][0].to_string();
    for (shift, count) in [(-100, 0), (100, 12)] {
        let biased = text(json!({ "logit_bias": { &two: shift } })).await;
        assert_eq!(twos(&biased), count, "{biased}");
    }
    service.until_idle().await;
}
