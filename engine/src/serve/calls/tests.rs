use proptest::prelude::*;

use super::*;

/// Reads a text that comes in `pieces`: what is shown, and the calls.
fn read(form: Form, pieces: &[&str]) -> (String, Vec<(String, String)>) {
    let mut reader = CallReader::new(form, true);
    let mut text = String::new();
    let mut calls = Vec::new();
    let mut keep = |read: Read| {
        text += &read.text;
        calls.extend(read.calls.into_iter().map(|it| (it.name, it.arguments)));
    };
    for piece in pieces {
        keep(reader.push(piece));
    }
    keep(reader.finish());
    assert_eq!(reader.calls as usize, calls.len());
    (text, calls)
}

const ONE: &str = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";

#[test]
fn tagged_calls() {
    let check = |text: &str, shown: &str, names: &[&str]| {
        let (text_shown, calls) = read(Form::Tagged, &[text]);
        assert_eq!(text_shown, shown, "{text}");
        assert_eq!(calls.iter().map(|it| &*it.0).collect::<Vec<_>>(), names, "{text}");
    };
    check("plain", "plain", &[]);
    check(ONE, "", &["f"]);
    check(&format!("Let me see. {ONE}"), "Let me see. ", &["f"]);
    check(&format!("{ONE}\n{ONE}\n"), "", &["f", "f"]);
    check(&format!("{ONE}\nDone."), "\nDone.", &["f"]);
    check("a < b <tool", "a < b <tool", &[]);
    // What is no call is text.
    check("<tool_call>what</tool_call>!", "<tool_call>what</tool_call>!", &[]);
    check("<tool_call>{\"name\": 5}", "<tool_call>{\"name\": 5}", &[]);
    // A model that stops without closing has called all the same.
    check("<tool_call>{\"name\": \"f\"}", "", &["f"]);
    let (_, calls) = read(Form::Tagged, &[ONE]);
    assert_eq!(calls, [("f".to_owned(), "{\"a\":1}".to_owned())]);
}

#[test]
fn bare_calls() {
    let check = |text: &str, shown: &str, names: &[&str]| {
        let (text_shown, calls) = read(Form::Bare, &[text]);
        assert_eq!(text_shown, shown, "{text}");
        assert_eq!(calls.iter().map(|it| &*it.0).collect::<Vec<_>>(), names, "{text}");
    };
    let one = "{\"name\": \"f\", \"parameters\": {\"a\": 1}}";
    check("plain", "plain", &[]);
    check(one, "", &["f"]);
    check(&format!("<|python_tag|>{one}"), "", &["f"]);
    check(&format!("\n{one}; {one}"), "", &["f", "f"]);
    check("{\"a\": 1}", "{\"a\": 1}", &[]);
    check(&format!("{one} and more"), &format!("{one} and more"), &[]);
    check(&format!("I call {one}"), &format!("I call {one}"), &[]);
    check("<|python", "<|python", &[]);
}

#[test]
fn only_one_call_where_no_more_are_wanted() {
    let mut reader = CallReader::new(Form::Tagged, false);
    assert_eq!(reader.push(&format!("{ONE}{ONE}")).calls.len(), 1);
    assert_eq!(reader.push(ONE).calls.len() + reader.finish().calls.len(), 0);
    assert_eq!(reader.calls, 1);
}

proptest! {
    /// However the text is cut, what is read is the same.
    #[test]
    fn cuts_do_not_show(
        parts in proptest::collection::vec(0..5_usize, 0..4),
        cuts in proptest::collection::vec(any::<bool>(), 400),
        is_bare in any::<bool>(),
    ) {
        let bare = "{\"name\":\"g\",\"parameters\":{}}";
        let texts = [ONE, " é ", "<tool_call>x</tool_call>", "<tool", bare];
        let text: String = parts.iter().map(|it| texts[*it]).collect();
        let form = if is_bare { Form::Bare } else { Form::Tagged };
        let mut pieces = vec![String::new()];
        for (character, cut) in text.chars().zip(cuts) {
            if cut {
                pieces.push(String::new());
            }
            pieces.last_mut().unwrap().push(character);
        }
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        let whole: String = pieces.concat();
        prop_assert_eq!(read(form, &pieces), read(form, &[&whole]));
    }
}
