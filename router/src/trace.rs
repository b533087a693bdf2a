//! Names for requests: the client's own where it sent them, fresh ones otherwise.

use std::fmt::Write;

use http::{HeaderMap, HeaderValue};

use crate::proxy::headers::{REQUEST_ID, TRACE, request_id};

/// Makes sure that a request has an id and a trace parent; gives the id.
pub fn mark(headers: &mut HeaderMap) -> HeaderValue {
    let id = request_id(headers).cloned().unwrap_or_else(|| {
        let fresh = format!("req-{:016x}{:08x}", fastrand::u64(..), fastrand::u32(..));
        let fresh = HeaderValue::try_from(fresh).expect("hexadecimal digits");
        headers.insert(REQUEST_ID, fresh.clone());
        fresh
    });
    if !headers.contains_key(TRACE) {
        headers.insert(TRACE, fresh_trace());
    }
    id
}

/// A W3C trace parent that is not sampled: version, trace, span, flags.
fn fresh_trace() -> HeaderValue {
    let mut text = String::with_capacity(55);
    let (trace, span) = (fastrand::u128(1..), fastrand::u64(1..));
    write!(text, "00-{trace:032x}-{span:016x}-00").expect("writing to a string succeeds");
    HeaderValue::try_from(text).expect("hexadecimal digits")
}
