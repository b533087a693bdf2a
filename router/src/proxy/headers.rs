//! Which headers pass and which do not, in both directions: pure.

use http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, Entry, HOST,
    HeaderName, HeaderValue, TE, TRANSFER_ENCODING,
};
use http::uri::Authority;
use http::{HeaderMap, Uri};
use smallvec::SmallVec;

use crate::config::{EndpointSpec, Role};
use crate::queue::Priority;

pub const TARGET: HeaderName = HeaderName::from_static("x-crossover-target");
pub const PRIORITY: HeaderName = HeaderName::from_static("x-crossover-priority");
pub const ENDPOINT: HeaderName = HeaderName::from_static("x-crossover-endpoint");
pub const REASON: HeaderName = HeaderName::from_static("x-crossover-reason");
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
pub const TRACE: HeaderName = HeaderName::from_static("traceparent");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// What a client's headers ask of the router.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Wishes {
    pub target: Option<Role>,
    pub priority: Priority,
}

/// A value of one of the router's own headers that it does not know.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BadWish {
    Target,
    Priority,
}

/// Reads the router's own headers.
pub fn wishes(headers: &HeaderMap) -> Result<Wishes, BadWish> {
    let mut wishes = Wishes { target: None, priority: Priority::default() };
    if let Some(value) = headers.get(TARGET) {
        wishes.target = match value.to_str() {
            Ok("auto") => None,
            Ok(text) => Some(Role::parse(text).ok_or(BadWish::Target)?),
            Err(_) => return Err(BadWish::Target),
        };
    }
    if let Some(value) = headers.get(PRIORITY) {
        let text = value.to_str().map_err(|_| BadWish::Priority)?;
        wishes.priority = Priority::parse(text).ok_or(BadWish::Priority)?;
    }
    Ok(wishes)
}

/// What no hop passes on, in either direction.
const OF_ONE_HOP: &[&str] =
    &["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"];
/// What is for the router in a request.
const OF_REQUESTS: &[&str] =
    &["expect", "proxy-authorization", "te", "x-crossover-priority", "x-crossover-target"];
const OF_ANSWERS: &[&str] = &["proxy-authenticate"];

/// Removes what is only meant for the next hop, and `others`. One look at each name that is
/// there costs less than a search for each that may be.
fn strip(headers: &mut HeaderMap, others: &[&str]) {
    let is_unwanted = |it: &&HeaderName| {
        let name = it.as_str();
        OF_ONE_HOP.contains(&name) || others.contains(&name)
    };
    let unwanted: SmallVec<[HeaderName; 4]> = headers.keys().filter(is_unwanted).cloned().collect();
    if unwanted.contains(&CONNECTION) {
        let named: Vec<HeaderName> = headers
            .get_all(CONNECTION)
            .iter()
            .flat_map(|value| value.as_bytes().split(|it| *it == b','))
            .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
            .collect();
        for name in named {
            // Framing and address are not the sender's to take away.
            if ![CONTENT_LENGTH, HOST].contains(&name) {
                headers.remove(name);
            }
        }
    }
    // A length beside a coding is a lie or a trick; the body is framed anew either way.
    if unwanted.contains(&TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
    }
    for name in unwanted {
        headers.remove(name);
    }
}

/// The headers of a request as every endpoint gets them; `aim` adds what differs. `peer` is the
/// client's address.
pub fn to_upstream(headers: &mut HeaderMap, peer: &HeaderValue, is_tls: bool) {
    let wants_trailers =
        headers.get(TE).is_some_and(|it| it.as_bytes().split(|it| *it == b',').any(is_trailers));
    strip(headers, OF_REQUESTS);
    if wants_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    // Each hop may have added a line instead of a word; the order of lines is that of words.
    let given = headers.get_all(&FORWARDED_FOR).iter().chain([peer]);
    let chain = given.map(HeaderValue::as_bytes).collect::<Vec<_>>().join(&b", "[..]);
    let chain = HeaderValue::from_bytes(&chain).expect("made of values and a separator");
    headers.insert(FORWARDED_FOR, chain);
    if let Entry::Vacant(entry) = headers.entry(FORWARDED_PROTO) {
        entry.insert(HeaderValue::from_static(if is_tls { "https" } else { "http" }));
    }
}

fn is_trailers(coding: &[u8]) -> bool {
    coding.trim_ascii().eq_ignore_ascii_case(b"trailers")
}

/// What the client sent of the headers that depend on the endpoint.
#[derive(Clone, Debug, Default)]
pub struct Own {
    host: Option<HeaderValue>,
    authorization: Option<HeaderValue>,
}

impl Own {
    /// `uri` is the request's: HTTP/2 and absolute targets name the host there.
    pub fn of(headers: &HeaderMap, uri: &Uri) -> Self {
        let named = uri.authority().map(Authority::as_str);
        let named = named.and_then(|it| HeaderValue::try_from(it).ok());
        Self {
            host: named.or_else(|| headers.get(HOST).cloned()),
            authorization: headers.get(AUTHORIZATION).cloned(),
        }
    }

    /// The client's key was for the router: no endpoint sees it.
    pub fn without_key(self) -> Self {
        Self { authorization: None, ..self }
    }
}

/// Sets what depends on the endpoint, whatever an earlier attempt set.
pub fn aim(headers: &mut HeaderMap, spec: &EndpointSpec, own: &Own) {
    let host = own.host.as_ref().filter(|_| spec.host_preserved).unwrap_or(&spec.authority);
    headers.insert(HOST, host.clone());
    match spec.authorization.as_ref().or(own.authorization.as_ref()) {
        Some(value) => headers.insert(AUTHORIZATION, value.clone()),
        None => headers.remove(AUTHORIZATION),
    };
}

/// The headers of an answer as the client gets them.
pub fn to_client(headers: &mut HeaderMap) {
    strip(headers, OF_ANSWERS);
    if is_event_stream(headers) {
        // Proxies further out hold streams back unless they are told not to.
        if let Entry::Vacant(entry) = headers.entry(CACHE_CONTROL) {
            entry.insert(HeaderValue::from_static("no-cache, no-transform"));
        }
        if let Entry::Vacant(entry) = headers.entry(ACCEL_BUFFERING) {
            entry.insert(HeaderValue::from_static("no"));
        }
    }
}

pub fn is_event_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let head = &kind[..kind.len().min(17)];
    head.eq_ignore_ascii_case(b"text/event-stream")
}

/// The client's request id, if it is one that can be passed on and logged.
pub fn request_id(headers: &HeaderMap) -> Option<&HeaderValue> {
    let value = headers.get(REQUEST_ID)?;
    let is_plain = |it: &u8| it.is_ascii_graphic();
    let bytes = value.as_bytes();
    ((1..=128).contains(&bytes.len()) && bytes.iter().all(is_plain)).then_some(value)
}

#[cfg(test)]
mod tests;
