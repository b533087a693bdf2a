//! One span a request for an OpenTelemetry collector: bounded, and nobody waits for it.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue, Value};
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_otlp::{ExporterBuildError, Protocol, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanExporter as _, SpanLinks};
use tokio::sync::mpsc;

use crate::access::Line;
use crate::metrics::Metrics;
use crate::trace::Trace;

/// Spans that wait to be sent.
const WAITING_MAX: usize = 4096;
const BATCH_MAX: usize = 512;
const SEND_EVERY: Duration = Duration::from_secs(1);
/// How long the collector may take for a batch.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Takes spans of requests that have ended.
#[derive(Clone, Debug)]
pub struct Spans {
    sender: mpsc::Sender<SpanData>,
    metrics: Arc<Metrics>,
}

impl Spans {
    pub(crate) fn send(&self, span: SpanData) {
        if self.sender.try_send(span).is_err() {
            self.metrics.spans_dropped.inc();
        }
    }
}

/// Sends them on, in batches.
#[derive(Debug)]
pub struct Exporter {
    receiver: mpsc::Receiver<SpanData>,
    exporter: opentelemetry_otlp::SpanExporter,
    metrics: Arc<Metrics>,
}

/// Both ends of the way to `collector`, a URL without a path.
pub fn to(collector: &str, metrics: Arc<Metrics>) -> Result<(Spans, Exporter), ExporterBuildError> {
    let mut exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_http()
        .with_http_client(HyperClient::with_default_connector(TIMEOUT, None))
        .with_endpoint(format!("{}/v1/traces", collector.trim_end_matches('/')))
        .with_protocol(Protocol::HttpJson)
        .with_timeout(TIMEOUT)
        .build()?;
    let resource = Resource::builder_empty()
        .with_service_name("crossover-router")
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .build();
    exporter.set_resource(&resource);
    let (sender, receiver) = mpsc::channel(WAITING_MAX);
    let spans = Spans { sender, metrics: Arc::clone(&metrics) };
    Ok((spans, Exporter { receiver, exporter, metrics }))
}

impl Exporter {
    /// Sends what comes; ends when nothing can come any more and all is sent.
    pub async fn run(&mut self) {
        let mut batch = Vec::new();
        while self.receiver.recv_many(&mut batch, BATCH_MAX).await != 0 {
            let count = u64::try_from(batch.len()).unwrap_or(u64::MAX);
            if let Err(error) = self.exporter.export(std::mem::take(&mut batch)).await {
                self.metrics.spans_dropped.inc_by(count);
                tracing::warn!(%error, count, "the collector did not take spans");
            }
            if !self.receiver.is_closed() {
                tokio::time::sleep(SEND_EVERY).await;
            }
        }
    }
}

impl Exporter {
    /// Sends what is there, and takes nothing new.
    pub async fn finish(mut self) {
        self.receiver.close();
        // A collector that hangs does not keep the router from ending.
        drop(tokio::time::timeout(TIMEOUT, self.run()).await);
    }
}

/// The span of a request, from what its line says.
pub(crate) fn span(line: &Line, trace: &Trace) -> SpanData {
    let mut attributes = vec![
        KeyValue::new("http.request.method", line.method.clone()),
        KeyValue::new("url.path", line.path.clone()),
        KeyValue::new("client.address", line.peer.clone()),
        KeyValue::new("crossover.request_id", line.request_id.clone()),
        KeyValue::new("crossover.outcome", line.outcome),
        KeyValue::new("crossover.attempts", i64::from(line.attempts)),
        KeyValue::new("http.request.body.size", count(line.bytes_in)),
        KeyValue::new("http.response.body.size", count(line.bytes_out)),
    ];
    let mut also = |key: &'static str, value: Option<Value>| {
        attributes.extend(value.map(|it| KeyValue::new(key, it)));
    };
    also("http.response.status_code", line.status.map(|it| i64::from(it).into()));
    also("crossover.endpoint", line.endpoint.as_deref().map(|it| it.to_owned().into()));
    also("crossover.reason", line.reason.map(Into::into));
    also("crossover.first_byte_seconds", line.first_byte.map(|it| it.as_secs_f64().into()));
    let flags = TraceFlags::new(trace.flags);
    let (id, span) = (TraceId::from(trace.trace), SpanId::from(trace.span));
    let is_failed = line.status.is_none_or(|it| 500 <= it);
    SpanData {
        span_context: SpanContext::new(id, span, flags, false, TraceState::NONE),
        parent_span_id: SpanId::from(trace.parent),
        parent_span_is_remote: trace.parent != 0,
        span_kind: SpanKind::Server,
        name: line.method.clone().into(),
        start_time: line.at,
        end_time: line.at + line.elapsed,
        attributes,
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: if is_failed { Status::error(line.outcome) } else { Status::Unset },
        instrumentation_scope: InstrumentationScope::builder("crossover-router").build(),
    }
}

fn count(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
