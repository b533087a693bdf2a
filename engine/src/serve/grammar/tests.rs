use super::*;
use crate::serve::choice::tests::Bytes;

/// Whether the grammar admits exactly this text: it may come, and may end there.
fn admits(grammar: &Grammar, text: &str) -> bool {
    let guides = Grammars::new(&Bytes).unwrap().guides(grammar, 1);
    let mut guide = guides.unwrap().pop().unwrap();
    for byte in text.bytes() {
        if guide.is_complete() {
            return false;
        }
        let token = TokenId(byte.into());
        let allowed = is_allowed(&mut *guide, token);
        assert_eq!(guide.advance(token), allowed, "mask and step agree on {byte}");
        if !allowed {
            return false;
        }
    }
    guide.is_complete() || is_allowed(&mut *guide, TokenId(0))
}

fn is_allowed(guide: &mut dyn Guide, token: TokenId) -> bool {
    let mut mask = [0; 8];
    guide.allow(&mut mask).unwrap();
    mask[(token.0 / 32) as usize] & 1 << (token.0 % 32) != 0
}

fn object() -> Grammar {
    Grammar::Json(json!({
        "type": "object",
        "properties": { "a": { "type": "integer" }, "b": { "enum": ["x", "y"] } },
        "required": ["a"],
        "additionalProperties": false,
    }))
}

#[test]
fn grammars_admit_what_they_say() {
    for (grammar, right, wrong) in [
        (object(), vec![r#"{"a": 1}"#, r#"{"a":12,"b":"y"}"#], vec![r#"{"a": "1"}"#, "{}", "1"]),
        (Grammar::Json(json!({ "type": "object" })), vec!["{}", r#"{"q": [1]}"#], vec!["[]", ""]),
        (Grammar::Regex("a+b".to_owned()), vec!["ab", "aaab"], vec!["b", "aba"]),
        (
            Grammar::Choice(vec!["yes".into(), "\"no\"\n".into()]),
            vec!["yes", "\"no\"\n"],
            vec!["no", "yess"],
        ),
        (Grammar::Lark("start: \"x\" y\ny: /[0-9]+/".to_owned()), vec!["x12"], vec!["12", "x"]),
    ] {
        for text in right {
            assert!(admits(&grammar, text), "{grammar:?} {text}");
        }
        for text in wrong {
            assert!(!admits(&grammar, text), "{grammar:?} {text}");
        }
    }
}

#[test]
fn a_guide_goes_back_as_it_went() {
    let mut guide = Grammars::new(&Bytes).unwrap().guides(&object(), 1).unwrap().pop().unwrap();
    let masks = |guide: &mut dyn Guide| {
        let mut mask = [0; 8];
        guide.allow(&mut mask).unwrap();
        mask
    };
    let text = br#"{"a": 1}"#;
    for at in 0..text.len() {
        let before = masks(&mut *guide);
        let ahead = text.len() - at;
        for byte in &text[at..] {
            assert!(guide.advance(TokenId((*byte).into())));
        }
        guide.rewind(u32::try_from(ahead).unwrap());
        assert_eq!(masks(&mut *guide), before);
        assert!(!guide.advance(TokenId(b'~'.into())));
        assert_eq!(masks(&mut *guide), before);
        assert!(guide.advance(TokenId(text[at].into())));
    }
    assert!(guide.is_complete() || guide.advance(TokenId(0)));
}

#[test]
fn wrong_grammars_are_refused_with_a_reason() {
    let grammars = Grammars::new(&Bytes).unwrap();
    for grammar in [
        Grammar::Json(json!({ "type": "number", "minimum": "x" })),
        Grammar::Json(json!(5)),
        Grammar::Regex("(".to_owned()),
        Grammar::Lark("start: missing".to_owned()),
    ] {
        let error = grammars.guides(&grammar, 1).unwrap_err();
        assert!(!error.is_empty() && !error.contains('\n'), "{grammar:?}: {error}");
    }
}

#[test]
fn fields_become_grammars() {
    let check = |body: Value, wanted: Result<Option<Grammar>, &str>| {
        let taken = take(&mut Fields::parse(body.to_string().as_bytes()).unwrap());
        let taken = taken.map(|it| it.map(|it| it.0));
        let taken = taken.map_err(|refusal| refusal.body()["error"]["param"].clone());
        assert_eq!(taken, wanted.map_err(Value::from), "{body}");
    };
    let format = |format: Value| json!({ "response_format": format });
    check(json!({}), Ok(None));
    check(format(json!({ "type": "text" })), Ok(None));
    let object = Grammar::Json(json!({ "type": "object" }));
    check(format(json!({ "type": "json_object" })), Ok(Some(object)));
    let schema = json!({ "type": "json_schema", "json_schema": { "name": "n", "schema": {} } });
    check(format(schema), Ok(Some(Grammar::Json(json!({})))));
    check(format(json!({ "type": "xml" })), Err("response_format.type"));
    check(format(json!({ "type": "json_schema" })), Err("response_format.json_schema"));
    check(format(json!("text")), Err("response_format"));
    let outputs = |outputs: Value| json!({ "structured_outputs": outputs });
    check(outputs(json!({ "regex": "a" })), Ok(Some(Grammar::Regex("a".to_owned()))));
    check(outputs(json!({ "json": "{}" })), Ok(Some(Grammar::Json(json!({})))));
    let choice = Grammar::Choice(vec!["a".to_owned()]);
    check(outputs(json!({ "choice": ["a"] })), Ok(Some(choice)));
    check(outputs(json!({ "choice": [] })), Err("structured_outputs.choice"));
    check(outputs(json!({ "choice": [1] })), Err("structured_outputs.choice[0]"));
    check(outputs(json!({})), Err("structured_outputs"));
    check(outputs(json!({ "regex": "a", "grammar": "b" })), Err("structured_outputs"));
    check(outputs(json!({ "xml": "a" })), Err("structured_outputs.xml"));
}
