//! How a request at an endpoint ended: the word of metrics, access log and breaker.

use crate::fleet::breaker::Report;

#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Outcome {
    /// The whole answer was passed on.
    Complete,
    /// The client left before the end.
    ClientGone,
    /// The client stopped reading for too long.
    ClientStalled,
    /// The client's body broke off, stood still or was too large.
    ClientBody,
    /// No connection to the endpoint.
    ConnectFailed,
    /// The endpoint closed before it answered.
    NoAnswer,
    /// No first byte in time.
    FirstByteTimeout,
    /// The endpoint broke off in the middle of its answer.
    BrokenOff,
    /// No byte for too long in the middle of the answer.
    IdleTimeout,
    /// The whole took too long.
    TotalTimeout,
}

impl Outcome {
    pub const ALL: [Self; 10] = [
        Self::Complete,
        Self::ClientGone,
        Self::ClientStalled,
        Self::ClientBody,
        Self::ConnectFailed,
        Self::NoAnswer,
        Self::FirstByteTimeout,
        Self::BrokenOff,
        Self::IdleTimeout,
        Self::TotalTimeout,
    ];

    pub fn label(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::ClientGone => "client_gone",
            Self::ClientStalled => "client_stalled",
            Self::ClientBody => "client_body",
            Self::ConnectFailed => "connect_failed",
            Self::NoAnswer => "no_answer",
            Self::FirstByteTimeout => "first_byte_timeout",
            Self::BrokenOff => "broken_off",
            Self::IdleTimeout => "idle_timeout",
            Self::TotalTimeout => "total_timeout",
        }
    }

    /// What it says about the endpoint; `status` is its answer's, if there was one.
    pub fn report(self, status: Option<u16>) -> Report {
        match (self, status) {
            (Self::Complete, Some(500 | 502 | 504)) => Report::Failed,
            (Self::Complete, Some(200..=399)) => Report::Served,
            // A refusal or overload says nothing, nor does what a client did.
            (
                Self::Complete
                | Self::ClientGone
                | Self::ClientStalled
                | Self::ClientBody
                | Self::TotalTimeout,
                _,
            ) => Report::Unknown,
            (
                Self::ConnectFailed
                | Self::NoAnswer
                | Self::FirstByteTimeout
                | Self::BrokenOff
                | Self::IdleTimeout,
                _,
            ) => Report::Failed,
        }
    }
}
