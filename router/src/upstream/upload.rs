//! A request's body on its way to an endpoint: passed on as it comes, counted, limited.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

/// How far the body has come; read by the request that waits for the answer.
#[derive(Debug, Default)]
pub struct Progress {
    pub bytes: AtomicU64,
    pub ended: AtomicBool,
    pub too_large: AtomicBool,
    pub broken: AtomicBool,
    /// The client has to send before anything can go on.
    pub starved: AtomicBool,
}

/// Why a body cannot be passed on.
#[derive(Clone, Copy, Debug)]
pub enum UploadError {
    TooLarge,
    Broken,
}

impl fmt::Display for UploadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooLarge => "the request's body is too large",
            Self::Broken => "the request's body broke off",
        })
    }
}

impl std::error::Error for UploadError {}

/// The body as the endpoint gets it.
#[derive(Debug)]
pub struct Upload {
    /// None for requests of the router itself, which have no body.
    body: Option<Incoming>,
    left: u64,
    progress: Arc<Progress>,
}

impl Upload {
    /// At most `bytes_max` bytes of `body`.
    pub fn new(body: Incoming, bytes_max: u64) -> Self {
        let progress = Arc::new(Progress::default());
        progress.ended.store(body.is_end_stream(), Ordering::Relaxed);
        Self { body: Some(body), left: bytes_max, progress }
    }

    pub fn empty() -> Self {
        Self { body: None, left: 0, progress: Arc::new(Progress::default()) }
    }

    pub fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.progress)
    }

    fn fail(&self, error: UploadError) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        let flag = match error {
            UploadError::TooLarge => &self.progress.too_large,
            UploadError::Broken => &self.progress.broken,
        };
        flag.store(true, Ordering::Relaxed);
        Poll::Ready(Some(Err(error)))
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = UploadError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let polled = Pin::new(body).poll_frame(cx);
        self.progress.starved.store(polled.is_pending(), Ordering::Relaxed);
        let frame = match ready!(polled) {
            Some(Ok(frame)) => frame,
            Some(Err(_)) => return self.fail(UploadError::Broken),
            None => {
                self.progress.ended.store(true, Ordering::Relaxed);
                return Poll::Ready(None);
            }
        };
        if let Some(data) = frame.data_ref() {
            let len = u64::try_from(data.len()).unwrap_or(u64::MAX);
            let Some(left) = self.left.checked_sub(len) else {
                return self.fail(UploadError::TooLarge);
            };
            self.left = left;
            self.progress.bytes.fetch_add(len, Ordering::Relaxed);
        }
        if self.is_end_stream() {
            self.progress.ended.store(true, Ordering::Relaxed);
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Incoming::size_hint)
    }
}
