//! Every metric of the router: names, meanings, labels. The only file that knows their names.

use std::sync::Arc;

use prometheus::core::Collector;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry,
};

use crate::outcome::Outcome;
use crate::policy::Reason;

mod counts;
mod handles;
mod scrape;

pub use self::counts::Counts;

/// The engines' own edges for the first token, with a finer start.
const FIRST_TOKEN_S: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
const BETWEEN_TOKENS_S: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
    5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
const REQUEST_S: &[f64] = &[
    0.005, 0.025, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0,
    60.0, 120.0, 240.0, 480.0, 960.0, 1920.0,
];
const OWN_TIME_S: &[f64] = &[
    0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.05,
    0.1, 1.0,
];

/// All metrics, in a registry of their own.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: IntCounter,
    refused: IntCounterVec,
    routed: IntCounterVec,
    responses: IntCounterVec,
    outcomes: IntCounterVec,
    retries: IntCounterVec,
    connects: IntCounterVec,
    probes: IntCounterVec,
    bytes: IntCounterVec,
    first_token: HistogramVec,
    between_tokens: HistogramVec,
    request_time: HistogramVec,
    pub own_time: Histogram,
    queue_wait: Histogram,
    transitions: IntCounterVec,
    counterfactual: IntCounterVec,
    reloads: IntCounterVec,
    pub access_log_dropped: IntCounter,
    pub spans_dropped: IntCounter,
    pub connections: IntGauge,
    pub tasks: IntGauge,
    in_flight: IntGaugeVec,
    total_in_flight: IntGauge,
    queue_waiting: IntGauge,
    mode: IntGaugeVec,
    mode_seconds: GaugeVec,
    threshold: IntGaugeVec,
    endpoint_up: IntGaugeVec,
    endpoint_resting: IntGaugeVec,
    endpoint_draining: IntGaugeVec,
    endpoint_mismatch: IntGaugeVec,
    breaker_trips: IntGaugeVec,
    config_valid: IntGauge,
    uptime: Gauge,
}

/// The handles of one endpoint, looked up once.
#[derive(Clone, Debug)]
pub struct EndpointMetrics {
    routed: [[IntCounter; Reason::ALL.len()]; 2],
    responses: [IntCounter; 5],
    outcomes: [IntCounter; Outcome::ALL.len()],
    retries: [IntCounter; 2],
    connects: [IntCounter; 3],
    pub probes: [IntCounter; 4],
    pub bytes_in: IntCounter,
    pub bytes_out: IntCounter,
    pub first_token: Histogram,
    pub between_tokens: Histogram,
    pub request_time: Histogram,
}

/// Why a request was sent again.
#[derive(Clone, Copy, Debug)]
pub enum Retry {
    /// Nobody could be reached.
    Unreachable,
    /// The kept connection had been closed by the endpoint.
    Stale,
}

/// How an attempt to connect ended.
#[derive(Clone, Copy, Debug)]
pub enum Connected {
    Fresh,
    Failed,
    Reused,
}

fn name(text: &str) -> String {
    format!("crossover_router_{text}")
}

struct Builder(Registry);

impl Builder {
    fn add<C: Collector + Clone + 'static>(&self, made: prometheus::Result<C>) -> C {
        let collector = made.expect("names and labels are well formed");
        self.0.register(Box::new(collector.clone())).expect("every name is used once");
        collector
    }

    fn counter(&self, text: &str, help: &str) -> IntCounter {
        self.add(IntCounter::new(name(text), help))
    }

    fn counters(&self, text: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.add(IntCounterVec::new(Opts::new(name(text), help), labels))
    }

    fn gauge(&self, text: &str, help: &str) -> IntGauge {
        self.add(IntGauge::new(name(text), help))
    }

    fn gauges(&self, text: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
        self.add(IntGaugeVec::new(Opts::new(name(text), help), labels))
    }

    fn histogram(&self, text: &str, help: &str, edges: &[f64]) -> Histogram {
        let opts = HistogramOpts::new(name(text), help).buckets(edges.to_vec());
        self.add(Histogram::with_opts(opts))
    }

    fn histograms(&self, text: &str, help: &str, edges: &[f64]) -> HistogramVec {
        let opts = HistogramOpts::new(name(text), help).buckets(edges.to_vec());
        self.add(HistogramVec::new(opts, &["endpoint"]))
    }
}

impl Metrics {
    #[expect(clippy::too_many_lines, reason = "the list of all metrics, one line each")]
    pub fn new() -> Arc<Self> {
        let b = Builder(Registry::new());
        let config_valid = b.gauge("config_valid", "0 after a reload that was refused");
        // Without a valid one there is no start.
        config_valid.set(1);
        Arc::new(Self {
            requests: b.counter("requests_total", "Requests that came in"),
            refused: b.counters(
                "refused_total",
                "Requests that the router answered itself with an error",
                &["code"],
            ),
            routed: b.counters(
                "routed_total",
                "Requests sent to an endpoint, with the reason of the choice",
                &["endpoint", "target", "reason"],
            ),
            responses: b.counters(
                "responses_total",
                "Answers of endpoints by class of status",
                &["endpoint", "class"],
            ),
            outcomes: b.counters(
                "outcomes_total",
                "How requests at an endpoint ended",
                &["endpoint", "outcome"],
            ),
            retries: b.counters(
                "retries_total",
                "Requests sent again because nothing had been sent",
                &["endpoint", "why"],
            ),
            connects: b.counters(
                "connects_total",
                "Connections to an endpoint: fresh, failed, reused",
                &["endpoint", "result"],
            ),
            probes: b.counters(
                "probes_total",
                "Health probes by what they found",
                &["endpoint", "result"],
            ),
            bytes: b.counters(
                "body_bytes_total",
                "Bytes of bodies passed on: in is from clients, out is to them",
                &["endpoint", "direction"],
            ),
            first_token: b.histograms(
                "first_token_seconds",
                "From a request's arrival to the first byte of its answer's body",
                FIRST_TOKEN_S,
            ),
            between_tokens: b.histograms(
                "between_tokens_seconds",
                "Gaps between the pieces of a streamed answer",
                BETWEEN_TOKENS_S,
            ),
            request_time: b.histograms(
                "request_seconds",
                "From a request's arrival to the end of its answer",
                REQUEST_S,
            ),
            own_time: b.histogram(
                "own_seconds",
                "The router's own share before sending: arrival to sent, less queue and connect",
                OWN_TIME_S,
            ),
            queue_wait: b.histogram(
                "queue_wait_seconds",
                "Time in the queue, of requests that had to wait",
                REQUEST_S,
            ),
            transitions: b.counters("transitions_total", "Changes of the mode", &["to"]),
            counterfactual: b.counters(
                "counterfactual_total",
                "Where the policy spill with the same threshold would have sent the request",
                &["policy", "target"],
            ),
            reloads: b.counters("reloads_total", "Reloads of the configuration", &["result"]),
            access_log_dropped: b.counter(
                "access_log_dropped_total",
                "Lines of the access log that could not be written fast enough",
            ),
            spans_dropped: b.counter(
                "spans_dropped_total",
                "Spans that the collector did not take, or for which there was no room",
            ),
            connections: b.gauge("connections", "Open connections of clients"),
            tasks: b.gauge("tasks", "Tasks of the serving threads, counted twice a second"),
            in_flight: b.gauges(
                "in_flight",
                "Requests an endpoint holds: work asks for tokens, light for anything else",
                &["endpoint", "class"],
            ),
            total_in_flight: b.gauge(
                "total_in_flight",
                "Requests for tokens in flight on all endpoints: what the mode depends on",
            ),
            queue_waiting: b.gauge("queue_waiting", "Requests in the queue"),
            mode: b.gauges("mode", "1 for the mode that holds", &["mode"]),
            mode_seconds: b.add(GaugeVec::new(
                Opts::new(name("mode_seconds_total"), "Time spent in each mode"),
                &["mode"],
            )),
            threshold: b.gauges("threshold", "The policy's thresholds", &["bound"]),
            endpoint_up: b.gauges("endpoint_up", "1 when health says yes", &["endpoint"]),
            endpoint_resting: b.gauges(
                "endpoint_resting",
                "1 while the breaker keeps requests away",
                &["endpoint"],
            ),
            endpoint_draining: b.gauges(
                "endpoint_draining",
                "1 while an operator keeps requests away",
                &["endpoint"],
            ),
            endpoint_mismatch: b.gauges(
                "endpoint_mismatch",
                "1 when an endpoint is not what the configuration says",
                &["endpoint"],
            ),
            breaker_trips: b.gauges(
                "breaker_trips",
                "How often the breaker has sent an endpoint to rest",
                &["endpoint"],
            ),
            config_valid,
            uptime: b.add(Gauge::new(name("uptime_seconds"), "Time since the start")),
            registry: b.0,
        })
    }
}

#[cfg(test)]
mod tests;
