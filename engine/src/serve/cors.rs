//! Which pages in browsers may ask and read: the CORS protocol (Fetch standard, section 3.3).

use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HeaderMap, HeaderValue, ORIGIN, VARY,
};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};

use crate::config::ANY_ORIGIN;
use crate::serve::answer::{self, Body};

const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST");
const ANY: HeaderValue = HeaderValue::from_static(ANY_ORIGIN);
/// Seconds for which a browser need not ask again: ten minutes.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");

/// The page that asks, as far as the answer tells.
#[derive(Clone, Debug, PartialEq)]
pub enum Page {
    /// Nobody told the engine of pages, and it tells nothing.
    Untold,
    /// It may read nothing, or the client is no browser.
    Other,
    /// It may read what is answered; the value says so.
    Allowed(HeaderValue),
}

impl Page {
    pub fn new(allowed: &[String], headers: &HeaderMap) -> Self {
        if allowed.is_empty() {
            return Self::Untold;
        }
        if allowed.iter().any(|it| it == ANY_ORIGIN) {
            return Self::Allowed(ANY);
        }
        let is_allowed = |origin: &&HeaderValue| {
            allowed.iter().any(|it| it.as_bytes().eq_ignore_ascii_case(origin.as_bytes()))
        };
        headers.get(ORIGIN).filter(is_allowed).cloned().map_or(Self::Other, Self::Allowed)
    }

    /// The answer where a browser asks whether this page may ask.
    pub fn preflight(&self, head: &Parts) -> Option<Response<Body>> {
        let asks = head.method == Method::OPTIONS
            && head.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
        if !asks || !matches!(self, Self::Allowed(_)) {
            return None;
        }
        let mut answer = answer::empty(StatusCode::NO_CONTENT);
        let headers = answer.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
        headers.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
        if let Some(wanted) = head.headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
            headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
        }
        Some(answer)
    }

    /// Tells the browser whether this page may read an answer.
    pub fn mark(self, headers: &mut HeaderMap) {
        let origin = match self {
            Self::Untold => return,
            Self::Other => None,
            Self::Allowed(origin) => Some(origin),
        };
        if origin != Some(ANY) {
            headers.append(VARY, HeaderValue::from_name(ORIGIN));
        }
        if let Some(origin) = origin {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, ANY);
        }
    }
}
