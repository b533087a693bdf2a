//! Names for requests: the client's own where it sent them, fresh ones otherwise.

use http::{HeaderMap, HeaderValue};

use crate::proxy::headers::{REQUEST_ID, TRACE, request_id};

/// Where a request stands in a trace, as W3C Trace Context has it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Trace {
    pub trace: u128,
    /// The client's span; 0 if it began no trace.
    pub parent: u64,
    /// The router's own span.
    pub span: u64,
    pub flags: u8,
}

impl Trace {
    /// Goes on with the client's trace, or begins one that is sampled.
    fn follow(headers: &HeaderMap) -> Self {
        let span = fastrand::u64(1..);
        let given = headers.get(TRACE).and_then(|it| parse(it.to_str().ok()?));
        let (trace, parent, flags) = given.unwrap_or_else(|| (fastrand::u128(1..), 0, 1));
        Self { trace, parent, span, flags }
    }

    pub fn is_sampled(&self) -> bool {
        self.flags & 1 != 0
    }
}

/// Makes sure that a request has an id and a trace parent; gives the id.
pub fn mark(headers: &mut HeaderMap) -> HeaderValue {
    let id = request_id(headers).cloned().unwrap_or_else(|| {
        let mut text = *b"req-000000000000000000000000";
        write(&mut text[4..20], fastrand::u64(..).into());
        write(&mut text[20..], fastrand::u32(..).into());
        let fresh = HeaderValue::from_bytes(&text).expect("hexadecimal digits");
        headers.insert(REQUEST_ID, fresh.clone());
        fresh
    });
    if !headers.contains_key(TRACE) {
        headers.insert(TRACE, header(fastrand::u128(1..), fastrand::u64(1..), 0));
    }
    id
}

/// Puts the router's own span between the client's and the endpoint's.
pub fn step_in(headers: &mut HeaderMap) -> Trace {
    let trace = Trace::follow(headers);
    headers.insert(TRACE, header(trace.trace, trace.span, trace.flags));
    trace
}

fn header(trace: u128, span: u64, flags: u8) -> HeaderValue {
    let mut text = *b"00-00000000000000000000000000000000-0000000000000000-00";
    write(&mut text[3..35], trace);
    write(&mut text[36..52], span.into());
    write(&mut text[53..], flags.into());
    HeaderValue::from_bytes(&text).expect("hexadecimal digits")
}

/// Fills `text` with the last digits of `value` in hexadecimal.
fn write(text: &mut [u8], mut value: u128) {
    for digit in text.iter_mut().rev() {
        *digit = b"0123456789abcdef"[usize::try_from(value & 15).expect("below 16")];
        value >>= 4;
    }
}

/// (trace, parent, flags) of a header of version 00, or of a later one that begins like it.
fn parse(text: &str) -> Option<(u128, u64, u8)> {
    let mut parts = text.split('-');
    let (version, trace, parent, flags) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let fields = [version, trace, parent, flags];
    let is_plain = |it: &str| it.bytes().all(|it| matches!(it, b'0'..=b'9' | b'a'..=b'f'));
    let is_ended = version != "00" || parts.next().is_none();
    let is_framed = fields.map(str::len) == [2, 32, 16, 2] && version != "ff" && is_ended;
    if !is_framed || !fields.into_iter().all(is_plain) {
        return None;
    }
    let trace = u128::from_str_radix(trace, 16).ok().filter(|it| *it != 0)?;
    let parent = u64::from_str_radix(parent, 16).ok().filter(|it| *it != 0)?;
    Some((trace, parent, u8::from_str_radix(flags, 16).ok()?))
}

#[cfg(test)]
mod tests;
