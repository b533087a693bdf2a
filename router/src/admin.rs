//! The operators' side, on its own port, thread and runtime: it answers while clients are served.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderValue, ORIGIN};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use self::history::History;
use crate::answer;
use crate::clock;
use crate::fleet::Fleet;

mod history;
mod status;

/// Connections of operators at once.
const CONNECTIONS_MAX: usize = 64;
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
const PAGE: &str = include_str!("admin/page.html");

/// What operators may ask and do.
#[derive(Debug)]
pub struct Admin {
    fleet: Arc<Fleet>,
    history: Mutex<History>,
}

/// Answers until dropped.
pub async fn serve(admin: Arc<Admin>, listener: TcpListener) {
    tokio::join!(accept(Arc::clone(&admin), listener), sample(admin));
}

async fn accept(admin: Arc<Admin>, listener: TcpListener) {
    let mut connections = JoinSet::new();
    loop {
        while CONNECTIONS_MAX <= connections.len() {
            connections.join_next().await;
        }
        while connections.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let admin = Arc::clone(&admin);
        connections.spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let answer =
                    admin.answer(request.method(), request.uri().path(), request.headers());
                async move { Ok::<_, Infallible>(answer) }
            });
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new());
            // An operator that leaves is no event.
            drop(builder.serve_connection(TokioIo::new(stream), service).await);
        });
    }
}

async fn sample(admin: Arc<Admin>) {
    let mut ticks = tokio::time::interval(SAMPLE_EVERY);
    loop {
        ticks.tick().await;
        let sample = history::Sample::take(&admin.fleet);
        admin.history.lock().unwrap_or_else(PoisonError::into_inner).push(sample);
    }
}

impl Admin {
    pub fn new(fleet: Arc<Fleet>) -> Self {
        Self { fleet, history: Mutex::new(History::default()) }
    }

    /// Answers one request.
    pub fn answer(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Response<Full<Bytes>> {
        if *method == Method::POST {
            return self.change(path, headers);
        }
        if !matches!(*method, Method::GET | Method::HEAD) {
            let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "GET, HEAD or POST\n");
            answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD, POST"));
            return answer;
        }
        match path {
            "/" => respond(StatusCode::OK, "text/html; charset=utf-8", PAGE.to_owned()),
            "/metrics" => {
                let all = self.fleet.metrics.text(&self.fleet, clock::now());
                respond(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", all)
            }
            "/livez" | "/healthz" => state(true),
            "/readyz" => state(self.fleet.is_ready()),
            "/fleet" => json(&status::fleet(&self.fleet)),
            "/policy" => json(&status::policy(&self.fleet, clock::now())),
            "/status" => {
                let history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
                let wall = clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default();
                json(&status::whole(&self.fleet, &history, clock::now(), wall))
            }
            "/config" => text(StatusCode::OK, &format!("{:#?}\n", self.fleet.live().config)),
            _ => text(StatusCode::NOT_FOUND, "no such page\n"),
        }
    }

    /// `POST /drain/NAME` keeps new requests away from an endpoint, `POST /resume/NAME` lets them
    /// come back. Pages of other origins may not ask for it.
    fn change(&self, path: &str, headers: &HeaderMap) -> Response<Full<Bytes>> {
        if !is_same_origin(headers) {
            return text(StatusCode::FORBIDDEN, "not from another origin\n");
        }
        let (draining, name) = match path.split_once('/').and_then(|it| it.1.split_once('/')) {
            Some(("drain", name)) => (true, name),
            Some(("resume", name)) => (false, name),
            _ => return text(StatusCode::NOT_FOUND, "POST /drain/NAME or /resume/NAME\n"),
        };
        let live = self.fleet.live_owned();
        let Some(member) = live.members.iter().find(|it| *it.spec.name == *name) else {
            return text(StatusCode::NOT_FOUND, "no endpoint of that name\n");
        };
        member.state.set_draining(draining);
        tracing::info!(endpoint = name, draining, "an operator asked");
        let left = member.state.work() + member.state.light();
        json(&serde_json::json!({ "endpoint": name, "draining": draining, "in_flight": left }))
    }
}

fn is_same_origin(headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(ORIGIN) else { return true };
    let host = headers.get(HOST).map(HeaderValue::as_bytes).unwrap_or_default();
    let origin = origin.as_bytes();
    origin.strip_prefix(b"http://").is_some_and(|it| it == host)
}

fn state(is_good: bool) -> Response<Full<Bytes>> {
    let (status, words) = answer::state(is_good);
    text(status, words)
}

fn json(value: &serde_json::Value) -> Response<Full<Bytes>> {
    respond(StatusCode::OK, "application/json", format!("{value}\n"))
}

fn text(status: StatusCode, words: &str) -> Response<Full<Bytes>> {
    respond(status, "text/plain; charset=utf-8", words.to_owned())
}

fn respond(status: StatusCode, kind: &'static str, words: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(words)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests;
