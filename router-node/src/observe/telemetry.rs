//! Traces for an OpenTelemetry collector, as the standard `OTEL_*` variables
//! ask for. Without an endpoint none of this exists: no layer, no span, no
//! thread.
//!
//! Spans end on the workers and wait in a bounded queue; a thread of its own
//! sends them in batches. Nothing on a request's way waits for any of it.

mod collector;
mod settings;
mod span;
#[cfg(test)]
mod tests;

use std::time::Duration;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry::{Key, KeyValue};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SdkTracer, SdkTracerProvider,
};
use shared_proto::config::Env;

use collector::Collector;
use settings::Settings;
pub(crate) use span::Spans;
pub(crate) use span::{AttemptSpan, RequestSpan};

/// The target of every span; nothing else uses it.
pub(crate) const TARGET: &str = "telemetry";
/// What a stop waits for the last spans to leave.
const STOP: Duration = Duration::from_secs(2);
/// The service's name unless a variable gives one.
const SERVICE: &str = "omniroute";

/// Tracing that is on.
pub(crate) struct Telemetry {
    provider: SdkTracerProvider,
    spans: Spans,
    address: String,
}

impl Telemetry {
    /// Starts what the variables ask for, if anything; and says what of them
    /// was ignored, for the log that comes after it.
    pub(crate) fn start(env: &dyn Env) -> (Option<Self>, Vec<String>) {
        let (settings, mut warnings) = settings::read(env);
        let started = settings.map(Self::with).transpose();
        let started = started.unwrap_or_else(|error| {
            warnings.push(format!("nothing is traced: {error}"));
            None
        });
        (started, warnings)
    }

    fn with(settings: Settings) -> Result<Self, Box<dyn std::error::Error>> {
        let (host, port) = (settings.endpoint.host(), settings.endpoint.port());
        let port = port.map(|port| format!(":{port}")).unwrap_or_default();
        let address = format!("{}{port}", host.unwrap_or_default());
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Collector::new(settings.timeout)?)
            .with_endpoint(settings.endpoint.to_string())
            .with_protocol(settings.protocol)
            .with_timeout(settings.timeout);
        let exporter = match settings.compression {
            Some(compression) => exporter.with_compression(compression),
            None => exporter,
        };
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(settings.queue)
            .with_max_export_batch_size(settings.batch)
            .with_scheduled_delay(settings.delay)
            .build();
        let processor = BatchSpanProcessor::builder(exporter.build()?)
            .with_batch_config(batches)
            .build();
        let provider = SdkTracerProvider::builder()
            .with_span_processor(processor)
            .with_sampler(settings.sampler)
            .with_resource(resource())
            .build();
        Ok(Self {
            provider,
            spans: Spans {
                parents: settings.parents,
            },
            address,
        })
    }

    /// Where spans go from the subscriber.
    pub(crate) fn tracer(&self) -> SdkTracer {
        self.provider.tracer(SERVICE)
    }

    /// How requests are traced.
    pub(crate) const fn spans(&self) -> Spans {
        self.spans
    }

    /// Host and port of the collector.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Sends what is left, at most [`STOP`].
    pub(crate) fn stop(self) {
        if self.provider.shutdown_with_timeout(STOP).is_err() {
            tracing::warn!("the last spans could not be sent in time");
        }
    }
}

/// Who we are: what the variables say, and defaults for what they leave out.
fn resource() -> Resource {
    let given = Resource::builder().build();
    let key = Key::from_static_str("service.name");
    let name = given.get(&key).map(|name| name.to_string());
    let named = name.is_some_and(|name| !name.starts_with("unknown_service"));
    let defaults = [
        (!named).then(|| KeyValue::new("service.name", SERVICE)),
        Some(KeyValue::new("service.version", env!("CARGO_PKG_VERSION"))),
        Some(KeyValue::new(
            "service.instance.id",
            uuid::Uuid::new_v4().to_string(),
        )),
    ];
    let missing = defaults.into_iter().flatten();
    let missing = missing.filter(|one| !named && one.key == key || given.get(&one.key).is_none());
    Resource::builder().with_attributes(missing).build()
}
