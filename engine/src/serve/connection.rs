//! One connection: which HTTP it speaks, and how long its client may be silent.

use std::convert::Infallible;
use std::fmt;
use std::io::{self, Cursor};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::Method;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::serve::CLOSE_MAX;
use crate::serve::service::Service;
use crate::serve::streams::{Streams, Watched};

const HEAD_BYTES_MAX: u32 = 64 << 10;
/// How long sent bytes may stay unacknowledged, or a piece of an answer without room for it, before
/// the client counts as gone.
const UNHEARD_MAX: Duration = Duration::from_secs(60);
/// What a client says first that speaks HTTP/2 (RFC 9113, section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Serves until the client leaves or `closing` is true, and then until its answers are sent, if any
/// may be a text; others are soon made again. A client has `head_max` to begin, and for the head of
/// each request.
pub async fn serve(
    mut stream: TcpStream,
    service: Arc<Service>,
    head_max: Duration,
    mut closing: watch::Receiver<bool>,
) {
    if let Err(error) = tune(&stream) {
        tracing::debug!(%error, "cannot tune a connection");
    }
    let has_posted = &AtomicBool::new(false);
    let answer = service_fn(move |request| {
        let service = Arc::clone(&service);
        has_posted.fetch_or(request.method() == Method::POST, Ordering::Relaxed);
        async move { Ok::<_, Infallible>(service.answer(request).await.map(Watched::new)) }
    });
    let mut closed = pin!(async move {
        // The sender lives as long as the server does.
        let _gone = closing.wait_for(|it| *it).await;
    });
    let begun = tokio::select! {
        begun = tokio::time::timeout(head_max, begin(&mut stream)) => begun,
        () = &mut closed => return,
    };
    let Ok(Ok(begun)) = begun else { return };
    let (rest, writer) = stream.into_split();
    let stream = tokio::io::join(Cursor::new(begun).chain(rest), writer);
    let builder = http(head_max);
    let mut serving = pin!(builder.serve_connection(TokioIo::new(stream), answer));
    let ended = tokio::select! {
        ended = &mut serving => ended,
        () = &mut closed => {
            serving.as_mut().graceful_shutdown();
            let grace = if has_posted.load(Ordering::Relaxed) { Duration::MAX } else { CLOSE_MAX };
            let Ok(ended) = tokio::time::timeout(grace, serving).await else { return };
            ended
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error = %Chain(&*error), "a connection ended early");
    }
}

/// The first bytes, as many as tell which HTTP it is. The library reads as many, and would wait
/// for them for ever.
async fn begin(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut begun = Vec::with_capacity(PREFACE.len());
    while begun.len() < PREFACE.len() && PREFACE.starts_with(&begun) {
        let left = u64::try_from(PREFACE.len() - begun.len()).expect("a few bytes");
        if (&mut *stream).take(left).read_buf(&mut begun).await? == 0 {
            break;
        }
    }
    Ok(begun)
}

fn http(head_max: Duration) -> auto::Builder<Streams> {
    let mut builder = auto::Builder::new(Streams { unheard_max: UNHEARD_MAX });
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(head_max)
        .max_buf_size(HEAD_BYTES_MAX as usize)
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(HEAD_BYTES_MAX)
        .max_concurrent_streams(1024)
        .keep_alive_interval(UNHEARD_MAX / 2)
        .keep_alive_timeout(UNHEARD_MAX / 2);
    builder
}

/// Small writes go out at once, and a client that vanished without a word is noticed.
fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new().with_time(UNHEARD_MAX).with_interval(UNHEARD_MAX / 4);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(UNHEARD_MAX))?;
    Ok(())
}

/// An error with its causes.
struct Chain<'a>(&'a (dyn std::error::Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}
