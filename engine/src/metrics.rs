//! Every metric of the engine: name, help, labels. The names of vLLM where they apply, so that
//! dashboards and gateways made for it work, and our own for what is new.

use prometheus::core::{Atomic, GenericCounter, GenericGauge};
use prometheus::{
    Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts,
    Registry, TextEncoder,
};

use crate::draft::DRAFTS_MAX;

/// Bounds of vLLM's histograms, so that queries over both agree.
const FIRST_TOKEN_SECONDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
const TOKEN_SECONDS: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];
const REQUEST_SECONDS: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];
const STEP_TOKENS: &[f64] =
    &[1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16_384.0];
const CHOICES: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0];
/// Our own: from a small model on a large card to a large one on a small machine.
const STEP_SECONDS: &[f64] = &[
    0.0002, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 2.5, 10.0,
];

/// Why texts end, as `request_success_total` counts them.
pub const FINISHES: [&str; 4] = ["stop", "length", "abort", "error"];

/// What the metrics say of the engine that never changes.
#[derive(Clone, Debug)]
pub struct Fixed {
    pub model: String,
    pub mode: &'static str,
    pub context_max: u32,
    pub page_tokens: u32,
    pub pages: u32,
    pub simulated_acceptance: bool,
}

#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    pub load: LoadMetrics,
    pub steps: StepMetrics,
    pub drafts: DraftMetrics,
    pub requests: RequestMetrics,
}

/// How full the engine is now.
#[derive(Debug)]
pub struct LoadMetrics {
    pub running: IntGauge,
    pub waiting: IntGauge,
    pub kv_usage: Gauge,
    pub pages_used: IntGauge,
    pub pages_cached: IntGauge,
}

/// What the loop does.
#[derive(Debug)]
pub struct StepMetrics {
    pub count: IntCounter,
    pub rows: IntCounter,
    pub prompt_rows: IntCounter,
    pub seconds: HistogramVec,
    pub iteration_tokens: Histogram,
    pub generation_tokens: IntCounter,
    pub prefix_queries: IntCounter,
    pub prefix_hits: IntCounter,
    pub preemptions: IntCounter,
}

/// What drafts bring.
#[derive(Debug)]
pub struct DraftMetrics {
    pub rounds: IntCounter,
    pub drafted: IntCounter,
    pub accepted: IntCounter,
    /// By place in the chain.
    pub accepted_at: Vec<IntCounter>,
    pub depth: IntGauge,
    pub switches_up: IntCounter,
    pub switches_down: IntCounter,
}

/// What clients see.
#[derive(Debug)]
pub struct RequestMetrics {
    pub success: IntCounterVec,
    pub refused: IntCounterVec,
    pub gone: IntCounter,
    pub prompt_tokens: IntCounter,
    pub n: Histogram,
    pub tokens: TokenMetrics,
    pub seconds: TimeMetrics,
}

/// Tokens of a text.
#[derive(Debug)]
pub struct TokenMetrics {
    pub prompt: Histogram,
    pub generated: Histogram,
    pub longest: Histogram,
    pub new_max: Histogram,
}

/// Times of a text.
#[derive(Debug)]
pub struct TimeMetrics {
    pub first_token: Histogram,
    /// From token to token, within rounds evenly.
    pub each_token: Histogram,
    pub mean_token: Histogram,
    pub whole: Histogram,
    pub queue: Histogram,
    pub inference: Histogram,
    pub prompt: Histogram,
    pub decode: Histogram,
}

/// Makes metrics that bear the same fixed labels and stand in one registry.
struct Maker<'a> {
    registry: &'a Registry,
    model: &'a str,
    prefix: &'static str,
}

impl Maker<'_> {
    fn opts(&self, name: &str, help: &str) -> Opts {
        let opts = Opts::new(format!("{}{name}", self.prefix), help);
        opts.const_label("model_name", self.model).const_label("engine", "0")
    }

    fn keep<C: prometheus::core::Collector + Clone + 'static>(&self, metric: C) -> C {
        self.registry.register(Box::new(metric.clone())).expect("names differ");
        metric
    }

    fn counter<P: Atomic + 'static>(&self, name: &str, help: &str) -> GenericCounter<P> {
        self.keep(GenericCounter::with_opts(self.opts(name, help)).expect("a right name"))
    }

    fn gauge<P: Atomic + 'static>(&self, name: &str, help: &str) -> GenericGauge<P> {
        self.keep(GenericGauge::with_opts(self.opts(name, help)).expect("a right name"))
    }

    fn histogram(&self, name: &str, help: &str, bounds: &[f64]) -> Histogram {
        let opts = HistogramOpts::from(self.opts(name, help)).buckets(bounds.to_vec());
        self.keep(Histogram::with_opts(opts).expect("a right name"))
    }

    /// A counter for each of `values` of one label.
    fn counters(&self, name: &str, help: &str, label: &str, values: &[&str]) -> IntCounterVec {
        let counters = IntCounterVec::new(self.opts(name, help), &[label]).expect("a right name");
        for value in values {
            counters.with_label_values(&[value]);
        }
        self.keep(counters)
    }

    /// A gauge that is always 1 and says something by its labels.
    fn constant(&self, name: &str, help: &str, labels: &[(&str, String)]) {
        let opts = labels
            .iter()
            .fold(self.opts(name, help), |it, (key, value)| it.const_label(*key, value));
        self.keep(IntGauge::with_opts(opts).expect("a right name")).set(1);
    }
}

impl Metrics {
    pub fn new(fixed: &Fixed) -> Self {
        let registry = Registry::new();
        let own = Maker { registry: &registry, model: &fixed.model, prefix: "crossover_engine_" };
        let theirs = Maker { prefix: "vllm:", ..own };
        state_constants(&theirs, &own, fixed);
        Self {
            load: LoadMetrics::new(&theirs, &own),
            steps: StepMetrics::new(&theirs, &own),
            drafts: DraftMetrics::new(&theirs, &own),
            requests: RequestMetrics::new(&theirs, &own, fixed.context_max),
            registry,
        }
    }

    /// All metrics in Prometheus' text format.
    pub fn page(&self) -> String {
        TextEncoder::new().encode_to_string(&self.registry.gather()).expect("text is UTF-8")
    }

    /// The table of the README: name, type, meaning.
    pub fn table(&self) -> String {
        let row = |it: prometheus::proto::MetricFamily| {
            let kind = format!("{:?}", it.get_field_type()).to_lowercase();
            format!("| `{}` | {kind} | {} |\n", it.name(), it.help())
        };
        self.registry.gather().into_iter().map(row).collect()
    }
}

impl LoadMetrics {
    fn new(theirs: &Maker<'_>, own: &Maker<'_>) -> Self {
        Self {
            running: theirs.gauge("num_requests_running", "Requests that are computed"),
            waiting: theirs.gauge("num_requests_waiting", "Requests that wait for a place"),
            kv_usage: theirs.gauge("kv_cache_usage_perc", "Share of the pages in use, 0 to 1"),
            pages_used: own.gauge("pages_used", "Pages that running requests own"),
            pages_cached: own.gauge("pages_cached", "Pages kept for later prompts"),
        }
    }
}

impl StepMetrics {
    fn new(theirs: &Maker<'_>, own: &Maker<'_>) -> Self {
        let help = "Time of a step, by decoding requests (up to) and draft depth";
        let opts = HistogramOpts::from(own.opts("step_seconds", help));
        let seconds = HistogramVec::new(opts.buckets(STEP_SECONDS.into()), &["decoding", "depth"]);
        let seconds = own.keep(seconds.expect("a right name"));
        seconds.with_label_values(&["1", "0"]);
        Self {
            count: own.counter("steps_total", "Steps computed"),
            rows: own.counter("rows_total", "Rows fed to the model, of all kinds"),
            prompt_rows: own.counter("prompt_rows_total", "Rows fed to read prompts"),
            seconds,
            iteration_tokens: theirs.histogram(
                "iteration_tokens_total",
                "Tokens read and written in a step",
                STEP_TOKENS,
            ),
            generation_tokens: theirs.counter("generation_tokens_total", "Tokens written"),
            prefix_queries: theirs
                .counter("prefix_cache_queries_total", "Prompt tokens looked up in kept pages"),
            prefix_hits: theirs
                .counter("prefix_cache_hits_total", "Prompt tokens found in kept pages"),
            preemptions: theirs
                .counter("num_preemptions_total", "Requests that gave their pages up for a while"),
        }
    }
}

impl DraftMetrics {
    fn new(theirs: &Maker<'_>, own: &Maker<'_>) -> Self {
        let places: Vec<String> = (0..DRAFTS_MAX).map(|it| it.to_string()).collect();
        let places: Vec<&str> = places.iter().map(String::as_str).collect();
        let accepted_at = theirs.counters(
            "spec_decode_num_accepted_tokens_per_pos_total",
            "Drafts accepted, by their place in the chain",
            "position",
            &places,
        );
        let switches = own.counters(
            "draft_depth_switches_total",
            "Changes of the draft depth",
            "direction",
            &["up", "down"],
        );
        Self {
            rounds: theirs.counter("spec_decode_num_drafts_total", "Rounds that had drafts"),
            drafted: theirs.counter("spec_decode_num_draft_tokens_total", "Drafts made"),
            accepted: theirs.counter("spec_decode_num_accepted_tokens_total", "Drafts accepted"),
            accepted_at: places.iter().map(|it| accepted_at.with_label_values(&[it])).collect(),
            depth: own.gauge("draft_depth", "Drafts a request may get in a step now"),
            switches_up: switches.with_label_values(&["up"]),
            switches_down: switches.with_label_values(&["down"]),
        }
    }
}

impl RequestMetrics {
    fn new(theirs: &Maker<'_>, own: &Maker<'_>, context_max: u32) -> Self {
        let tokens = &token_bounds(context_max);
        let refusals = ["server_is_overloaded", "server_is_draining"];
        Self {
            success: theirs.counters(
                "request_success_total",
                "Texts that ended, by reason",
                "finished_reason",
                &FINISHES,
            ),
            refused: own.counters("requests_refused_total", "Requests refused", "code", &refusals),
            gone: own.counter("clients_gone_total", "Texts ended because nobody reads them"),
            prompt_tokens: theirs.counter("prompt_tokens_total", "Prompt tokens taken in"),
            n: theirs.histogram("request_params_n", "Texts asked for at once", CHOICES),
            tokens: TokenMetrics {
                prompt: theirs.histogram(
                    "request_prompt_tokens",
                    "Prompt tokens of a text",
                    tokens,
                ),
                generated: theirs.histogram(
                    "request_generation_tokens",
                    "Tokens written for a text",
                    tokens,
                ),
                longest: theirs.histogram(
                    "request_max_num_generation_tokens",
                    "Tokens of the longest text of a request",
                    tokens,
                ),
                new_max: theirs.histogram(
                    "request_params_max_tokens",
                    "Tokens a text may have",
                    tokens,
                ),
            },
            seconds: TimeMetrics::new(theirs),
        }
    }
}

impl TimeMetrics {
    fn new(theirs: &Maker<'_>) -> Self {
        let long = |name, help| theirs.histogram(name, help, REQUEST_SECONDS);
        Self {
            first_token: theirs.histogram(
                "time_to_first_token_seconds",
                "Time from the request to its first token",
                FIRST_TOKEN_SECONDS,
            ),
            each_token: theirs.histogram(
                "inter_token_latency_seconds",
                "Time between tokens: that of a round over its tokens",
                TOKEN_SECONDS,
            ),
            mean_token: theirs.histogram(
                "request_time_per_output_token_seconds",
                "Time of a text after its first token, over its other tokens",
                TOKEN_SECONDS,
            ),
            whole: long(
                "e2e_request_latency_seconds",
                "Time from the request to the end of the text",
            ),
            queue: long("request_queue_time_seconds", "Time from the request to its first step"),
            inference: long(
                "request_inference_time_seconds",
                "Time from the first step to the end of the text",
            ),
            prompt: long(
                "request_prefill_time_seconds",
                "Time from the first step to the first token",
            ),
            decode: long("request_decode_time_seconds", "Time from the first token to the last"),
        }
    }
}

fn state_constants(theirs: &Maker<'_>, own: &Maker<'_>, fixed: &Fixed) {
    let pages = [
        ("block_size", fixed.page_tokens.to_string()),
        ("num_gpu_blocks", fixed.pages.to_string()),
        ("enable_prefix_caching", "True".to_owned()),
    ];
    theirs.constant("cache_config_info", "Sizes of the cache of keys and values", &pages);
    let mode = [("mode", fixed.mode.to_owned()), ("version", env!("CARGO_PKG_VERSION").to_owned())];
    own.constant("mode_info", "How this engine makes tokens", &mode);
    let simulated: IntGauge = own.gauge(
        "simulated_acceptance",
        "1 if the acceptance of drafts is pretended: speed tests only",
    );
    simulated.set(fixed.simulated_acceptance.into());
}

/// 1, 2, 5, 10, ... up to `max`.
fn token_bounds(max: u32) -> Vec<f64> {
    let decades = (0..10).map(|power| 10_f64.powi(power));
    let bounds = decades.flat_map(|it| [it, 2.0 * it, 5.0 * it]);
    bounds.take_while(|it| *it <= f64::from(max)).collect()
}

#[cfg(test)]
mod tests;
