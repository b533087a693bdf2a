//! The life of a request: asked, placed, sent, relayed. The order of things is decided here.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING};
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, Uri, Version};
use hyper::body::Incoming;
use tokio_util::task::TaskTracker;

use self::headers::{BadWish, Own, Wishes};
use self::relay::Answer;
use crate::access::{AccessLog, Line};
use crate::answer::{self, Problem};
use crate::client::Client;
use crate::fleet::endpoint::Tried;
use crate::fleet::{self, Fleet, Live, Refusal};
use crate::metrics::Retry;
use crate::policy::Ask;
use crate::queue::Priority;
use crate::upstream::upload::{Progress, Upload};
use crate::upstream::{Connect, Pool};
use crate::{clock, keys, trace};

mod attempt;
pub mod flight;
pub mod headers;
mod patience;
pub mod relay;

/// What one serving thread works with.
#[derive(Debug)]
pub struct Shard<C: Connect> {
    pub fleet: Arc<Fleet>,
    pub connector: C,
    pub pool: Arc<Pool<C::Io>>,
    pub access: Arc<AccessLog>,
    pub tasks: TaskTracker,
}

type Answered<C> = Response<Answer<<C as Connect>::Io>>;

/// What one request carries through its attempts.
struct Trip {
    /// None while it is being sent, and after that.
    request: Option<Request<Upload>>,
    live: Arc<Live>,
    client: Arc<Client>,
    arrived: Instant,
    until: Option<Instant>,
    own: Own,
    progress: Arc<Progress>,
    /// To this client the end of the connection is the end of the answer.
    is_open_ended: bool,
    /// Time that was not the router's own: queueing and connecting.
    waited: Duration,
    line: Option<Box<Line>>,
}

impl Trip {
    /// The request has taken too long altogether.
    fn is_late(&self, now: Instant) -> bool {
        self.until.is_some_and(|it| it <= now)
    }
}

/// How an attempt ended that brought no answer.
enum Failed {
    /// Nothing was sent: the request is back in the trip and may go elsewhere.
    Unsent(Problem),
    /// Over.
    Over(Problem),
}

impl<C: Connect> Shard<C> {
    /// Answers one request of a client.
    pub async fn handle(&self, request: Request<Incoming>, client: Arc<Client>) -> Answered<C> {
        let _active = client.begin();
        let is_head = request.method() == Method::HEAD;
        let mut response = match self.own_path(&request) {
            Some(response) => response,
            None => self.pass(request, client).await,
        };
        // Its headers stay, the length among them. Over HTTP/1 the library sees to it, over HTTP/2
        // a body would be an error.
        if is_head && let Answer::Own(bytes) = response.body_mut() {
            *bytes = None;
        }
        response
    }

    /// Passes one on, or says why not.
    async fn pass(&self, mut request: Request<Incoming>, client: Arc<Client>) -> Answered<C> {
        let arrived = clock::now();
        self.fleet.metrics.arrived();
        let mut line = self.access.is_on().then(|| self.line(&request, &client));
        let span = self.access.has_spans().then(|| trace::step_in(request.headers_mut()));
        let id = trace::mark(request.headers_mut());
        if let Some(line) = &mut line {
            line.trace = span;
            line.request_id = id.to_str().unwrap_or_default().to_owned();
        }
        let proxied = self.proxy(request, Arc::clone(&client), arrived, &mut line).await;
        let mut response = proxied.unwrap_or_else(|problem| {
            // It may be sending still, and is to hear this all the same.
            client.linger();
            self.fleet.metrics.refused(problem.code());
            if let Some(line) = &mut line {
                line.status = Some(problem.status().as_u16());
                if line.endpoint.is_none() {
                    line.outcome = problem.code();
                }
                line.elapsed = clock::now().saturating_duration_since(arrived);
            }
            problem.answer(|bytes| Answer::Own(Some(bytes)))
        });
        response.headers_mut().insert(headers::REQUEST_ID, id);
        response
    }

    /// The few paths that the router answers itself.
    fn own_path(&self, request: &Request<Incoming>) -> Option<Answered<C>> {
        let is_good = match request.uri().path() {
            "/health" | "/healthz" | "/readyz" => self.fleet.is_ready(),
            "/livez" => true,
            _ => return None,
        };
        let (status, text) = answer::state(is_good);
        let mut response = Response::new(Answer::Own(Some(Bytes::from_static(text.as_bytes()))));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(text.len()));
        Some(response)
    }

    fn line(&self, request: &Request<Incoming>, client: &Client) -> Box<Line> {
        let mut line = Box::new(Line::new(Arc::clone(&self.access), clock::wall()));
        line.peer = client.peer.ip().to_string();
        line.method = request.method().to_string();
        line.path = request.uri().path().to_owned();
        line
    }

    async fn proxy(
        &self,
        request: Request<Incoming>,
        client: Arc<Client>,
        arrived: Instant,
        line: &mut Option<Box<Line>>,
    ) -> Result<Answered<C>, Problem> {
        let live = self.fleet.live_owned();
        let (mut parts, body) = request.into_parts();
        let wishes = check(&live, &parts, &client)?;
        let own = Own::of(&parts.headers, &parts.uri);
        let has_keys = live.config.keys.is_some();
        headers::to_upstream(&mut parts.headers, &client.forwarded, client.is_tls);
        let upload = Upload::new(body, live.config.limits.body_bytes_max);
        let light = matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS);
        let progress = upload.progress();
        let is_open_ended = parts.version == Version::HTTP_10;
        // Extensions are for this connection; an endpoint's may speak another protocol.
        parts.extensions.clear();
        let mut trip = Trip {
            request: Some(Request::from_parts(parts, upload)),
            client,
            arrived,
            until: live.config.timeouts.total.map(|it| arrived + it),
            own: if has_keys { own.without_key() } else { own },
            progress,
            is_open_ended,
            waited: Duration::ZERO,
            line: line.take(),
            live,
        };
        let ask = Ask { target: wishes.target, light };
        let result = self.place(&mut trip, ask, wishes.priority).await;
        *line = trip.line.take();
        result
    }

    /// Finds a place and tries it; another one as long as nothing was sent.
    async fn place(
        &self,
        trip: &mut Trip,
        ask: Ask,
        priority: Priority,
    ) -> Result<Answered<C>, Problem> {
        let limits = &trip.live.config.queue;
        let retry_after_s = limits.retry_after_s;
        let wait_until = trip.arrived + limits.wait_max;
        let until = trip.until.map_or(wait_until, |it| it.min(wait_until));
        let mut tried = Tried::new();
        let mut last_problem = None;
        loop {
            let arrival = fleet::Arrival {
                ask,
                priority,
                tried: tried.clone(),
                // Once something has failed there is a better answer than to wait for a place.
                until: if tried.is_empty() { until } else { trip.arrived },
            };
            let now = if tried.is_empty() { trip.arrived } else { clock::now() };
            if trip.is_late(now) {
                return Err(Problem::TotalTimeout);
            }
            let admitted = self.fleet.admit(&trip.live, arrival, now).await;
            let (lease, waited) = match (admitted, last_problem) {
                (Ok(granted), _) => granted,
                (Err(_), Some(problem)) => return Err(problem),
                (Err(Refusal::Overloaded), None) => {
                    return Err(Problem::Overloaded { retry_after_s });
                }
                (Err(Refusal::Down), None) => return Err(Problem::Down { retry_after_s }),
            };
            trip.waited += waited;
            let state = Arc::clone(&lease.member().state);
            tried.push(state.id);
            match self.attempt(trip, lease).await {
                Ok(response) => return Ok(response),
                Err(Failed::Over(problem)) => return Err(problem),
                Err(Failed::Unsent(problem)) => {
                    state.metrics.retried(Retry::Unreachable);
                    last_problem = Some(problem);
                }
            }
        }
    }
}

/// What can be refused without asking anybody.
fn check(live: &Live, parts: &Parts, client: &Client) -> Result<Wishes, Problem> {
    let (method, headers) = (&parts.method, &parts.headers);
    if method == Method::CONNECT {
        return Err(Problem::BadMethod);
    }
    if parts.uri.path_and_query().is_none() {
        return Err(Problem::BadUri);
    }
    if headers.contains_key(TRANSFER_ENCODING) && client.is_ambiguous() {
        return Err(Problem::BadFraming);
    }
    // A browser asks first whether it may, and cannot show its key while asking.
    if let Some(digests) = &live.config.keys
        && method != Method::OPTIONS
        && !keys::admits(digests, headers)
    {
        return Err(Problem::KeyRefused);
    }
    let length = headers.get(CONTENT_LENGTH).and_then(|it| it.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|it| live.config.limits.body_bytes_max < it) {
        return Err(Problem::BodyTooLarge);
    }
    headers::wishes(headers).map_err(|bad| match bad {
        BadWish::Target => Problem::BadTarget,
        BadWish::Priority => Problem::BadPriority,
    })
}

/// Leaves the path and query, byte for byte.
fn to_origin_form(uri: &mut Uri) {
    if uri.scheme().is_some() || uri.authority().is_some() {
        let path = std::mem::take(uri).into_parts().path_and_query;
        *uri = path.map_or_else(|| Uri::from_static("/"), Uri::from);
    }
}

/// The headers that say who served, and why.
fn explain(headers: &mut HeaderMap, endpoint: &HeaderValue, reason: &'static str) {
    headers.insert(headers::ENDPOINT, endpoint.clone());
    headers.insert(headers::REASON, HeaderValue::from_static(reason));
}
