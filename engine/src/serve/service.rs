//! What stands at which path.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{EXPECT, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, Version};
use serde_json::{Value, json};

use crate::clock;
use crate::config::Serve;
use crate::serve::answer::{self, Body, Refusal};
use crate::serve::cors::Page;
use crate::serve::fields::{self, Fields};
use crate::serve::gate::{Gate, Pass};
use crate::serve::generate::{Order, generate};
use crate::serve::ready::Ready;
use crate::serve::record::Record;
use crate::serve::wire::LoadReport;
use crate::serve::writer::{Head, Shape};
use crate::serve::{chat, completions, tokens};

/// Time for a request's body to arrive.
const BODY_MAX: Duration = Duration::from_secs(60);
/// Time for the rest of a body that was refused before it had come.
const REST_MAX: Duration = Duration::from_secs(10);
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const IGNORED_FIELDS: HeaderName = HeaderName::from_static("x-crossover-ignored-fields");
const REQUEST_ID_BYTES_MAX: usize = 128;
const IGNORED_BYTES_MAX: usize = 1024;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const GET: &str = "GET";
const POST: &str = "POST";

#[derive(Debug)]
pub struct Service {
    options: Serve,
    ready: OnceLock<Arc<Ready>>,
    is_draining: AtomicBool,
    pub gate: Gate,
}

impl Service {
    pub fn new(options: Serve) -> Self {
        let (ready, gate) = (OnceLock::new(), Gate::default());
        Self { options, ready, is_draining: AtomicBool::new(false), gate }
    }

    /// The model is loaded.
    pub fn set_ready(&self, ready: Arc<Ready>) {
        self.ready.set(ready).expect("a model is loaded once");
    }

    /// From now on requests are refused.
    pub fn drain(&self) {
        self.is_draining.store(true, Ordering::Release);
    }

    fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Acquire)
    }

    /// What requests need, if they can be served.
    fn ready(&self) -> Result<&Arc<Ready>, Refusal> {
        match self.ready.get() {
            _ if self.is_draining() => Err(Refusal::Draining),
            None => Err(Refusal::Loading),
            Some(ready) => Ok(ready),
        }
    }

    pub async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let arrival = clock::now();
        let (head, mut body) = request.into_parts();
        let id = request_id(&head);
        let page = Page::new(&self.options.allowed_origins, &head.headers);
        let routed = match page.preflight(&head) {
            Some(answer) => Ok(answer),
            None => self.route(&head, &mut body, id.clone(), arrival).await,
        };
        let mut answer = match routed {
            Ok(answer) => answer,
            Err(refusal) => {
                if let Some(ready) = self.ready.get() {
                    ready.metrics.requests.refused.with_label_values(&[refusal.code()]).inc();
                }
                if refusal != Refusal::BodyTooSlow {
                    take_rest(&head, body).await;
                }
                answer::refuse(&refusal)
            }
        };
        if let Some(id) = id
            && let Ok(id) = HeaderValue::from_str(&id)
        {
            answer.headers_mut().insert(REQUEST_ID, id);
        }
        page.mark(answer.headers_mut());
        answer
    }

    async fn route(
        &self,
        head: &Parts,
        body: &mut Incoming,
        id: Option<String>,
        arrival: Instant,
    ) -> Result<Response<Body>, Refusal> {
        let path = head.uri.path().to_owned();
        let wanted = match path.as_str() {
            "/v1/chat/completions"
            | "/v1/completions"
            | "/v1/embeddings"
            | "/tokenize"
            | "/detokenize"
            | "/abort_request" => POST,
            "/health" | "/ping" | "/readyz" | "/healthz" | "/livez" | "/load" | "/metrics"
            | "/version" | "/server_info" | "/debug/steps" | "/v1/models" => GET,
            _ if path.starts_with("/v1/models/") => GET,
            _ => return Err(Refusal::UnknownPath { path }),
        };
        let is_get = head.method == Method::GET || head.method == Method::HEAD;
        match wanted {
            GET if is_get => self.look(&path),
            POST if head.method == Method::POST => self.act(body, &path, id, arrival).await,
            _ => Err(Refusal::WrongMethod { allowed: wanted }),
        }
    }

    /// What can be read at any time.
    fn look(&self, path: &str) -> Result<Response<Body>, Refusal> {
        match path {
            "/healthz" | "/livez" => return Ok(answer::json(&json!({ "status": "alive" }))),
            "/version" => {
                return Ok(answer::json(&json!({ "version": env!("CARGO_PKG_VERSION") })));
            }
            "/health" | "/ping" | "/readyz" => {
                self.ready()?;
                return Ok(answer::json(&json!({ "status": "ready" })));
            }
            "/metrics" => {
                let page = self.ready.get().map_or_else(String::new, |it| it.metrics.page());
                return Ok(answer::text("text/plain; version=0.0.4; charset=utf-8", page));
            }
            _ => {}
        }
        let ready = self.ready.get().ok_or(Refusal::Loading)?;
        let about = &ready.about;
        let found = match path {
            "/load" => {
                let load = ready.seen.load();
                let report =
                    LoadReport::new(&load, about.mode, &about.names[0], self.is_draining());
                serde_json::to_value(report).expect("numbers and words")
            }
            "/debug/steps" => {
                json!({ "steps": serde_json::to_value(ready.seen.steps()).expect("numbers") })
            }
            "/server_info" => json!({
                "version": env!("CARGO_PKG_VERSION"),
                "model": about.names[0],
                "mode": about.mode,
                "quantisation": about.quantisation,
                "device": about.device,
                "max_model_len": about.context_max,
                "system_fingerprint": about.fingerprint,
                "config": about.config,
            }),
            "/v1/models" => {
                let cards: Vec<Value> = about.names.iter().map(|it| ready.card(it)).collect();
                json!({ "object": "list", "data": cards })
            }
            _ => {
                let name = path.strip_prefix("/v1/models/").expect("no other path comes here");
                let name = percent_decoded(name);
                if !about.names.contains(&name) {
                    return Err(Refusal::UnknownModel { model: name });
                }
                ready.card(&name)
            }
        };
        Ok(answer::json(&found))
    }

    /// What needs the model and a body.
    async fn act(
        &self,
        body: &mut Incoming,
        path: &str,
        id: Option<String>,
        arrival: Instant,
    ) -> Result<Response<Body>, Refusal> {
        // Entered first: a drain that begins now either sees it within or is seen by it.
        let pass = self.gate.enter();
        let ready = Arc::clone(self.ready()?);
        match path {
            CHAT => self.text(ready, body, Call { path: CHAT, id, arrival, pass }).await,
            COMPLETIONS => {
                self.text(ready, body, Call { path: COMPLETIONS, id, arrival, pass }).await
            }
            "/tokenize" => {
                let mut fields = self.fields(body).await?;
                let found = tokens::tokenize(&ready, &mut fields).await?;
                ready.settle(fields)?;
                Ok(answer::json(&found))
            }
            "/detokenize" => {
                let mut fields = self.fields(body).await?;
                let found = tokens::detokenize(&ready, &mut fields).await?;
                ready.settle(fields)?;
                Ok(answer::json(&found))
            }
            "/abort_request" => {
                let mut fields = self.fields(body).await?;
                let given = fields.string("rid")?.or(fields.string("request_id")?);
                let name = given.ok_or_else(|| fields::missing("rid"))?;
                ready.settle(fields)?;
                let ended = ready.inbox.abort(name).await.map_err(|_| Refusal::Failed)?;
                Ok(answer::json(&json!({ "aborted": ended })))
            }
            _ => Err(Refusal::Unsupported {
                message: "this engine writes text and makes no embeddings",
            }),
        }
    }

    /// What is answered with text.
    async fn text(
        &self,
        ready: Arc<Ready>,
        body: &mut Incoming,
        call: Call,
    ) -> Result<Response<Body>, Refusal> {
        let (head, mut record) = call.open(&ready);
        let read = async {
            let mut fields = self.fields(body).await?;
            let read: (Order, Box<dyn Shape>) = if call.path == CHAT {
                let (order, shape) = chat::read(&ready, &mut fields).await?;
                (order, Box::new(shape))
            } else {
                let (order, shape) = completions::read(&ready, &mut fields).await?;
                (order, Box::new(shape))
            };
            Ok((read, ready.settle(fields)?))
        };
        match read.await {
            Ok(((order, shape), ignored)) => {
                let answer = generate(ready, order, shape, head, record, call.pass).await?;
                Ok(with_ignored(answer, &ignored))
            }
            Err(refusal) => {
                record.refuse(&refusal);
                Err(refusal)
            }
        }
    }

    async fn fields(&self, body: &mut Incoming) -> Result<Fields, Refusal> {
        let bytes_max = self.options.body_max;
        let body = Limited::new(body, bytes_max).collect();
        let body: Bytes = match tokio::time::timeout(BODY_MAX, body).await {
            Err(_) => return Err(Refusal::BodyTooSlow),
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(error)) if error.is::<LengthLimitError>() => {
                return Err(Refusal::BodyTooLarge { bytes_max });
            }
            Ok(Err(error)) => {
                let message = format!("the body could not be read: {error}");
                return Err(Refusal::Malformed { message });
            }
        };
        Fields::parse(&body)
    }
}

/// A request for text before it is read.
struct Call {
    path: &'static str,
    id: Option<String>,
    arrival: Instant,
    pass: Pass,
}

impl Call {
    /// The name of the answer and the record of the request. The client's own id is the name under
    /// which it may abort, else the answer's.
    fn open(&self, ready: &Ready) -> (Head, Record) {
        let prefix = if self.path == CHAT { "chatcmpl-" } else { "cmpl-" };
        let own = || format!("{:016x}", ready.seeds.draw());
        let id = format!("{prefix}{}", self.id.clone().unwrap_or_else(own));
        let name = self.id.clone().unwrap_or_else(|| id.clone());
        let record = Record::new(Arc::clone(&ready.metrics), name.into(), self.path, self.arrival);
        (Head { id, created: clock::unix_seconds() }, record)
    }
}

/// The client's name for its request, if it gave one that may go into a header.
fn request_id(head: &Parts) -> Option<String> {
    let id = head.headers.get(REQUEST_ID)?.to_str().ok()?;
    (1..=REQUEST_ID_BYTES_MAX).contains(&id.len()).then(|| id.to_owned())
}

/// Takes what a client still sends that is refused, for a time: a connection that closes with bytes
/// unread is reset, and that may cost the client its answer. Over HTTP/2 each stream ends by
/// itself, and a client that asks first whether to send is not to be told that it may.
async fn take_rest(head: &Parts, mut body: Incoming) {
    if Version::HTTP_2 <= head.version || head.headers.contains_key(EXPECT) {
        return;
    }
    let rest = async { while let Some(Ok(_)) = body.frame().await {} };
    // Whoever has not sent it by then may miss the answer.
    let _late = tokio::time::timeout(REST_MAX, rest).await;
}

/// Tells the client which of its fields had no effect: as many as a header should hold.
fn with_ignored(mut answer: Response<Body>, ignored: &[String]) -> Response<Body> {
    let mut left = IGNORED_BYTES_MAX;
    let fits = |name: &&String| {
        let rest = left.checked_sub(name.len() + 1);
        left = rest.unwrap_or(0);
        rest.is_some()
    };
    let mut names: Vec<&str> = ignored.iter().take_while(fits).map(String::as_str).collect();
    if names.len() < ignored.len() {
        names.push("...");
    }
    if let (false, Ok(names)) = (names.is_empty(), HeaderValue::from_str(&names.join(","))) {
        answer.headers_mut().insert(IGNORED_FIELDS, names);
    }
    answer
}

/// A path segment as it was before it was made fit for a URL.
fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let hex = after.get(..2).filter(|_| first == b'%');
        let code = hex.and_then(|it| u8::from_str_radix(std::str::from_utf8(it).ok()?, 16).ok());
        bytes.push(code.unwrap_or(first));
        rest = if code.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
