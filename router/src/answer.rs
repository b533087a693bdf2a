//! The only map from what went wrong to status, body and headers.

use bytes::Bytes;
use http::header::{
    ALLOW, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER,
    WWW_AUTHENTICATE,
};
use http::{HeaderMap, Response, StatusCode};

/// Why the router itself answers. The texts name no endpoint.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Problem {
    /// Everything is full.
    Overloaded {
        retry_after_s: u64,
    },
    /// No endpoint can serve.
    Down {
        retry_after_s: u64,
    },
    KeyRefused,
    BadTarget,
    BadPriority,
    BadMethod,
    BadUri,
    /// A length and a coding at once.
    BadFraming,
    BodyTooLarge,
    BodyBroken,
    BodyTimeout,
    Unreachable,
    ConnectTimeout,
    NoAnswer,
    FirstByteTimeout,
    TotalTimeout,
}

const INVALID: &str = "invalid_request_error";
const SERVER: &str = "server_error";
const UNAVAILABLE: &str = "service_unavailable_error";

impl Problem {
    /// One of each kind, for tables.
    pub const ALL: [Self; 16] = [
        Self::Overloaded { retry_after_s: 1 },
        Self::Down { retry_after_s: 1 },
        Self::KeyRefused,
        Self::BadTarget,
        Self::BadPriority,
        Self::BadMethod,
        Self::BadUri,
        Self::BadFraming,
        Self::BodyTooLarge,
        Self::BodyBroken,
        Self::BodyTimeout,
        Self::Unreachable,
        Self::ConnectTimeout,
        Self::NoAnswer,
        Self::FirstByteTimeout,
        Self::TotalTimeout,
    ];

    /// (status, type, code, message)
    fn row(self) -> (u16, &'static str, &'static str, &'static str) {
        match self {
            Self::Overloaded { .. } => (
                503,
                UNAVAILABLE,
                "server_is_overloaded",
                "All instances are busy and the queue is full or the wait was too long.",
            ),
            Self::Down { .. } => {
                (503, UNAVAILABLE, "no_instance_available", "No instance can serve at the moment.")
            }
            Self::KeyRefused => {
                (401, INVALID, "invalid_api_key", "The API key is missing or not known.")
            }
            Self::BadTarget => (
                400,
                INVALID,
                "invalid_target",
                "x-crossover-target must be auto, speculative or throughput.",
            ),
            Self::BadPriority => (
                400,
                INVALID,
                "invalid_priority",
                "x-crossover-priority must be high, normal or low.",
            ),
            Self::BadMethod => (405, INVALID, "method_not_allowed", "CONNECT is not served here."),
            Self::BadUri => (400, INVALID, "invalid_request_target", "The request names no path."),
            Self::BadFraming => (
                400,
                INVALID,
                "ambiguous_framing",
                "The request gives both Content-Length and Transfer-Encoding.",
            ),
            Self::BodyTooLarge => {
                (413, INVALID, "request_too_large", "The request's body is larger than allowed.")
            }
            Self::BodyBroken => {
                (400, INVALID, "request_body_incomplete", "The request's body broke off.")
            }
            Self::BodyTimeout => (
                408,
                INVALID,
                "request_body_timeout",
                "The request's body stood still for too long.",
            ),
            Self::Unreachable => {
                (502, SERVER, "upstream_unreachable", "The instance could not be reached.")
            }
            Self::ConnectTimeout => (
                504,
                SERVER,
                "upstream_connect_timeout",
                "The instance could not be reached in time.",
            ),
            Self::NoAnswer => {
                (502, SERVER, "upstream_closed", "The instance closed before it answered.")
            }
            Self::FirstByteTimeout => {
                (504, SERVER, "upstream_timeout", "The instance did not begin to answer in time.")
            }
            Self::TotalTimeout => {
                (504, SERVER, "request_timeout", "The request took longer than allowed.")
            }
        }
    }

    pub fn code(self) -> &'static str {
        self.row().2
    }

    pub fn status(self) -> StatusCode {
        StatusCode::from_u16(self.row().0).expect("rows hold valid codes")
    }

    pub fn body(self) -> Bytes {
        let (_, kind, code, message) = self.row();
        Bytes::from(format!(
            r#"{{"error":{{"message":"{message}","type":"{kind}","param":null,"code":"{code}"}}}}"#
        ))
    }

    /// The whole answer.
    pub fn answer<B>(self, body: impl FnOnce(Bytes) -> B) -> Response<B> {
        let bytes = self.body();
        let mut headers = HeaderMap::with_capacity(8);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(CONTENT_LENGTH, HeaderValue::from(bytes.len()));
        let code = HeaderName::from_static("x-crossover-error");
        headers.insert(code, HeaderValue::from_static(self.code()));
        match self {
            Self::Overloaded { retry_after_s } | Self::Down { retry_after_s } => {
                headers.insert(RETRY_AFTER, HeaderValue::from(retry_after_s));
            }
            Self::KeyRefused => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            Self::BadMethod => {
                headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD, POST, PUT, DELETE"));
            }
            // What is left must not be taken for the next request.
            Self::BadUri
            | Self::BadFraming
            | Self::BodyTooLarge
            | Self::BodyBroken
            | Self::BodyTimeout => {
                headers.insert(CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        let mut response = Response::new(body(bytes));
        *response.status_mut() = self.status();
        *response.headers_mut() = headers;
        response
    }
}

/// The router's own word on whether it is alive or ready.
pub fn state(is_good: bool) -> (StatusCode, &'static str) {
    if is_good {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready\n")
    }
}

#[cfg(test)]
mod tests;
