use std::process::Command;

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

/// A token that is only tried, as a draft is, may lead to where nothing can follow.
#[test]
fn a_dead_end_ahead_does_not_end_the_text() {
    let grammar = Grammar::Lark("start: \"a\"+ | \"a\"+ \"b\" DEAD\nDEAD: /x/ & /y/".to_owned());
    let mut guide = Grammars::new(&Bytes).unwrap().guides(&grammar, 1).unwrap().pop().unwrap();
    let [a, b] = [b'a', b'b'].map(|it| TokenId(it.into()));
    assert!(guide.advance(a) && guide.advance(a));
    for _ in 0..2 {
        assert!(guide.advance(b));
        assert!(guide.allow(&mut [0; 8]).is_err());
        guide.rewind(1);
        assert!(is_allowed(&mut *guide, a) && is_allowed(&mut *guide, b));
    }
    assert!(guide.advance(a));
    guide.rewind(2);
    assert!(guide.advance(a) && is_allowed(&mut *guide, b));
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

/// Links of a chain, as many as make a text of about `bytes`.
fn chain(bytes: usize, link: impl Fn(usize) -> String) -> (String, usize) {
    let mut text = String::new();
    for at in 0.. {
        if bytes < text.len() {
            return (text, at);
        }
        text += &link(at);
    }
    unreachable!("it grows")
}

/// Chains of rules, tokens and definitions, each of which leads to the next.
fn chains(bytes: usize) -> Vec<Grammar> {
    let (rules, end) = chain(bytes, |at| format!("r{at}: r{} | \"a\"\n", at + 1));
    let rules = Grammar::Lark(format!("start: r0\n{rules}r{end}: \"b\"\n"));
    let (plain, end) = chain(bytes, |at| format!("r{at}:r{}\n", at + 1));
    let plain = Grammar::Lark(format!("start: r0\n{plain}r{end}: \"b\"\n"));
    let (tokens, end) = chain(bytes, |at| format!("T{at}: T{} \"a\" | \"c\"\n", at + 1));
    let tokens = Grammar::Lark(format!("start: T0\n{tokens}T{end}: \"b\"\n"));
    let definition = |inner: &str| {
        let link = |at| {
            let next = json!({ "$ref": format!("#/$defs/{}", at + 1) });
            format!("\"{at}\":{},", inner.replace("NEXT", &next.to_string()))
        };
        let (links, end) = chain(bytes, link);
        format!("{{\"$ref\":\"#/$defs/0\",\"$defs\":{{{links}\"{end}\":{{}}}}}}")
    };
    let schemas =
        ["NEXT", r#"{"properties":{"a":NEXT}}"#, r#"{"allOf":[{},NEXT]}"#].map(definition);
    let called = Grammar::Lark(format!("start: \"x\" json\njson: %json {}", schemas[0]));
    let schemas = schemas.map(|it| Grammar::Json(serde_json::from_str(&it).unwrap()));
    schemas.into_iter().chain([rules, plain, tokens, called]).collect()
}

#[test]
#[ignore = "the test below runs it in a process of its own"]
fn the_longest_grammars() {
    let grammars = Grammars::new(&Bytes).unwrap();
    for grammar in chains(BYTES_MAX - 256) {
        assert!((BYTES_MAX - 256..=BYTES_MAX).contains(&grammar.bytes()));
        let mut guide = grammars.guides(&grammar, 1).unwrap().pop().unwrap();
        // This thread's stack is as large as that of the engine's loop.
        for _ in 0..20 {
            let mut mask = [0; 8];
            let first = |mask: &[u32]| (1..256).find(|it| mask[it / 32] & 1 << (it % 32) != 0);
            let next = guide.allow(&mut mask).ok().and_then(|()| first(&mask));
            let Some(token) = next else { break };
            if !guide.advance(TokenId(u32::try_from(token).unwrap())) {
                // Too many rules are open at once.
                break;
            }
        }
    }
}

/// A stack that overflows ends the process that it is in.
#[test]
fn the_longest_grammars_end_no_process() {
    let name = "serve::grammar::tests::the_longest_grammars";
    let mut own = Command::new(std::env::current_exe().unwrap());
    let ended = own.args(["--exact", name, "--ignored"]).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success() && said.contains("1 passed"), "{ended:?}");
}

#[test]
fn grammars_that_are_too_long_are_refused() {
    let grammars = Grammars::new(&Bytes).unwrap();
    let choice = Grammar::Choice(vec!["a".repeat(BYTES_MAX + 1)]);
    let regex = Grammar::Regex("a".repeat(BYTES_MAX + 1));
    for grammar in chains(BYTES_MAX).into_iter().chain([choice, regex]) {
        let error = grammars.guides(&grammar, 1).unwrap_err();
        assert!(error.ends_with("bytes, and 65536 is the most"), "{error}");
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
