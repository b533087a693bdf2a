//! What clients get: texts, whole and streamed, and what is told beside them.

use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::serve::asking::{CHAT, COMPLETIONS, ask, check, say, whole, with};
use crate::serve::fixture::{Service, Setup};

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_says_the_same_whole_and_in_pieces() {
    let request = json!({ "messages": say("Grüße, 世界!"), "temperature": 0 });
    check(CHAT, request, &[("Grüße, 世界!", "stop")]).await;
    let parts = json!([{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }]);
    let request = json!({
        "model": "org/parrot", "temperature": 0,
        "messages": [{ "role": "system", "content": "x" }, { "role": "user", "content": parts }],
    });
    check(CHAT, request, &[("ab", "stop")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_of_every_kind() {
    let greedy = |prompt: Value| json!({ "prompt": prompt, "temperature": 0 });
    check(COMPLETIONS, greedy(json!("x>abc")), &[("abc", "stop")]).await;
    check(COMPLETIONS, greedy(json!(["x>ab", ">c"])), &[("ab", "stop"), ("c", "stop")]).await;
    // The toy's byte 'a' is the token 100.
    check(COMPLETIONS, greedy(json!([65, 100, 101])), &[("ab", "stop")]).await;
    check(COMPLETIONS, greedy(json!([[65, 100], [65]])), &[("a", "stop"), ("", "stop")]).await;
    let long = format!(">{}", "x".repeat(40));
    check(COMPLETIONS, greedy(json!(long)), &[("xxxxxxxxxxxxxxxx", "length")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_texts_end() {
    let end = |more: Value| with(json!({ "prompt": ">a b c d", "temperature": 0 }), more);
    check(COMPLETIONS, end(json!({ "max_tokens": 3 })), &[("a b", "length")]).await;
    check(COMPLETIONS, end(json!({ "stop": " c" })), &[("a b", "stop")]).await;
    check(COMPLETIONS, end(json!({ "stop": ["zz", " c d", "d"] })), &[("a b", "stop")]).await;
    let include = json!({ "stop": " c", "include_stop_str_in_output": true });
    check(COMPLETIONS, end(include), &[("a b c", "stop")]).await;
    check(COMPLETIONS, end(json!({ "stop": "b", "min_tokens": 4 })), &[("a b c d", "stop")]).await;
    // The toy's byte 'b' is the token 101.
    check(COMPLETIONS, end(json!({ "stop_token_ids": [101] })), &[("a ", "stop")]).await;
    let past = json!({ "ignore_eos": true, "max_tokens": 9, "skip_special_tokens": false });
    check(COMPLETIONS, end(past), &[("a b c d<2><2>", "length")]).await;
    check(COMPLETIONS, end(json!({ "min_tokens": 9 })), &[("a b c d..", "stop")]).await;
    let short = with(json!({ "messages": say("abcdef") }), json!({ "max_completion_tokens": 2 }));
    check(CHAT, with(short, json!({ "temperature": 0 })), &[("ab", "length")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_strings_at_every_seam() {
    let request = json!({ "prompt": ">ha ha ha ha ha ha", "temperature": 0, "max_tokens": 30 });
    for shift in 0..4 {
        let text = format!("{}ha ha ha ha ha ha", "x".repeat(shift));
        let more = json!({ "prompt": format!(">{text}"), "stop": " ha ha ha" });
        let wanted = format!("{}ha", "x".repeat(shift));
        check(COMPLETIONS, with(request.clone(), more), &[(&wanted, "stop")]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn seeds_make_texts_repeat() {
    let service = Service::start(Setup::default()).await;
    let request = json!({ "prompt": [">abcdefgh", ">abcdefgh"], "n": 2, "seed": 7 });
    let first = service.post(COMPLETIONS, &request).await;
    let texts = whole(&first);
    assert_eq!(texts, whole(&service.post(COMPLETIONS, &request).await));
    // Each prompt has the texts it would have had alone, and they differ among themselves.
    assert_eq!(texts[..2], texts[2..]);
    assert_ne!(texts[0], texts[1]);
    assert_eq!(first.json()["crossover"]["seeds"], json!([7, 8, 7, 8]));

    let unseeded = json!({ "prompt": [">abcdefgh", ">abcdefgh"] });
    let answer = service.post(COMPLETIONS, &unseeded).await;
    let texts = whole(&answer);
    assert_ne!(texts[0], texts[1]);
    for (text, seed) in texts.iter().zip(answer.json()["crossover"]["seeds"].as_array().unwrap()) {
        let again = json!({ "prompt": ">abcdefgh", "seed": seed });
        assert_eq!(whole(&service.post(COMPLETIONS, &again).await), std::slice::from_ref(text));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn echoes() {
    let echo = |more: Value| with(json!({ "echo": true, "temperature": 0 }), more);
    check(COMPLETIONS, echo(json!({ "prompt": ">ab" })), &[(">abab", "stop")]).await;
    check(COMPLETIONS, echo(json!({ "prompt": [68, 100] })), &[("AaAa", "stop")]).await;
    let only = json!({ "prompt": ">ab", "max_tokens": 0 });
    check(COMPLETIONS, echo(only), &[(">ab", "length")]).await;
    let messages = json!([{ "role": "assistant", "content": "so" }]);
    let request = json!({ "messages": messages, "continue_final_message": true });
    check(CHAT, echo(request), &[("soso", "stop")]).await;
}

/// A prompt that is put before its answer is told as the answer is: token by token, all but the
/// first with how likely it was.
#[tokio::test(flavor = "multi_thread")]
async fn echoes_with_logprobs() {
    let request = json!({ "prompt": ">ab", "echo": true, "logprobs": 1, "temperature": 0 });
    ask(COMPLETIONS, request.clone()).await;
    let service = Service::start(Setup { depth: 4, ..Setup::default() }).await;
    let prompt = json!([null, -0.5, -0.5, -0.5]);
    for (more, tokens, logprobs, text) in [
        (json!({}), 7, json!([-0.25, -0.25, -0.25]), ">abab"),
        (json!({ "max_tokens": 0 }), 4, json!([]), ">ab"),
    ] {
        let answer = service.post(COMPLETIONS, &with(request.clone(), more.clone())).await.json();
        let choice = &answer["choices"][0];
        assert_eq!(choice["text"], text);
        let told = &choice["logprobs"];
        let all = [prompt.as_array().unwrap().clone(), logprobs.as_array().unwrap().clone()];
        assert_eq!(told["token_logprobs"], json!(all.concat()), "{answer}");
        let offsets = [0, 0, 1, 2, 3, 4, 5];
        assert_eq!(told["text_offset"], json!(offsets[..tokens]));
        assert_eq!(told["tokens"].as_array().unwrap().len(), tokens);
        assert_eq!(told["top_logprobs"][0], json!(null));
        assert_eq!(told["top_logprobs"][2], json!({ "a": -0.5 }));
        assert_eq!(answer["usage"]["completion_tokens"], tokens - 4);
        // In a stream the parts put together are the same.
        let streamed = with(with(request.clone(), more), json!({ "stream": true }));
        let events = service.post(COMPLETIONS, &streamed).await.events();
        let parts = events.iter().filter_map(|it| serde_json::from_str::<Value>(it).ok());
        let part = |it: Value| it["choices"][0]["logprobs"]["tokens"].as_array().cloned();
        let parts: Vec<Value> = parts.filter_map(part).flatten().collect();
        assert_eq!(json!(parts), told["tokens"]);
    }
    service.until_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn biases_and_template_values_arrive() {
    let request = json!({ "prompt": ">ab", "max_tokens": 3, "logit_bias": { "125": 100 } });
    check(COMPLETIONS, request, &[("zzz", "length")]).await;
    let request = json!({
        "messages": say("a"), "temperature": 0,
        "chat_template_kwargs": { "system": "x".repeat(200) },
    });
    let service = Service::start(Setup::default()).await;
    let usage = &service.post(CHAT, &request).await.json()["usage"];
    assert_eq!(usage["prompt_tokens"], "system>\"\"\nuser>a".len() + 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_counts_tokens_and_guesses() {
    let service = Service::start(Setup { depth: 2, ..Setup::default() }).await;
    let request = json!({ "prompt": "x>abcdefghij", "temperature": 0 });
    let usage = service.post(COMPLETIONS, &request).await.json()["usage"].clone();
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(13), &json!(11)));
    assert_eq!(usage["total_tokens"], 24);
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0);
    let guesses = &usage["completion_tokens_details"];
    assert_eq!(guesses["accepted_prediction_tokens"], 5);
    assert_eq!(guesses["rejected_prediction_tokens"], 7);
    // The same prompt again finds its whole pages.
    let again = service.post(COMPLETIONS, &request).await.json()["usage"].clone();
    assert_eq!(again["prompt_tokens_details"]["cached_tokens"], 12);
    assert_eq!(again["completion_tokens"], 11);
    let salted = with(request.clone(), json!({ "cache_salt": "tenant" }));
    for cached in [0, 12] {
        let usage = service.post(COMPLETIONS, &salted).await.json()["usage"].clone();
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], cached);
    }
    let fewer = with(request.clone(), json!({ "speculative": 1 }));
    let usage = service.post(COMPLETIONS, &fewer).await.json()["usage"].clone();
    let guesses = &usage["completion_tokens_details"];
    assert_eq!(guesses["accepted_prediction_tokens"], 5);
    assert_eq!(guesses["rejected_prediction_tokens"], 1);
    let declined = with(request, json!({ "speculative": false }));
    let usage = service.post(COMPLETIONS, &declined).await.json()["usage"].clone();
    assert_eq!(usage["completion_tokens_details"]["accepted_prediction_tokens"], 0);
    assert_eq!(usage["completion_tokens_details"]["rejected_prediction_tokens"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_in_streams_only_where_asked_for() {
    let service = Service::start(Setup::default()).await;
    for (options, each, last) in [
        (json!(null), false, false),
        (json!({}), false, false),
        (json!({ "include_usage": false }), false, false),
        (json!({ "continuous_usage_stats": true }), false, false),
        (json!({ "include_usage": true }), false, true),
        (json!({ "include_usage": true, "continuous_usage_stats": true }), true, true),
    ] {
        let request = json!({
            "messages": say("abc"), "temperature": 0, "stream": true, "stream_options": options,
        });
        let answer = service.post(CHAT, &request).await;
        let mut events: Vec<Value> = answer.events()[..answer.events().len() - 1]
            .iter()
            .map(|it| serde_json::from_str(it).unwrap())
            .collect();
        if last {
            let event = events.pop().unwrap();
            assert_eq!(event["choices"], json!([]));
            assert_eq!(event["usage"]["completion_tokens"], 4);
        }
        for event in &events {
            assert_eq!(event["choices"].as_array().unwrap().len(), 1, "{event}");
            assert_eq!(event.get("usage").is_some(), last, "{options}: {event}");
            assert_eq!(event["usage"].is_object(), each, "{options}: {event}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_round_is_one_event() {
    let service = Service::start(Setup { depth: 3, ..Setup::default() }).await;
    let request = json!({ "messages": say("abcdefgh"), "temperature": 0, "stream": true });
    let answer = service.post(CHAT, &request).await;
    let events = answer.events();
    // Each round keeps one guess of three: two tokens a round. The first event has the role.
    let deltas: Vec<Value> = events[..events.len() - 1]
        .iter()
        .map(|it| serde_json::from_str::<Value>(it).unwrap()["choices"][0]["delta"].clone())
        .collect();
    assert_eq!(deltas[0], json!({ "role": "assistant", "content": "" }));
    let texts: Vec<&str> = deltas[1..].iter().filter_map(|it| it["content"].as_str()).collect();
    assert_eq!(texts.concat(), "abcdefgh");
    assert!(texts.iter().all(|it| it.len() <= 2) && texts.len() < 8, "{texts:?}");
    assert_eq!(answer.headers["content-type"], "text/event-stream; charset=utf-8");
    assert_eq!(answer.headers["cache-control"], "no-cache, no-transform");
    assert_eq!(answer.headers["x-accel-buffering"], "no");
}

#[tokio::test(flavor = "multi_thread")]
async fn logprobs_in_both_shapes() {
    let service = Service::start(Setup { depth: 3, ..Setup::default() }).await;
    let request = json!({ "prompt": ">aé", "temperature": 0, "logprobs": 2 });
    let answer = service.post(COMPLETIONS, &request).await.json();
    let logprobs = &answer["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["a", "\u{fffd}", "\u{fffd}", "<2>"]));
    assert_eq!(logprobs["token_logprobs"], json!([-0.25, -0.25, -0.25, -0.25]));
    assert_eq!(logprobs["text_offset"], json!([0, 1, 1, 2]));
    assert_eq!(logprobs["top_logprobs"][0], json!({ "a": -0.25, "b": -0.25 }));
    assert_eq!(answer["usage"]["completion_tokens"], 4);

    let request = json!({
        "messages": say("ab"), "temperature": 0, "logprobs": true, "top_logprobs": 1,
    });
    let answer = service.post(CHAT, &request).await.json();
    let content = answer["choices"][0]["logprobs"]["content"].clone();
    let entry = json!({ "token": "a", "logprob": -0.25, "bytes": [97] });
    assert_eq!(content[0], with(entry.clone(), json!({ "top_logprobs": [entry] })));
    assert_eq!(content.as_array().unwrap().len(), 3);
    let stream = with(request, json!({ "stream": true }));
    let answer = service.post(CHAT, &stream).await;
    let mut streamed = Vec::new();
    for event in &answer.events()[..answer.events().len() - 1] {
        let event: Value = serde_json::from_str(event).unwrap();
        let part = event["choices"][0]["logprobs"]["content"].as_array().cloned();
        streamed.extend(part.unwrap_or_default());
    }
    assert_eq!(Value::from(streamed), content);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_and_marks() {
    let service = Service::start(Setup::default()).await;
    let request = json!({ "prompt": ">a", "temperature": 0, "some": 1, "other": 2 });
    let answer = service.post(COMPLETIONS, &request).await;
    assert_eq!(answer.headers["x-crossover-ignored-fields"], "some,other");
    let body = answer.json();
    assert_eq!((&body["object"], &body["model"]), (&json!("text_completion"), &json!("parrot")));
    assert!(body["id"].as_str().unwrap().starts_with("cmpl-"));
    assert_eq!(body["system_fingerprint"], "fp");
    assert_eq!(body["crossover"]["mode"], "eagle3");

    let models = service.get("/v1/models").await.json();
    assert_eq!(models["data"][1]["id"], "org/parrot");
    assert_eq!(service.get("/v1/models/org/parrot").await.json()["max_model_len"], 256);
    assert_eq!(service.get("/v1/models/org%2Fparrot").await.status, 200);
    let load = service.get("/load").await;
    let keys = [
        "server_load",
        "running",
        "waiting",
        "kv_usage",
        "mode",
        "model",
        "draft_depth",
        "draining",
    ];
    let report = load.json();
    assert_eq!(report.as_object().unwrap().keys().collect::<Vec<_>>(), keys);
    assert_eq!(service.get("/version").await.json()["version"], env!("CARGO_PKG_VERSION"));
    let info = service.get("/server_info").await.json();
    assert_eq!(info["config"], "lanes = 8");
    // What the router holds a calibration's key against.
    let key = ["model", "quantisation", "device"].map(|it| info[it].as_str().unwrap());
    assert_eq!(key, ["parrot", "q4_1", "cpu:0"]);
    let steps = service.get("/debug/steps").await.json();
    assert_eq!(steps["steps"][0]["rows"], 3);
    let page = service.get("/metrics").await.body;
    let success = "vllm:request_success_total{engine=\"0\",finished_reason=\"stop\",\
        model_name=\"parrot\"} 1";
    assert!(page.contains(success), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_wants_so_many_tokens_at_least_gets_them() {
    let request = json!({ "prompt": ">abcdefghijklmnopqrstuvwxyz", "temperature": 0 });
    let more = json!({ "min_tokens": 20 });
    check(COMPLETIONS, with(request, more), &[("abcdefghijklmnopqrst", "length")]).await;
}

/// A prompt is found in kept pages once, however many texts it gets and however they end.
#[tokio::test(flavor = "multi_thread")]
async fn cached_tokens_are_the_prompts() {
    let service = Service::start(Setup::default()).await;
    let prompt = "all of these words are read once>abXcd";
    let request = |more| with(json!({ "prompt": prompt, "temperature": 0 }), more);
    let mut cached = Vec::new();
    for more in [json!({}), json!({}), json!({ "n": 3 }), json!({ "n": 3, "stop": "X" })] {
        let usage = service.post(COMPLETIONS, &request(more)).await.json()["usage"].clone();
        cached.push(usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap());
        assert!(cached[cached.len() - 1] < usage["prompt_tokens"].as_u64().unwrap());
    }
    assert!(cached[0] == 0 && 0 < cached[1], "{cached:?}");
    assert_eq!(cached[2..], [cached[1]; 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_and_back() {
    let service = Service::start(Setup::default()).await;
    let tokens = service.post("/tokenize", &json!({ "prompt": "ab" })).await.json();
    assert_eq!(tokens["tokens"], json!([1, 100, 101]));
    assert_eq!((&tokens["count"], &tokens["max_model_len"]), (&json!(3), &json!(256)));
    let plain = json!({ "prompt": "a", "add_special_tokens": false, "return_token_strs": true });
    let tokens = service.post("/tokenize", &plain).await.json();
    assert_eq!((&tokens["tokens"], &tokens["token_strs"]), (&json!([100]), &json!(["a"])));
    let chat = service.post("/tokenize", &json!({ "messages": say("a") })).await.json();
    assert_eq!(chat["count"], "user>a".len());
    let text = service.post("/detokenize", &json!({ "tokens": [1, 100, 101] })).await.json();
    assert_eq!(text["prompt"], "<1>ab");
}

#[tokio::test(flavor = "multi_thread")]
async fn http_2_on_the_same_port() {
    let service = Service::start(Setup::default()).await;
    let stream = TcpStream::connect(service.address).await.unwrap();
    let (mut sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let _ended = connection.await;
    });
    let request = |text: &str| {
        let body = json!({ "prompt": format!(">{text}"), "temperature": 0 }).to_string();
        let uri = format!("http://{}{COMPLETIONS}", service.address);
        Request::post(uri).body(Full::new(Bytes::from(body))).unwrap()
    };
    let (one, two) = (request("one"), request("two"));
    let answers = [sender.send_request(one), sender.send_request(two)];
    for (answer, text) in answers.into_iter().zip(["one", "two"]) {
        let body = answer.await.unwrap().into_body().collect().await.unwrap().to_bytes();
        let answer: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(answer["choices"][0]["text"], text);
    }
}
