use super::{check, is_local, parse};

#[test]
fn targets_are_named_addresses() {
    let target = parse("spec=http://127.0.0.1:8000/@speculative").unwrap();
    assert_eq!((target.name.as_str(), target.url.as_str()), ("spec", "http://127.0.0.1:8000"));
    assert_eq!(target.headers, [("x-crossover-target".to_owned(), "speculative".to_owned())]);
    assert!(parse("http://127.0.0.1:8000").is_err());
    assert!(parse("a=nonsense").is_err());
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

#[test]
fn remote_targets_need_a_word() {
    let target = parse("a=http://10.0.0.1").unwrap();
    assert!(check(&target, false).unwrap_err().contains("--allow-remote"));
    assert!(check(&target, true).is_ok());
}

#[test]
fn what_no_request_could_reach_is_refused() {
    let why = parse("a=http://127.0.0.1:8000@speculativ").unwrap_err();
    assert_eq!(why, "\"speculativ\" is not a role; it is speculative or throughput");
    assert!(parse("a=https://127.0.0.1:8000").unwrap_err().ends_with("speaks http only"));
}
