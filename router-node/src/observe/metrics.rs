//! Metrics in Prometheus' conventions: base units, `_total`, labels whose
//! values come from the configuration or from closed sets.

use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::cluster::ClusterMetrics;
use super::egress::EgressMetrics;
use super::leases::LeaseMetrics;
use super::slots::{PinMetrics, SlotMetrics};
use super::tokens::TokenMetrics;
use super::trials::TrialMetrics;
use super::wall::WallMetrics;
use crate::actor::owner::CommitCounters;
use crate::request::trace::{Outcome, Record};

/// Seconds; from a cache hit to a long answer.
const BUCKETS: [f64; 14] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 120.0, 600.0,
];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RequestLabels {
    protocol: &'static str,
    outcome: &'static str,
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ProtocolLabels {
    protocol: &'static str,
}

/// Labels of an attempt: the provider's configured name and closed words.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct AttemptLabels {
    pub(crate) provider: String,
    pub(crate) outcome: &'static str,
    pub(crate) reason: &'static str,
}

/// Labels of a failure: the provider's configured name, closed words, and a rule
/// of the program's or of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FailureLabels {
    provider: String,
    reason: &'static str,
    scope: &'static str,
    rule: String,
    hint: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct StateLabels {
    pub(crate) provider: String,
    pub(crate) state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct QuirkLabels {
    quirk: &'static str,
}

/// Every metric of a node.
pub(crate) struct Metrics {
    registry: Registry,
    resident_memory: Gauge,
    requests: Family<RequestLabels, Counter>,
    duration: Family<ProtocolLabels, Histogram>,
    first_byte: Family<ProtocolLabels, Histogram>,
    pub(crate) requests_in_flight: Gauge,
    /// Also what the bound of all request bodies is judged by.
    pub(crate) request_body_bytes: Gauge,
    attempts: Family<AttemptLabels, Counter>,
    failures: Family<FailureLabels, Counter>,
    quirks: Family<QuirkLabels, Counter>,
    waits: Counter,
    /// Connections by provider and state, set when the metrics are read.
    pub(crate) connections: Family<StateLabels, Gauge>,
    /// 1 for the state each provider's breaker is in, set when the metrics are read.
    pub(crate) breakers: Family<StateLabels, Gauge>,
    pub(crate) reloads: Family<ReloadLabels, Counter>,
    pub(crate) commits: CommitCounters,
    pub(crate) store_up: Gauge,
    pub(crate) cluster: ClusterMetrics,
    /// Of the coordinator's duties, where this process does them.
    pub(crate) duties: coordinator::Metrics,
    pub(crate) leases: LeaseMetrics,
    pub(crate) slots: SlotMetrics,
    pub(crate) pins: PinMetrics,
    pub(crate) tokens: TokenMetrics,
    pub(crate) trials: TrialMetrics,
    pub(crate) egress: EgressMetrics,
    pub(crate) wall: WallMetrics,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ReloadLabels {
    pub(crate) result: &'static str,
}

fn histogram() -> Histogram {
    Histogram::new(BUCKETS)
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::default(),
            resident_memory: Gauge::default(),
            requests: Family::default(),
            duration: Family::new_with_constructor(histogram),
            first_byte: Family::new_with_constructor(histogram),
            requests_in_flight: Gauge::default(),
            request_body_bytes: Gauge::default(),
            attempts: Family::default(),
            failures: Family::default(),
            quirks: Family::default(),
            waits: Counter::default(),
            connections: Family::default(),
            breakers: Family::default(),
            reloads: Family::default(),
            commits: CommitCounters::default(),
            store_up: Gauge::default(),
            cluster: ClusterMetrics::new(),
            duties: coordinator::Metrics::default(),
            leases: LeaseMetrics::default(),
            slots: SlotMetrics::default(),
            pins: PinMetrics::default(),
            tokens: TokenMetrics::default(),
            trials: TrialMetrics::default(),
            egress: EgressMetrics::default(),
            wall: WallMetrics::default(),
        };
        metrics.register();
        // There from the start, so that the first one is seen to be more than none.
        for result in ["applied", "refused"] {
            drop(metrics.reloads.get_or_create(&ReloadLabels { result }));
        }
        metrics
    }

    fn register(&mut self) {
        self.registry.register(
            "process_resident_memory_bytes",
            "Memory of the process that is in use",
            self.resident_memory.clone(),
        );
        let r = self.registry.sub_registry_with_prefix("omniroute");
        r.register(
            "requests",
            "Client requests by how they ended",
            self.requests.clone(),
        );
        r.register(
            "request_duration_seconds",
            "From the request's head to the answer's last byte",
            self.duration.clone(),
        );
        r.register(
            "first_byte_seconds",
            "From the request's head to the first byte of a stream",
            self.first_byte.clone(),
        );
        r.register(
            "requests_in_flight",
            "Client requests under way on this node",
            self.requests_in_flight.clone(),
        );
        r.register(
            "request_body_bytes",
            "Memory held by the bodies of client requests under way",
            self.request_body_bytes.clone(),
        );
        r.register(
            "attempts",
            "Upstream calls by result and reason",
            self.attempts.clone(),
        );
        r.register(
            "failures",
            "Failed upstream calls: why, what it was charged to, by which rule, where an announced wait was read",
            self.failures.clone(),
        );
        r.register(
            "stream_quirks",
            "Harmless oddities seen in upstream streams",
            self.quirks.clone(),
        );
        self.register_state();
    }

    fn register_state(&mut self) {
        let r = self.registry.sub_registry_with_prefix("omniroute");
        r.register(
            "cooldown_waits",
            "Waits inside a request for a cooling connection",
            self.waits.clone(),
        );
        r.register(
            "connections",
            "Connections by state",
            self.connections.clone(),
        );
        r.register(
            "breaker_state",
            "1 for the state a provider's breaker is in",
            self.breakers.clone(),
        );
        r.register(
            "config_reloads",
            "Reloads of the configuration file by result",
            self.reloads.clone(),
        );
        let c = &self.commits;
        r.register(
            "store_commits",
            "Changes of shared state accepted",
            c.accepted.clone(),
        );
        r.register(
            "store_conflicts",
            "Changes that met a newer record and were applied again",
            c.conflicts.clone(),
        );
        r.register(
            "store_failures",
            "Changes the store did not take",
            c.failed.clone(),
        );
        r.register(
            "store_up",
            "1 when the store answers",
            self.store_up.clone(),
        );
        self.cluster.register(r);
        self.duties.register(r);
        self.leases.register(r);
        self.slots.register(r);
        self.pins.register(r);
        self.tokens.register(r);
        self.trials.register(r);
        self.egress.register(r);
        self.wall.register(r);
    }

    /// Counts a finished request.
    pub(crate) fn request_ended(&self, record: &Record, took: Duration) {
        let protocol = record.protocol();
        let status = match record.outcome {
            Outcome::ClientGone => 499,
            Outcome::Success | Outcome::Error | Outcome::StreamFailed => record.status.unwrap_or(0),
        };
        let labels = RequestLabels {
            protocol,
            outcome: record.outcome.as_str(),
            status,
        };
        self.requests.get_or_create(&labels).inc();
        let labels = ProtocolLabels { protocol };
        self.duration
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
        if let Some(ms) = record.first_byte_ms.filter(|_| record.stream) {
            let seconds = Duration::from_millis(ms).as_secs_f64();
            self.first_byte.get_or_create(&labels).observe(seconds);
        }
        for attempt in &record.attempts {
            let labels = AttemptLabels {
                provider: attempt.provider.as_str().to_owned(),
                outcome: attempt.outcome,
                reason: attempt
                    .failure
                    .as_ref()
                    .map_or("none", |f| f.reason.as_str()),
            };
            self.attempts.get_or_create(&labels).inc();
            let Some(failure) = &attempt.failure else {
                continue;
            };
            let labels = FailureLabels {
                provider: attempt.provider.as_str().to_owned(),
                reason: failure.reason.as_str(),
                scope: failure.blame.as_str(),
                rule: failure.rule.clone(),
                hint: failure
                    .hint
                    .as_ref()
                    .map_or("none", |hint| hint.source.as_str()),
            };
            self.failures.get_or_create(&labels).inc();
        }
        for quirk in &record.quirks {
            self.quirks.get_or_create(&QuirkLabels { quirk }).inc();
        }
        self.waits
            .inc_by(u64::try_from(record.waits_ms.len()).unwrap_or(0));
    }

    /// The text exposition.
    pub(crate) fn encode(&self) -> String {
        self.resident_memory.set(resident_memory());
        let mut out = String::new();
        // Writing to a string can't fail; what is there is served either way.
        text::encode(&mut out, &self.registry).ok();
        out
    }
}

/// From the kernel's own count of pages; 0 where it can't be read.
fn resident_memory() -> i64 {
    const PAGE: i64 = 4096;
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = pages.split_whitespace().nth(1).and_then(|n| n.parse().ok());
    pages.map_or(0, |pages: i64| pages.saturating_mul(PAGE))
}
