//! Texts with a form: JSON, patterns, calls of tools.

use engine::config::Serve;
use serde_json::{Value, json};

use crate::serve::asking::{CHAT, COMPLETIONS, ask, check, say, with};
use crate::serve::fixture::{Service, Setup};

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": { "a": { "type": "integer" }, "b": { "type": "string" } },
        "required": ["a", "b"],
        "additionalProperties": false,
    })
}

fn tool(name: &str) -> Value {
    let parameters = json!({
        "type": "object",
        "properties": { "a": { "type": "integer" } },
        "required": ["a"],
        "additionalProperties": false,
    });
    json!({ "type": "function", "function": { "name": name, "parameters": parameters } })
}

#[tokio::test(flavor = "multi_thread")]
async fn json_that_fits_passes_and_other_text_becomes_json() {
    let format =
        json!({ "type": "json_schema", "json_schema": { "name": "n", "schema": schema() } });
    let request =
        |text: &str| json!({ "messages": say(text), "temperature": 0, "response_format": format });
    let right = r#"{"a": 17, "b": "x"}"#;
    check(CHAT, request(right), &[(right, "stop")]).await;
    for wrong in ["no", r#"{"a": "x"}"#, r#"{"c": 1}"#, r#"{"a": 1, "b": "x"} and more"#] {
        let texts = ask(CHAT, request(wrong)).await;
        let value: Value = serde_json::from_str(&texts[0].0).unwrap();
        assert!(value["a"].is_i64() && value["b"].is_string(), "{wrong}: {value}");
        assert_eq!(value.as_object().unwrap().len(), 2, "{wrong}: {value}");
    }
    let any = json!({ "prompt": ">[1]", "temperature": 0, "max_tokens": 40,
        "response_format": { "type": "json_object" } });
    let texts = ask(COMPLETIONS, any).await;
    assert!(serde_json::from_str::<Value>(&texts[0].0).unwrap().is_object(), "{texts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn patterns_choices_and_grammars() {
    let request = |text: &str, outputs: Value| {
        let prompt = format!(">{text}");
        json!({ "prompt": prompt, "temperature": 0, "structured_outputs": outputs, "n": 2 })
    };
    let twice = |text| [(text, "stop"), (text, "stop")];
    let choice = json!({ "choice": ["yes", "no"] });
    check(COMPLETIONS, request("no", choice.clone()), &twice("no")).await;
    check(COMPLETIONS, request("maybe", choice), &twice("no")).await;
    let regex = json!({ "regex": "[0-9]{3}" });
    check(COMPLETIONS, request("12345", regex), &twice("123")).await;
    let grammar = json!({ "grammar": "start: \"a\" b\nb: /[xy]+/" });
    check(COMPLETIONS, request("axyx", grammar), &twice("axyx")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_formats_are_refused_and_nobody_else_notices() {
    let service = Service::start(Setup::default()).await;
    for (more, param) in [
        (json!({ "response_format": { "type": "yaml" } }), "response_format.type"),
        (json!({ "structured_outputs": { "regex": "(" } }), "structured_outputs"),
        (json!({ "structured_outputs": { "grammar": "start: x" } }), "structured_outputs"),
        (json!({ "tools": [tool("f")], "tool_choice": "sometimes" }), "tool_choice"),
        (
            json!({
                "tools": [tool("f")], "tool_choice": "required",
                "response_format": { "type": "json_object" },
            }),
            "tool_choice",
        ),
    ] {
        let request = with(json!({ "messages": say("a") }), more);
        let answer = service.post(CHAT, &request).await;
        assert_eq!(answer.status, 400, "{request}");
        assert_eq!(answer.json()["error"]["param"], param, "{request}");
    }
    let schema = json!({ "type": "array", "minItems": "x" });
    let format = json!({ "type": "json_schema", "json_schema": { "schema": schema } });
    let request = json!({ "messages": say("a"), "response_format": format });
    assert_eq!(service.post(CHAT, &request).await.json()["error"]["param"], "response_format");
    let right = json!({ "messages": say("a"), "temperature": 0 });
    assert_eq!(service.post(CHAT, &right).await.status, 200);
}

/// A thousand definitions, each of which is the next.
fn chain() -> Value {
    let link = |at: usize| (format!("a{at}"), json!({ "$ref": format!("#/$defs/a{}", at + 1) }));
    let mut links: serde_json::Map<String, Value> = (0..1000).map(link).collect();
    links.insert("a1000".to_owned(), json!({ "type": "object" }));
    json!({ "$ref": "#/$defs/a0", "$defs": links })
}

#[tokio::test(flavor = "multi_thread")]
async fn deep_grammars_are_followed_and_long_ones_refused() {
    let serve = Serve { body_max: 1 << 20, ..Setup::default().serve };
    let service = Service::start(Setup { serve, context_max: 1 << 16, ..Setup::default() }).await;
    let request = json!({ "messages": say("{}"), "temperature": 0, "max_tokens": 100 });
    let rules: String = (0..1000).map(|at| format!("r{at}: r{} | \"a\"\n", at + 1)).collect();
    let rules = format!("start: r0\n{rules}r1000: \"{{}}\"");
    let schema = |schema: Value| {
        let named = json!({ "name": "n", "schema": schema });
        json!({ "type": "json_schema", "json_schema": named })
    };
    let called = |parameters: Value| {
        let function = json!({ "name": "f", "parameters": parameters });
        let tools = json!([{ "type": "function", "function": function }]);
        json!({ "tools": tools, "tool_choice": "required" })
    };
    for (more, status) in [
        (json!({ "response_format": schema(chain()) }), 200),
        (json!({ "structured_outputs": { "grammar": rules } }), 200),
        (called(chain()), 200),
        (json!({ "response_format": schema(json!({ "title": "x".repeat(1 << 16) })) }), 400),
        (json!({ "structured_outputs": { "grammar": rules.repeat(5) } }), 400),
        (called(json!({ "type": "object", "title": "x".repeat(1 << 16) })), 400),
    ] {
        let answer = service.post(CHAT, &with(request.clone(), more)).await;
        assert_eq!(answer.status, status, "{answer:?}");
        assert_eq!(answer.body.contains("bytes, and 65536 is the most"), status == 400);
    }
    service.until_idle().await;
}

/// Content, calls and finish reason, whole and streamed, in services with and without drafts.
async fn calls(request: Value) -> (String, Vec<(String, Value)>, String) {
    let mut found = Vec::new();
    for depth in [0, 3] {
        let service = Service::start(Setup { depth, context_max: 2048, ..Setup::default() }).await;
        let answer = service.post(CHAT, &request).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let choice = answer.json()["choices"][0].clone();
        let read = |call: &Value| {
            assert_eq!(call["type"], "function");
            assert!(call["id"].as_str().unwrap().starts_with("call_"));
            let function = &call["function"];
            let arguments = function["arguments"].as_str().unwrap();
            let arguments = serde_json::from_str(arguments).unwrap();
            (function["name"].as_str().unwrap().to_owned(), arguments)
        };
        let message = &choice["message"];
        let whole = message["tool_calls"].as_array().map(|it| it.iter().map(read).collect());
        let content = message["content"].as_str().unwrap_or_default().to_owned();
        let finish = choice["finish_reason"].as_str().unwrap().to_owned();
        found.push((content, whole.unwrap_or_default(), finish));

        let stream = with(request.clone(), json!({ "stream": true }));
        let answer = service.post(CHAT, &stream).await;
        let mut streamed = (String::new(), Vec::new(), String::new());
        for event in &answer.events()[..answer.events().len() - 1] {
            let event: Value = serde_json::from_str(event).unwrap();
            let choice = &event["choices"][0];
            streamed.0 += choice["delta"]["content"].as_str().unwrap_or_default();
            for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
                assert_eq!(call["index"], streamed.1.len());
                streamed.1.push(read(call));
            }
            streamed.2 += choice["finish_reason"].as_str().unwrap_or_default();
        }
        found.push(streamed);
    }
    assert!(found.windows(2).all(|two| two[0] == two[1]), "{found:?}");
    found.swap_remove(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_the_model_makes_by_itself() {
    let request = |text: &str, more: Value| {
        let tools = json!([tool("f"), tool("g")]);
        with(json!({ "messages": say(text), "temperature": 0, "tools": tools }), more)
    };
    let call = r#"<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>"#;
    let f = ("f".to_owned(), json!({ "a": 1 }));
    let found = calls(request(&format!("Well. {call}{call}"), json!({}))).await;
    assert_eq!(found, ("Well. ".to_owned(), vec![f.clone(), f.clone()], "tool_calls".to_owned()));
    let one = json!({ "parallel_tool_calls": false });
    let found = calls(request(&format!("{call}{call}"), one)).await;
    assert_eq!(found, (String::new(), vec![f], "tool_calls".to_owned()));
    let found = calls(request("No tools here.", json!({}))).await;
    assert_eq!(found, ("No tools here.".to_owned(), vec![], "stop".to_owned()));
    // Where calls are not wanted they are text, and the model is not told of tools.
    let found = calls(request(call, json!({ "tool_choice": "none" }))).await;
    assert_eq!(found, (call.to_owned(), vec![], "stop".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_the_model_must_make() {
    let request = |choice: Value| {
        let tools = json!([tool("f"), tool("g")]);
        json!({ "messages": say("Hello"), "temperature": 0, "tools": tools, "tool_choice": choice })
    };
    let named = json!({ "type": "function", "function": { "name": "g" } });
    let (content, found, finish) = calls(request(named)).await;
    assert_eq!((content.as_str(), finish.as_str()), ("", "tool_calls"));
    assert_eq!(found[0].0, "g");
    assert!(found[0].1["a"].is_i64(), "{found:?}");
    let (content, found, _) = calls(request(json!("required"))).await;
    assert_eq!(content, "");
    assert!(!found.is_empty() && found.iter().all(|it| it.1["a"].is_i64()), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_and_their_results_come_back_in_messages() {
    let service = Service::start(Setup { context_max: 2048, ..Setup::default() }).await;
    let messages = |arguments: &str| {
        let function = json!({ "name": "f", "arguments": arguments });
        json!([
            { "role": "user", "content": "?" },
            { "role": "assistant", "content": null, "tool_calls": [
                { "id": "1", "type": "function", "function": function },
            ] },
            { "role": "tool", "tool_call_id": "1", "content": "42" },
        ])
    };
    let request = json!({ "messages": messages("{\"a\": 1}"), "temperature": 0 });
    assert_eq!(service.post(CHAT, &request).await.json()["choices"][0]["message"]["content"], "42");
    let request = json!({ "messages": messages("{a"), "temperature": 0 });
    let answer = service.post(CHAT, &request).await;
    let param = "messages[1].tool_calls[0].function.arguments";
    assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!(param)));
}
