use super::*;

/// A message as its template gets it.
fn shown(message: Value) -> Value {
    self::message(message, "messages[0]").unwrap()
}

#[test]
fn answers_that_come_back_with_every_field_say_no_more_than_they_did() {
    let plain = json!({ "role": "assistant", "content": "a" });
    for calls in [json!(null), json!([])] {
        let mut full = plain.clone();
        for name in ["refusal", "audio", "function_call", "name"] {
            full[name] = Value::Null;
        }
        full["tool_calls"] = calls;
        assert_eq!(shown(full), plain);
    }
    let empty = json!({ "role": "assistant", "content": "" });
    assert_eq!(shown(json!({ "role": "assistant", "content": null })), empty);
    assert_eq!(shown(json!({ "role": "assistant" })), empty);
    for (message, param) in [
        (json!({ "role": null }), "messages[0].role"),
        (json!({ "role": "assistant", "tool_calls": 5 }), "messages[0].tool_calls"),
    ] {
        let refusal = self::message(message.clone(), "messages[0]").unwrap_err();
        assert_eq!(refusal.body()["error"]["param"], param, "{message}");
    }
}

#[test]
fn calls_without_arguments_have_an_empty_object_of_them() {
    for (arguments, wanted) in [
        (json!(""), json!({})),
        (json!(" "), json!({})),
        (json!("null"), json!({})),
        (json!(null), json!({})),
        (json!("{}"), json!({})),
        (json!("{\"a\": 1}"), json!({ "a": 1 })),
        (json!({ "a": 1 }), json!({ "a": 1 })),
    ] {
        let function = json!({ "name": "f", "arguments": arguments });
        let calls = json!([{ "id": "1", "type": "function", "function": function }]);
        let message = shown(json!({ "role": "assistant", "tool_calls": calls }));
        assert_eq!(message["tool_calls"][0]["function"]["arguments"], wanted, "{arguments}");
    }
    let calls = json!([{ "type": "function", "function": { "name": "f" } }]);
    let message = shown(json!({ "role": "assistant", "tool_calls": calls }));
    assert_eq!(message["tool_calls"][0]["function"]["arguments"], json!({}));
}
