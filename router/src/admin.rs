//! The operators' side, on its own port, thread and runtime: it answers while clients are served.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::answer;
use crate::clock;
use crate::fleet::Fleet;

mod status;

/// Connections of operators at once.
const CONNECTIONS_MAX: usize = 64;

/// What operators may ask about.
#[derive(Debug)]
pub struct Admin {
    pub fleet: Arc<Fleet>,
}

/// Answers until dropped.
pub async fn serve(admin: Arc<Admin>, listener: TcpListener) {
    let mut connections = JoinSet::new();
    loop {
        while CONNECTIONS_MAX <= connections.len() {
            connections.join_next().await;
        }
        while connections.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            continue;
        };
        let admin = Arc::clone(&admin);
        connections.spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let response = admin.answer(request.method(), request.uri().path());
                async move { Ok::<_, Infallible>(response) }
            });
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new());
            // An operator that leaves is no event.
            drop(builder.serve_connection(TokioIo::new(stream), service).await);
        });
    }
}

impl Admin {
    fn answer(&self, method: &Method, path: &str) -> Response<Full<Bytes>> {
        match (method, path) {
            (&Method::GET, "/metrics") => {
                let text = self.fleet.metrics.text(&self.fleet, clock::now());
                respond(StatusCode::OK, "text/plain; version=0.0.4", text)
            }
            (&Method::GET, "/livez" | "/healthz") => state(true),
            (&Method::GET, "/readyz") => state(self.fleet.is_ready()),
            (&Method::GET, "/fleet") => json(&status::fleet(&self.fleet)),
            (&Method::GET, "/policy") => json(&status::policy(&self.fleet, clock::now())),
            (&Method::GET, "/config") => {
                let text = format!("{:#?}\n", self.fleet.live().config);
                respond(StatusCode::OK, "text/plain", text)
            }
            _ => respond(StatusCode::NOT_FOUND, "text/plain", "no such page\n".to_owned()),
        }
    }
}

fn state(is_good: bool) -> Response<Full<Bytes>> {
    let (status, text) = answer::state(is_good);
    respond(status, "text/plain", text.to_owned())
}

fn json(value: &serde_json::Value) -> Response<Full<Bytes>> {
    respond(StatusCode::OK, "application/json", format!("{value}\n"))
}

fn respond(status: StatusCode, kind: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
