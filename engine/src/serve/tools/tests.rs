use super::*;
use crate::serve::choice::tests::Bytes;
use crate::serve::grammar::{Grammar, Grammars};

fn tool(name: &str) -> Value {
    let properties = json!({ "a": { "type": "integer" } });
    let parameters = json!({
        "type": "object", "properties": properties, "required": ["a"],
        "additionalProperties": false,
    });
    json!({ "type": "function", "function": { "name": name, "parameters": parameters } })
}

fn take(body: Value) -> Result<Offer, Refusal> {
    Offer::take(&mut Fields::parse(body.to_string().as_bytes()).unwrap())
}

#[test]
fn offers() {
    let none = take(json!({})).unwrap();
    assert!(none.is_empty());
    assert!(take(json!({ "tools": [tool("f")], "tool_choice": "none" })).unwrap().is_empty());
    let free = take(json!({ "tools": [tool("f")] })).unwrap();
    assert_eq!((free.force, free.several, free.tools.len()), (Force::Free, true, 1));
    let named = json!({ "type": "function", "function": { "name": "f" } });
    let offer = json!({ "tools": [tool("f")], "tool_choice": named, "parallel_tool_calls": false });
    let offer = take(offer).unwrap();
    assert_eq!((offer.force, offer.several), (Force::Named("f".to_owned()), false));
    for (body, param) in [
        (json!({ "tools": 5 }), "tools"),
        (json!({ "tools": [5] }), "tools[0]"),
        (json!({ "tools": [{ "type": "retrieval" }] }), "tools[0].type"),
        (json!({ "tools": [{ "type": "function" }] }), "tools[0].function"),
        (json!({ "tools": [tool("no good")] }), "tools[0].function.name"),
        (json!({ "tool_choice": "required" }), "tool_choice"),
        (json!({ "tools": [tool("f")], "tool_choice": "maybe" }), "tool_choice"),
        (json!({ "tools": [tool("g")], "tool_choice": named }), "tool_choice"),
        (json!({ "tools": [tool("g")], "tool_choice": {} }), "tool_choice.function"),
    ] {
        let refusal = take(body.clone()).unwrap_err().body();
        assert_eq!(refusal["error"]["param"], param, "{body}");
    }
}

#[test]
fn forced_calls_match_their_grammar() {
    let check = |offer: Value, form, text: &str, is_right: bool| {
        let offer = take(offer).unwrap();
        let grammar = Grammar::Lark(offer.grammar(form, &Bytes).unwrap());
        let guides = Grammars::new(&Bytes).unwrap().guides(&grammar, 1);
        let mut guide = guides.unwrap().pop().unwrap();
        let fits = text.bytes().all(|it| guide.advance(crate::batch::ids::TokenId(it.into())));
        assert_eq!(fits, is_right, "{form:?} {text}");
    };
    let any = json!({ "tools": [tool("f"), tool("g")], "tool_choice": "required" });
    let f = r#"{"name": "f", "arguments": {"a": 1}}"#;
    let g = r#"{"name": "g", "arguments": {"a": 2}}"#;
    let tagged = format!("<tool_call>\n{f}\n</tool_call>\n<tool_call>\n{g}\n</tool_call>");
    check(any.clone(), Form::Tagged, &tagged, true);
    check(any.clone(), Form::Tagged, f, false);
    check(any.clone(), Form::Bare, r#"{"name": "g", "parameters": {"a": 1}}"#, true);
    check(any, Form::Bare, r#"{"name": "g", "parameters": {"a": "1"}}"#, false);
    let mut lists = tool("h");
    lists["function"]["parameters"] = json!({
        "type": "object", "required": ["a"], "additionalProperties": false,
        "properties": { "a": { "$ref": "#/$defs/whole" } },
        "$defs": { "whole": { "type": "array", "items": { "$ref": "#" }, "maxItems": 1 } },
    });
    let mut named = lists.clone();
    named["function"]["parameters"]["$defs"]["whole"]["items"] = json!({ "$ref": "#node" });
    named["function"]["parameters"]["$anchor"] = json!("node");
    for tools in [json!([lists]), json!([tool("f"), lists]), json!([tool("f"), named])] {
        let nested = json!({ "tools": tools, "tool_choice": "required" });
        let h = r#"{"name": "h", "parameters": {"a": [{"a": []}]}}"#;
        check(nested.clone(), Form::Bare, h, true);
        check(nested, Form::Bare, &h.replace("[]", "[1]"), false);
    }
    for parameters in [None, Some(json!(null)), Some(json!({}))] {
        let mut free = tool("f");
        let function = free["function"].as_object_mut().unwrap();
        function.shift_remove("parameters");
        function.extend(parameters.map(|it| ("parameters".to_owned(), it)));
        let free = json!({ "tools": [free], "tool_choice": "required" });
        check(free.clone(), Form::Bare, r#"{"name": "f", "parameters": {"b": 1}}"#, true);
        check(free, Form::Bare, r#"{"name": "f", "parameters": 5}"#, false);
    }
    let named = json!({ "type": "function", "function": { "name": "f" } });
    let named = json!({ "tools": [tool("f"), tool("g")], "tool_choice": named });
    check(named.clone(), Form::Tagged, &format!("<tool_call>\n{f}\n</tool_call>"), true);
    check(named, Form::Tagged, &format!("<tool_call>\n{g}\n</tool_call>"), false);
    let free = take(json!({ "tools": [tool("f")] })).unwrap();
    assert_eq!(free.grammar(Form::Tagged, &Bytes), None);
}
