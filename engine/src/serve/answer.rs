//! The only map from what happened to status, headers and body.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, SizeHint};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};

/// Of what a client sent, as much as is shown back to it.
const SHOWN_BYTES_MAX: usize = 1000;

/// The body of any answer. An error in it means that the connection must not end cleanly.
pub type Body = UnsyncBoxBody<Bytes, io::Error>;

/// Why a request gets no result. Variants are what the client does next; messages are the
/// client's, details for the log stay in the log.
#[derive(Clone, Debug, PartialEq)]
pub enum Refusal {
    /// The body is not JSON, or not an object.
    Malformed {
        message: String,
    },
    /// A field is missing, of a wrong type, out of bounds, unknown or not supported.
    Field {
        param: String,
        code: &'static str,
        message: String,
    },
    UnknownModel {
        model: String,
    },
    TooLong {
        param: &'static str,
        message: String,
    },
    UnknownPath {
        path: String,
    },
    WrongMethod {
        allowed: &'static str,
    },
    BodyTooLarge {
        bytes_max: usize,
    },
    BodyTooSlow,
    /// The model does not do this at all.
    Unsupported {
        message: &'static str,
    },
    Loading,
    Draining,
    /// The waiting room is full.
    Overloaded,
    /// The request took longer than it may.
    Expired {
        after: Duration,
    },
    /// The engine failed, or stops.
    Failed,
}

/// A refusal as it goes out.
struct Parts {
    status: StatusCode,
    kind: &'static str,
    code: &'static str,
    param: Option<String>,
    message: String,
    retry_after: Option<u32>,
}

impl Refusal {
    pub fn field(param: impl Into<String>, code: &'static str, message: impl Into<String>) -> Self {
        Self::Field { param: param.into(), code, message: message.into() }
    }

    fn parts(&self) -> Parts {
        let (status, kind, code) = self.class();
        let param = match self {
            Self::Field { param, .. } => Some(cut(param)),
            Self::UnknownModel { .. } => Some("model".to_owned()),
            Self::TooLong { param, .. } => Some((*param).to_owned()),
            _ => None,
        };
        let retry_after = match self {
            Self::Loading | Self::Draining => Some(2),
            Self::Overloaded => Some(1),
            _ => None,
        };
        Parts { status, kind, code, param, message: self.message(), retry_after }
    }

    fn class(&self) -> (StatusCode, &'static str, &'static str) {
        const INVALID: &str = "invalid_request_error";
        const SERVER: &str = "server_error";
        const UNAVAILABLE: &str = "service_unavailable_error";
        match self {
            Self::Malformed { .. } => (StatusCode::BAD_REQUEST, INVALID, "invalid_json"),
            Self::Field { code, .. } => (StatusCode::BAD_REQUEST, INVALID, code),
            Self::UnknownModel { .. } => (StatusCode::NOT_FOUND, INVALID, "model_not_found"),
            Self::TooLong { .. } => (StatusCode::BAD_REQUEST, INVALID, "context_length_exceeded"),
            Self::UnknownPath { .. } => (StatusCode::NOT_FOUND, INVALID, "unknown_url"),
            Self::WrongMethod { .. } => {
                (StatusCode::METHOD_NOT_ALLOWED, INVALID, "method_not_supported")
            }
            Self::BodyTooLarge { .. } => {
                (StatusCode::PAYLOAD_TOO_LARGE, INVALID, "request_too_large")
            }
            Self::BodyTooSlow => (StatusCode::REQUEST_TIMEOUT, INVALID, "request_timeout"),
            Self::Unsupported { .. } => (StatusCode::BAD_REQUEST, INVALID, "unsupported"),
            Self::Loading => (StatusCode::SERVICE_UNAVAILABLE, UNAVAILABLE, "model_loading"),
            Self::Draining => (StatusCode::SERVICE_UNAVAILABLE, UNAVAILABLE, "server_is_draining"),
            Self::Overloaded => {
                (StatusCode::SERVICE_UNAVAILABLE, UNAVAILABLE, "server_is_overloaded")
            }
            Self::Expired { .. } => (StatusCode::GATEWAY_TIMEOUT, SERVER, "deadline_exceeded"),
            Self::Failed => (StatusCode::INTERNAL_SERVER_ERROR, SERVER, "engine_failed"),
        }
    }

    fn message(&self) -> String {
        match self {
            Self::Malformed { message }
            | Self::Field { message, .. }
            | Self::TooLong { message, .. } => cut(message),
            Self::UnknownModel { model } => {
                format!("the model '{}' is not served here", cut(model))
            }
            Self::UnknownPath { path } => format!("there is nothing at {}", cut(path)),
            Self::WrongMethod { allowed } => format!("this path takes {allowed} only"),
            Self::BodyTooLarge { bytes_max } => {
                format!("the request body is larger than {bytes_max} bytes")
            }
            Self::BodyTooSlow => "the request body did not arrive in time".to_owned(),
            Self::Unsupported { message } => (*message).to_owned(),
            Self::Loading => "the model is still being loaded".to_owned(),
            Self::Draining => "the engine is stopping and takes no new requests".to_owned(),
            Self::Overloaded => "too many requests are waiting".to_owned(),
            Self::Expired { after } => {
                format!("the request was not done after {} seconds", after.as_secs_f32())
            }
            Self::Failed => "the engine failed".to_owned(),
        }
    }

    /// The code under which logs and metrics count it.
    pub fn code(&self) -> &'static str {
        self.class().2
    }

    pub fn status(&self) -> u16 {
        self.class().0.as_u16()
    }

    /// The error object, as the body of an answer or as an event within a stream.
    pub fn body(&self) -> Value {
        let Parts { kind, code, param, message, .. } = self.parts();
        json!({ "error": { "message": message, "type": kind, "param": param, "code": code } })
    }
}

/// The start of a text that may hold whatever a client sent.
fn cut(text: &str) -> String {
    let end = text.floor_char_boundary(SHOWN_BYTES_MAX);
    if end == text.len() { text.to_owned() } else { format!("{}...", &text[..end]) }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message())
    }
}

pub fn refuse(refusal: &Refusal) -> Response<Body> {
    let parts = refusal.parts();
    let mut answer = with_status(parts.status, "application/json", refusal.body().to_string());
    if let Some(seconds) = parts.retry_after {
        answer.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    if let Refusal::WrongMethod { allowed } = refusal {
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    }
    answer
}

/// Nothing but a status and what is said in headers.
pub fn empty(status: StatusCode) -> Response<Body> {
    whole(status, Bytes::new())
}

pub fn json(value: &Value) -> Response<Body> {
    with_status(StatusCode::OK, "application/json", value.to_string())
}

pub fn text(content_type: &'static str, text: String) -> Response<Body> {
    with_status(StatusCode::OK, content_type, text)
}

/// Server-sent events, each item one or more whole events.
pub fn events(items: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> Response<Body> {
    use futures_util::StreamExt;
    let frames = StreamBody::new(items.map(|item| item.map(Frame::data)));
    let mut answer = Response::new(UnsyncBoxBody::new(frames));
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    answer
}

/// The answer, with something that is dropped with its body.
pub fn holding<T: Unpin + Send + 'static>(answer: Response<Body>, held: T) -> Response<Body> {
    answer.map(|body| UnsyncBoxBody::new(Held { body, _held: held }))
}

struct Held<T> {
    body: Body,
    _held: T,
}

impl<T: Unpin> hyper::body::Body for Held<T> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn with_status(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Response<Body> {
    let mut answer = whole(status, body.into());
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

fn whole(status: StatusCode, body: Bytes) -> Response<Body> {
    let body = Full::new(body).map_err(|never| match never {});
    let mut answer = Response::new(UnsyncBoxBody::new(body));
    *answer.status_mut() = status;
    answer
}

#[cfg(test)]
mod tests;
