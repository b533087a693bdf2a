use std::collections::BTreeSet;
use std::fmt::Write;

use super::*;

#[test]
fn the_whole_map() {
    let mut table = String::new();
    for problem in Problem::ALL {
        let (status, kind, code, _) = problem.row();
        let answer = problem.answer(|bytes| bytes);
        let has = |name: HeaderName| answer.headers().contains_key(name);
        let extra: String = [RETRY_AFTER, WWW_AUTHENTICATE, ALLOW, CONNECTION]
            .into_iter()
            .filter(|it| has(it.clone()))
            .map(|it| format!(" {it}"))
            .collect();
        writeln!(table, "{status} {kind} {code}{extra}").unwrap();
    }
    let expected = "\
503 service_unavailable_error server_is_overloaded retry-after
503 service_unavailable_error no_instance_available retry-after
401 invalid_request_error invalid_api_key www-authenticate
400 invalid_request_error invalid_target
400 invalid_request_error invalid_priority
405 invalid_request_error method_not_allowed allow
400 invalid_request_error invalid_request_target connection
400 invalid_request_error ambiguous_framing connection
413 invalid_request_error request_too_large connection
400 invalid_request_error request_body_incomplete connection
408 invalid_request_error request_body_timeout connection
502 server_error upstream_unreachable
504 server_error upstream_connect_timeout
502 server_error upstream_closed
504 server_error upstream_timeout
504 server_error request_timeout
";
    assert_eq!(table, expected);
}

#[test]
fn bodies_are_what_clients_of_openai_read() {
    let mut codes = BTreeSet::new();
    for problem in Problem::ALL {
        let answer = problem.answer(|bytes| bytes);
        let length = answer.headers()[CONTENT_LENGTH].to_str().unwrap().parse::<usize>();
        assert_eq!(length, Ok(answer.body().len()));
        let body: serde_json::Value = serde_json::from_slice(answer.body()).unwrap();
        let error = body["error"].as_object().unwrap();
        let mut keys: Vec<_> = error.keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["code", "message", "param", "type"]);
        assert!(error["message"].as_str().unwrap().ends_with('.'));
        codes.insert(error["code"].as_str().unwrap().to_owned());
    }
    assert_eq!(codes.len(), Problem::ALL.len());
}

#[test]
fn retry_after_is_a_short_whole_number() {
    let answer = Problem::Overloaded { retry_after_s: 7 }.answer(|bytes| bytes);
    assert_eq!(answer.headers()[RETRY_AFTER], "7");
}

#[test]
fn the_readme_names_every_code() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    for problem in Problem::ALL {
        let words = format!("{} `{}`", problem.row().0, problem.code());
        assert!(readme.contains(&words), "{words}");
    }
}
