//! One connection to an endpoint, run by the request that uses it.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use http::header::HOST;
use http::uri::{Authority, Scheme};
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper_util::rt::TokioIo;

use super::Transport;
use super::upload::Upload;
use crate::serve::HEADERS_INLINE;

/// A connection to an endpoint.
///
/// Over HTTP/1 nothing runs it but the request that holds it, so dropping it closes the socket
/// at once, whatever was going on. Over HTTP/2 requests share a connection that runs by itself,
/// and dropping one resets its stream.
#[derive(Debug)]
pub enum Wire<Io: Transport> {
    Http1 {
        sender: http1::SendRequest<Upload>,
        /// None once it has ended.
        connection: Option<Box<http1::Connection<TokioIo<Io>, Upload>>>,
    },
    Http2 {
        sender: http2::SendRequest<Upload>,
        scheme: Scheme,
    },
}

/// Why there is no answer.
#[derive(Debug)]
pub enum SendError {
    /// Nothing was written; the request comes back.
    Unsent(Box<Request<Upload>>),
    /// Something was written, and then the connection ended or spoke no HTTP.
    Sent(hyper::Error),
}

impl<Io: Transport> Wire<Io> {
    pub async fn http1(io: Io, header_bytes_max: u32, headers_max: u32) -> hyper::Result<Self> {
        let size = |it: u32| usize::try_from(it).unwrap_or(usize::MAX);
        let mut builder = http1::Builder::new();
        builder.max_buf_size(size(header_bytes_max).max(8192));
        if headers_max != HEADERS_INLINE {
            builder.max_headers(size(headers_max));
        }
        let (sender, connection) = builder.handshake(TokioIo::new(io)).await?;
        Ok(Self::Http1 { sender, connection: Some(Box::new(connection)) })
    }

    /// Moves bytes; to be called whenever something waits for this connection.
    pub fn drive(&mut self, cx: &mut Context<'_>) {
        if let Self::Http1 { connection, .. } = self {
            drive(connection, cx);
        }
    }

    /// Can it take a request? Looks at the socket first, to see whether it has been closed.
    pub fn is_usable(&mut self, cx: &mut Context<'_>) -> bool {
        self.drive(cx);
        match self {
            Self::Http1 { sender, connection } => connection.is_some() && sender.is_ready(),
            Self::Http2 { sender, .. } => !sender.is_closed(),
        }
    }

    /// Another handle to the same connection, where requests share one.
    pub fn share(&self) -> Option<Self> {
        match self {
            Self::Http1 { .. } => None,
            Self::Http2 { sender, scheme } => {
                Some(Self::Http2 { sender: sender.clone(), scheme: scheme.clone() })
            }
        }
    }

    /// Sends a request and waits for the head of its answer. `check` is asked at each turn and
    /// may end the wait.
    pub async fn send<T>(
        &mut self,
        mut request: Request<Upload>,
        check: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Result<Result<Response<Incoming>, SendError>, T> {
        match self {
            Self::Http1 { sender, connection } => {
                let answer = sender.try_send_request(request);
                wait(answer, |cx| drive(connection, cx), check).await
            }
            Self::Http2 { sender, scheme } => {
                name_authority(&mut request, scheme);
                // On the heap, so that requests over HTTP/1 need not have room for it.
                Box::pin(wait(sender.try_send_request(request), |_| {}, check)).await
            }
        }
    }
}

/// HTTP/2 names the host beside the path instead of in a header.
fn name_authority(request: &mut Request<Upload>, scheme: &Scheme) {
    *request.version_mut() = http::Version::HTTP_2;
    // Without one it has been here before.
    let Some(host) = request.headers_mut().remove(HOST) else { return };
    let mut parts = request.uri().clone().into_parts();
    parts.scheme = Some(scheme.clone());
    parts.authority = Authority::try_from(host.as_bytes()).ok();
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
}

fn drive<Io: Transport>(
    connection: &mut Option<Box<http1::Connection<TokioIo<Io>, Upload>>>,
    cx: &mut Context<'_>,
) {
    if let Some(it) = connection
        && Pin::new(it).poll(cx).is_ready()
    {
        *connection = None;
    }
}

type Answer = Result<Response<Incoming>, TrySendError<Request<Upload>>>;

async fn wait<T>(
    answer: impl Future<Output = Answer>,
    mut drive: impl FnMut(&mut Context<'_>),
    mut check: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Result<Result<Response<Incoming>, SendError>, T> {
    let mut answer = pin!(answer);
    poll_fn(|cx| {
        drive(cx);
        if let Poll::Ready(result) = answer.as_mut().poll(cx) {
            return Poll::Ready(Ok(result.map_err(|mut error| match error.take_message() {
                Some(request) => SendError::Unsent(Box::new(request)),
                None => SendError::Sent(error.into_error()),
            })));
        }
        check(cx).map(Err)
    })
    .await
}
