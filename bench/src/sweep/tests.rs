use super::{is_local, parse_target};

#[test]
fn targets_are_named_addresses() {
    let target = parse_target("spec=http://127.0.0.1:8000/@speculative").unwrap();
    assert_eq!((target.name.as_str(), target.url.as_str()), ("spec", "http://127.0.0.1:8000"));
    assert_eq!(target.headers, [("x-crossover-target".to_owned(), "speculative".to_owned())]);
    assert!(parse_target("http://127.0.0.1:8000").is_err());
    assert!(parse_target("a=nonsense").is_err());
}

#[test]
fn only_this_machine_is_local() {
    assert!(is_local("http://127.0.0.1:8000"));
    assert!(is_local("http://[::1]:8000"));
    assert!(is_local("http://localhost"));
    assert!(!is_local("http://10.0.0.1"));
    assert!(!is_local("http://127.0.0.1.example.org"));
    assert!(!is_local("nonsense"));
}
