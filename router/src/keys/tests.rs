use http::HeaderValue;

use super::*;

#[test]
fn a_key_is_known_or_not() {
    let digests = digests("# the first\nsk-one\n\n  sk-two  \n");
    assert_eq!(digests.len(), 2);
    for (shown, expected) in [
        (Some("Bearer sk-one"), true),
        (Some("bearer sk-two"), true),
        (Some("Bearer  sk-two "), true),
        (Some("Bearer sk-three"), false),
        (Some("Bearer # the first"), false),
        (Some("Bearer "), false),
        (Some("Basic sk-one"), false),
        (Some("sk-one"), false),
        (Some(""), false),
        (None, false),
    ] {
        let mut headers = HeaderMap::new();
        if let Some(shown) = shown {
            headers.insert(AUTHORIZATION, HeaderValue::from_static(shown));
        }
        assert_eq!(admits(&digests, &headers), expected, "{shown:?}");
    }
}
