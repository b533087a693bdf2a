use proptest::prelude::*;
use serde_json::json;

use super::*;

fn fields(value: Value) -> Fields {
    Fields::parse(value.to_string().as_bytes()).unwrap()
}

fn message<T: std::fmt::Debug>(found: Result<T, Refusal>) -> String {
    found.unwrap_err().to_string()
}

#[test]
fn bodies_that_are_no_objects() {
    let check = |body: &str, start: &str| {
        let message = message(Fields::parse(body.as_bytes()));
        assert!(message.starts_with(start), "{message}");
    };
    check("", "the request has no body");
    check("[1]", "the body must be an object, not a list");
    check("{\"a\": ", "the body is not valid JSON: EOF while parsing");
    check("{\"a\": 1} x", "the body is not valid JSON: trailing characters");
    check(&"[".repeat(10_000), "the body is not valid JSON: recursion limit");
}

#[test]
fn wrong_types_name_the_field() {
    let mut it = fields(json!({"a": "1", "b": 1, "c": [], "d": {}, "e": 1.5, "f": 7, "g": true}));
    assert_eq!(message(it.whole("a", 0..=5)), "a must be a whole number from 0 to 5, not a string");
    assert_eq!(message(it.string("b")), "b must be a string, not a number");
    assert_eq!(message(it.boolean("c")), "c must be true or false, not a list");
    assert_eq!(message(it.list("d", 3)), "d must be a list, not an object");
    let whole = message(it.whole("e", 0..=5));
    assert_eq!(whole, "e must be a whole number from 0 to 5, and is 1.5");
    assert_eq!(message(it.number("f", 0.0..=5.0)), "f must be from 0 to 5, and is 7");
    assert_eq!(
        message(it.number("g", 0.0..=5.0)),
        "g must be a number from 0 to 5, not a truth value"
    );
}

#[test]
fn numbers_in_other_clothes() {
    let mut it = fields(json!({"a": 3.0, "b": null, "c": -0.0, "d": 1e300}));
    assert_eq!(it.whole("a", 0..=5), Ok(Some(3)));
    assert_eq!(it.whole("b", 0..=5), Ok(None));
    assert_eq!(it.whole("c", 0..=5), Ok(Some(0)));
    assert!(it.whole("d", 0..=5).is_err());
}

#[test]
fn what_is_left_is_named_with_its_path() {
    let mut it = fields(json!({"options": {"known": 1, "other": 2}, "more": 3}));
    let mut inner = it.object("options").unwrap().unwrap();
    assert_eq!(inner.whole("known", 0..=9), Ok(Some(1)));
    assert_eq!(inner.left(), ["options.other"]);
    assert_eq!(it.left(), ["more"]);
}

#[test]
fn neutral_values_pass() {
    let mut it = fields(json!({"suffix": "", "best": 2}));
    assert_eq!(it.refuse("suffix", &[json!("")]), Ok(()));
    assert_eq!(it.refuse("absent", &[]), Ok(()));
    assert_eq!(message(it.refuse("best", &[json!(1)])), "best is not supported by this engine");
}

proptest! {
    #[test]
    fn no_bytes_panic(body in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _judged = Fields::parse(&body);
    }
}
