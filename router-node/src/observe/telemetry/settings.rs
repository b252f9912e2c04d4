//! What the `OTEL_*` variables ask for.
//!
//! By the OpenTelemetry specification an empty variable is an unset one, and a
//! value that can't be used is ignored with a warning: telemetry never keeps a
//! node from starting. A warning names the variable; it never repeats headers
//! or addresses, which may hold credentials.

use std::ops::RangeInclusive;
use std::time::Duration;

use http::{HeaderName, Uri};
use opentelemetry_otlp::{Compression, Protocol};
use opentelemetry_sdk::trace::Sampler;
use shared_proto::config::Env;

use crate::request::resolve::shown;

/// Time limits that are taken, ms.
const LIMIT_MS: RangeInclusive<u64> = 1..=300_000;
/// Lengths of the queue that are taken, spans: its room is reserved at the start.
const QUEUE: RangeInclusive<u64> = 1..=100_000;

// Each pair: the variable for traces, which goes first, and the one for all signals.
const ENDPOINT: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
];
const TIMEOUT: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
    "OTEL_EXPORTER_OTLP_TIMEOUT",
];
const PROTOCOL: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
];
const COMPRESSION: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION",
    "OTEL_EXPORTER_OTLP_COMPRESSION",
];
const HEADERS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
    "OTEL_EXPORTER_OTLP_HEADERS",
];
/// What would change how the collector's certificate is checked.
const CERTIFICATES: [&str; 6] = [
    "OTEL_EXPORTER_OTLP_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CLIENT_KEY",
    "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY",
];

/// Where traces go and how. The collector's headers are not here: only the
/// exporter ever holds them.
#[derive(Debug)]
pub(super) struct Settings {
    /// The full address that is posted to.
    pub(super) endpoint: Uri,
    pub(super) protocol: Protocol,
    pub(super) compression: Option<Compression>,
    /// For one batch, repeats included.
    pub(super) timeout: Duration,
    /// Spans that wait for export; what comes on top is dropped.
    pub(super) queue: usize,
    /// Spans of one export.
    pub(super) batch: usize,
    /// Longest time between two exports.
    pub(super) delay: Duration,
    pub(super) sampler: Sampler,
    /// Whether a client's `traceparent` is taken as parent.
    pub(super) parents: bool,
}

/// What the variables say: `None` when nothing is to be traced; and what of
/// them was ignored.
pub(super) fn read(env: &dyn Env) -> (Option<Settings>, Vec<String>) {
    let mut reader = Reader {
        env,
        warnings: Vec::new(),
    };
    let settings = reader.settings();
    (settings, reader.warnings)
}

struct Reader<'a> {
    env: &'a dyn Env,
    warnings: Vec<String>,
}

impl Reader<'_> {
    fn settings(&mut self) -> Option<Settings> {
        if self.disabled() || !self.exporting() {
            return None;
        }
        let endpoint = self.endpoint()?;
        self.check_headers();
        self.check_resource();
        self.check_certificates();
        let timeout = self.number(self.chosen(TIMEOUT), &LIMIT_MS, 10_000);
        let limit = self.number("OTEL_BSP_EXPORT_TIMEOUT", &LIMIT_MS, 30_000);
        let queue = self.number("OTEL_BSP_MAX_QUEUE_SIZE", &QUEUE, 2048);
        let batch = self.number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", &QUEUE, 512);
        let delay = self.number("OTEL_BSP_SCHEDULE_DELAY", &LIMIT_MS, 5000);
        Some(Settings {
            endpoint,
            protocol: self.protocol(),
            compression: self.compression(),
            timeout: Duration::from_millis(timeout.min(limit)),
            queue: size(queue),
            batch: size(batch.min(queue)),
            delay: Duration::from_millis(delay),
            sampler: self.sampler(),
            parents: self.parents(),
        })
    }

    /// The variable's value, trimmed; `None` when it is empty.
    fn var(&self, name: &str) -> Option<String> {
        let value = self.env.var(name)?.trim().to_owned();
        (!value.is_empty()).then_some(value)
    }

    /// The variable of a pair that counts.
    fn chosen(&self, [traces, all]: [&'static str; 2]) -> &'static str {
        match self.var(traces) {
            Some(_) => traces,
            None => all,
        }
    }

    fn warn(&mut self, name: &str, what: &str) {
        self.warnings.push(format!("{name}: {what}"));
    }

    /// About a word that is not one of those that are known.
    fn unknown(&mut self, name: &str, value: &str, instead: &str) {
        self.warn(
            name,
            &format!("`{}` is not known here; {instead}", shown(value)),
        );
    }

    fn disabled(&mut self) -> bool {
        const NAME: &str = "OTEL_SDK_DISABLED";
        match self.var(NAME) {
            None => false,
            Some(value) if value.eq_ignore_ascii_case("true") => true,
            Some(value) if value.eq_ignore_ascii_case("false") => false,
            Some(value) => {
                self.unknown(NAME, &value, "it counts as false");
                false
            }
        }
    }

    fn exporting(&mut self) -> bool {
        const NAME: &str = "OTEL_TRACES_EXPORTER";
        let Some(value) = self.var(NAME) else {
            return true;
        };
        for name in value.split(',').map(str::trim) {
            match name {
                "none" => return false,
                "otlp" => {}
                other => self.unknown(NAME, other, "traces go out by otlp"),
            }
        }
        if self.var(self.chosen(ENDPOINT)).is_none() {
            let names = ENDPOINT.join(" nor ");
            self.warn(NAME, &format!("nothing is traced: neither {names} is set"));
        }
        true
    }

    fn endpoint(&mut self) -> Option<Uri> {
        let name = self.chosen(ENDPOINT);
        let value = self.var(name)?;
        let address = if name == ENDPOINT[0] {
            value
        } else {
            format!("{}/v1/traces", value.trim_end_matches('/'))
        };
        let http = |uri: &Uri| {
            matches!(uri.scheme_str(), Some("http" | "https"))
                && uri.host().is_some_and(|h| !h.is_empty())
        };
        let Some(uri) = address.parse().ok().filter(http) else {
            self.warn(
                name,
                "nothing is traced: this is no address that begins with http:// or https://",
            );
            return None;
        };
        if uri
            .authority()
            .is_some_and(|who| who.as_str().contains('@'))
        {
            self.warn(
                name,
                "a user and password in it are not sent; use OTEL_EXPORTER_OTLP_HEADERS",
            );
        }
        Some(uri)
    }

    fn protocol(&mut self) -> Protocol {
        let name = self.chosen(PROTOCOL);
        match self.var(name).as_deref() {
            None | Some("http/protobuf") => Protocol::HttpBinary,
            Some("http/json") => Protocol::HttpJson,
            Some(other) => {
                let instead = "http/protobuf is used, for which collectors listen on port 4318";
                self.unknown(name, other, instead);
                Protocol::HttpBinary
            }
        }
    }

    /// The exporter reads this variable itself unless told otherwise, and knows
    /// no word for none. Every collector has to take gzip, so that is what a
    /// variable with any value comes to.
    fn compression(&mut self) -> Option<Compression> {
        let set = COMPRESSION.iter().any(|name| self.env.var(name).is_some());
        let name = self.chosen(COMPRESSION);
        match self.var(name).as_deref() {
            None | Some("gzip") => {}
            Some(other) => self.unknown(name, other, "gzip is used; for none, unset it"),
        }
        set.then_some(Compression::Gzip)
    }

    fn number(&mut self, name: &str, range: &RangeInclusive<u64>, default: u64) -> u64 {
        let Some(value) = self.var(name) else {
            return default;
        };
        match value.parse() {
            Ok(number) if range.contains(&number) => number,
            Ok(_) | Err(_) => {
                let (least, most) = (range.start(), range.end());
                let what =
                    format!("this is no whole number from {least} to {most}; {default} is used");
                self.warn(name, &what);
                default
            }
        }
    }

    fn sampler(&mut self) -> Sampler {
        const NAME: &str = "OTEL_TRACES_SAMPLER";
        let by_parent = |root| Sampler::ParentBased(Box::new(root));
        match self.var(NAME).as_deref() {
            Some("always_on") => Sampler::AlwaysOn,
            Some("always_off") => Sampler::AlwaysOff,
            Some("traceidratio") => Sampler::TraceIdRatioBased(self.ratio()),
            None | Some("parentbased_always_on") => by_parent(Sampler::AlwaysOn),
            Some("parentbased_always_off") => by_parent(Sampler::AlwaysOff),
            Some("parentbased_traceidratio") => by_parent(Sampler::TraceIdRatioBased(self.ratio())),
            Some(other) => {
                self.unknown(NAME, other, "parentbased_always_on is used");
                by_parent(Sampler::AlwaysOn)
            }
        }
    }

    fn ratio(&mut self) -> f64 {
        const NAME: &str = "OTEL_TRACES_SAMPLER_ARG";
        let Some(value) = self.var(NAME) else {
            return 1.0;
        };
        let ratio = value.parse().ok();
        ratio
            .filter(|ratio| (0.0..=1.0).contains(ratio))
            .unwrap_or_else(|| {
                self.warn(NAME, "this is no number from 0 to 1; 1 is used");
                1.0
            })
    }

    fn parents(&mut self) -> bool {
        const NAME: &str = "OTEL_PROPAGATORS";
        let Some(value) = self.var(NAME) else {
            return true;
        };
        let mut parents = false;
        for name in value.split(',').map(str::trim) {
            match name {
                "tracecontext" => parents = true,
                // Nothing here reads baggage.
                "baggage" | "none" => {}
                other => self.unknown(NAME, other, "only tracecontext gives a parent"),
            }
        }
        parents
    }

    fn check_headers(&mut self) {
        let name = self.chosen(HEADERS);
        let Some(value) = self.var(name) else { return };
        let usable = |entry: &str| {
            let name = entry.split_once('=').map(|(name, _)| name.trim());
            name.is_some_and(|name| HeaderName::from_bytes(name.as_bytes()).is_ok())
        };
        let entries = value.split_terminator(',');
        let unusable = entries.filter(|entry| !usable(entry)).count();
        if unusable > 0 {
            self.warn(
                name,
                &format!("{unusable} of its entries are no header=value and are not sent"),
            );
        }
    }

    fn check_resource(&mut self) {
        const NAME: &str = "OTEL_RESOURCE_ATTRIBUTES";
        let Some(value) = self.var(NAME) else { return };
        let entries = value.split_terminator(',');
        let unusable = entries.filter(|entry| !entry.contains('=')).count();
        if unusable > 0 {
            self.warn(
                NAME,
                &format!("{unusable} of its entries are no key=value and are left out"),
            );
        }
    }

    fn check_certificates(&mut self) {
        for name in CERTIFICATES {
            if self.var(name).is_some() {
                self.warn(
                    name,
                    "it is not supported; the machine's certificate authorities count",
                );
            }
        }
    }
}

fn size(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
