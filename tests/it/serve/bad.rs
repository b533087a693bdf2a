//! Bad input: each a clear error, and nobody else notices.

use std::time::Duration;

use engine::config::{Serve, UnknownFields};
use http_body_util::Full;
use hyper::Request;
use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::serve::fixture::{Service, Setup, send};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

async fn raw(service: &Service, path: &str, body: &str) -> (u16, Value) {
    let request = Request::post(path).body(Full::new(Bytes::from(body.to_owned()))).unwrap();
    let answer = send(service.address, request).await.whole().await;
    (answer.status, answer.json()["error"].clone())
}

/// Wrong fields beside right messages: field, status, parameter that is named, code.
const CHATS: &[(&str, u16, &str, &str)] = &[
    (r#""model": "gpt-5""#, 404, "model", "model_not_found"),
    (r#""model": 5"#, 400, "model", "invalid_type"),
    (r#""max_tokens": 251"#, 400, "max_tokens", "context_length_exceeded"),
    (r#""max_tokens": 0"#, 400, "max_tokens", "invalid_value"),
    (r#""max_completion_tokens": 0"#, 400, "max_completion_tokens", "invalid_value"),
    (r#""top_logprobs": 2"#, 400, "top_logprobs", "invalid_value"),
    (r#""temperature": NaN"#, 400, "", "invalid_json"),
    (r#""chat_template_kwargs": []"#, 400, "chat_template_kwargs", "invalid_type"),
    (r#""structured_outputs": {"choice": []}"#, 400, "structured_outputs.choice", "invalid_value"),
    (r#""logit_bias": {"5": 1, "+5": 1}"#, 400, "logit_bias", "invalid_value"),
    (
        r#""continue_final_message": true, "add_generation_prompt": true"#,
        400,
        "continue_final_message",
        "invalid_value",
    ),
];

/// Whole wrong bodies: path, body, status, parameter that is named, code.
const OTHERS: &[(&str, &str, u16, &str, &str)] = &[
    (CHAT, "", 400, "", "invalid_json"),
    (CHAT, "{", 400, "", "invalid_json"),
    (CHAT, "[]", 400, "", "invalid_json"),
    (CHAT, "{}", 400, "messages", "missing_required_parameter"),
    (CHAT, r#"{"messages": []}"#, 400, "messages", "invalid_value"),
    (CHAT, r#"{"messages": "hi"}"#, 400, "messages", "invalid_type"),
    (CHAT, r#"{"messages": ["hi"]}"#, 400, "messages[0]", "invalid_type"),
    (
        CHAT,
        r#"{"messages": [{"content": "a"}]}"#,
        400,
        "messages[0].role",
        "missing_required_parameter",
    ),
    (
        CHAT,
        r#"{"messages": [{"role": "user", "content": 5}]}"#,
        400,
        "messages[0].content",
        "invalid_type",
    ),
    (
        CHAT,
        r#"{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}"#,
        400,
        "messages[0].content[0].type",
        "unsupported_value",
    ),
    (
        CHAT,
        r#"{"messages": [{"role": "nobody", "content": "a"}]}"#,
        400,
        "messages",
        "invalid_value",
    ),
    (COMPLETIONS, "{}", 400, "prompt", "missing_required_parameter"),
    (COMPLETIONS, r#"{"prompt": []}"#, 400, "prompt", "invalid_value"),
    (COMPLETIONS, r#"{"prompt": [[]]}"#, 400, "prompt", "invalid_value"),
    (COMPLETIONS, r#"{"prompt": {}}"#, 400, "prompt", "invalid_type"),
    (COMPLETIONS, r#"{"prompt": [1, "a"]}"#, 400, "prompt[1]", "invalid_type"),
    (COMPLETIONS, r#"{"prompt": [1, 259]}"#, 400, "prompt[1]", "invalid_value"),
    (COMPLETIONS, r#"{"prompt": ["a", 5]}"#, 400, "prompt[1]", "invalid_type"),
    (COMPLETIONS, r#"{"prompt": ["a", "b"], "n": 65}"#, 400, "prompt", "invalid_value"),
    (COMPLETIONS, r#"{"prompt": "a", "suffix": "b"}"#, 400, "suffix", "unsupported_parameter"),
    ("/tokenize", "{}", 400, "messages", "missing_required_parameter"),
    ("/detokenize", r#"{"tokens": [999]}"#, 400, "tokens[0]", "invalid_value"),
    ("/abort_request", "{}", 400, "rid", "missing_required_parameter"),
    ("/v1/embeddings", r#"{"input": "a"}"#, 400, "", "unsupported"),
    ("/v1/nothing", "{}", 404, "", "unknown_url"),
    ("/health", "{}", 405, "", "method_not_supported"),
];

#[tokio::test(flavor = "multi_thread")]
async fn each_mistake_is_named() {
    let service = Service::start(Setup::default()).await;
    let long = format!("{{\"prompt\": \"{}\"}}", "x".repeat(300));
    let too_long = (COMPLETIONS, &*long, 400, "prompt", "context_length_exceeded");
    let chats = CHATS.iter().map(|&(more, status, param, code)| {
        let messages = r#"{"messages": [{"role": "user", "content": "a"}], "#;
        (CHAT, format!("{messages}{more}}}"), status, param, code)
    });
    let others = OTHERS.iter().chain([&too_long]);
    let others = others.map(|it| (it.0, it.1.to_owned(), it.2, it.3, it.4));
    for (path, body, status, param, code) in chats.chain(others) {
        let (found, error) = raw(&service, path, &body).await;
        assert_eq!(found, status, "{path} {body}: {error}");
        assert_eq!(error["code"], code, "{path} {body}: {error}");
        assert_eq!(error["param"].as_str().unwrap_or_default(), param, "{path} {body}: {error}");
        assert!(error["message"].as_str().is_some_and(|it| !it.is_empty()));
    }
    assert_eq!(service.get(CHAT).await.status, 405);
    assert_eq!(service.get(CHAT).await.headers["allow"], "POST");
    // After all that it still works.
    let right = json!({ "prompt": ">a", "temperature": 0 });
    assert_eq!(service.post(COMPLETIONS, &right).await.json()["choices"][0]["text"], "a");
    service.until_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_fields_can_be_rejected() {
    let serve = Serve { unknown_fields: UnknownFields::Reject, ..Setup::default().serve };
    let service = Service::start(Setup { serve, ..Setup::default() }).await;
    let (status, error) = raw(&service, COMPLETIONS, r#"{"prompt": "a", "promt": 1}"#).await;
    assert_eq!((status, &error["param"]), (400, &json!("promt")));
    assert_eq!(error["code"], "unknown_parameter");
    let known = json!({ "prompt": ">a", "user": "me", "metadata": {} });
    assert_eq!(service.post(COMPLETIONS, &known).await.status, 200);
}

/// What a client sent comes back in messages and headers, but no more than fits there.
#[tokio::test(flavor = "multi_thread")]
async fn little_of_a_request_comes_back() {
    let service = Service::start(Setup::default()).await;
    let mut request = json!({ "prompt": ">a", "temperature": 0 });
    for at in 0..3000 {
        request[format!("field{at}")] = json!(1);
    }
    let answer = service.post(COMPLETIONS, &request).await;
    assert_eq!(answer.status, 200);
    let ignored = answer.headers["x-crossover-ignored-fields"].to_str().unwrap();
    assert!(ignored.starts_with("field0,field1,") && ignored.ends_with(",..."), "{ignored}");
    assert!(ignored.len() < 1100);
    let regex = "(".repeat(20_000);
    let request = json!({ "prompt": ">a", "structured_outputs": { "regex": regex } });
    let answer = service.post(COMPLETIONS, &request).await;
    assert_eq!(answer.json()["error"]["param"], "structured_outputs");
    assert!(answer.body.len() < 3000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_has_a_limit() {
    let service = Service::start(Setup::default()).await;
    let body = format!("{{\"prompt\": \"{}\"}}", "x".repeat(70_000));
    let (status, error) = raw(&service, COMPLETIONS, &body).await;
    assert_eq!((status, &error["code"]), (413, &json!("request_too_large")));
    let page = service.get("/metrics").await;
    assert_eq!(page.status, 200);
}

/// A connection that closes with bytes unread is reset, and the answer may be lost with it.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_refused_early_may_send_to_the_end() {
    let service = Service::start(Setup::default()).await;
    let ask = async |path: &str, more: &str, body: &[u8]| {
        let mut stream = TcpStream::connect(service.address).await.unwrap();
        let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 20000000\r\n{more}");
        stream.write_all(format!("{head}\r\n").as_bytes()).await.unwrap();
        stream.write_all(body).await.unwrap();
        let mut status = vec![0; 12];
        stream.read_exact(&mut status).await.unwrap();
        String::from_utf8(status).unwrap()
    };
    let body = vec![b' '; 20_000_000];
    for (path, status) in [(COMPLETIONS, 413), ("/v1/nothing", 404), ("/health", 405)] {
        assert_eq!(ask(path, "", &body).await, format!("HTTP/1.1 {status}"));
        service.until_idle().await;
    }
    // Who asks whether to send is not told to.
    assert_eq!(ask("/v1/nothing", "expect: 100-continue\r\n", &[]).await, "HTTP/1.1 404");
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_no_http() {
    let service = Service::start(Setup::default()).await;
    for bytes in [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".as_slice(),
        b"GET\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: x\r\n\r\n",
    ] {
        let mut stream = TcpStream::connect(service.address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer);
        tokio::time::timeout(Duration::from_secs(10), read).await.unwrap().unwrap();
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{answer}");
    }
    let head = format!("GET /health HTTP/1.1\r\nx: {}\r\n\r\n", "x".repeat(80_000));
    let mut stream = TcpStream::connect(service.address).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = vec![0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&answer), "HTTP/1.1 431");
    assert_eq!(service.get("/health").await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_requests_are_told_when_to_come_back() {
    let setup = Setup { lanes: 1, waiting_max: 2, is_paced: true, ..Setup::default() };
    let mut service = Service::start(Setup { context_max: 4096, ..setup }).await;
    let request = json!({
        "prompt": ">abc", "temperature": 0, "stream": true, "max_tokens": 1000, "ignore_eos": true,
    });
    let mut taken = vec![service.open(COMPLETIONS, &request).await];
    service.step(1);
    service.until("/load", |it| it.json()["running"] == 1).await;
    for _ in 0..2 {
        taken.push(service.open_paced(COMPLETIONS, &request).await);
    }
    let refused = service.open_paced(COMPLETIONS, &request).await.whole().await;
    assert_eq!((refused.status, refused.headers["retry-after"].as_bytes()), (503, &b"1"[..]));
    assert_eq!(refused.json()["error"]["code"], "server_is_overloaded");
    assert_eq!(service.get("/load").await.json()["server_load"], 3);
    service.run_free();
    for answer in taken {
        assert!(answer.whole().await.body.ends_with("data: [DONE]\n\n"));
    }
    service.until_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn several_texts_are_taken_whole_or_not_at_all() {
    let setup = Setup { lanes: 1, waiting_max: 2, is_paced: true, ..Setup::default() };
    let mut service = Service::start(Setup { context_max: 4096, ..setup }).await;
    let long = json!({
        "prompt": ">abc", "temperature": 0, "stream": true, "max_tokens": 1000, "ignore_eos": true,
    });
    let many = |n: u32| json!({ "prompt": ">abc", "n": n, "temperature": 0 });
    let first = service.open(COMPLETIONS, &long).await;
    service.step(1);
    service.until("/load", |it| it.json()["running"] == 1).await;
    assert_eq!(service.open_paced(COMPLETIONS, &many(3)).await.whole().await.status, 503);
    assert_eq!(service.get("/load").await.json()["server_load"], 1);
    // More than there are places for: waiting would be of no use.
    let refused = service.open_paced(COMPLETIONS, &many(4)).await.whole().await;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("n")));
    service.run_free();
    assert_eq!(first.whole().await.status, 200);
    service.until_idle().await;
    assert_eq!(service.post(COMPLETIONS, &many(3)).await.status, 200);
}
