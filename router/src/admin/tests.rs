use super::*;

fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
    pairs.iter().map(|(k, v)| (k.parse().unwrap(), HeaderValue::from_static(v))).collect()
}

#[test]
fn pages_of_other_origins_change_nothing() {
    for (pairs, expected) in [
        (&[("host", "127.0.0.1:8001")][..], true),
        (&[("host", "127.0.0.1:8001"), ("origin", "http://127.0.0.1:8001")], true),
        (&[("host", "127.0.0.1:8001"), ("origin", "http://elsewhere.example")], false),
        (&[("host", "127.0.0.1:8001"), ("origin", "null")], false),
    ] {
        assert_eq!(is_same_origin(&headers(pairs)), expected, "{pairs:?}");
    }
}
