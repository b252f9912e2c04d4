//! Metrics of slots and of session pins.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Seconds; up to the usual time of the queue and beyond.
const WAIT_BUCKETS: [f64; 10] = [0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 30.0, 120.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    result: &'static str,
}

/// Metrics of slots of connections with `maxConcurrent`.
#[derive(Clone)]
pub(crate) struct SlotMetrics {
    /// Slots in use by this node.
    pub(crate) held: Gauge,
    /// Requests of this node that wait for one.
    pub(crate) waiting: Gauge,
    /// How long they waited.
    pub(crate) wait: Histogram,
    admissions: Family<ResultLabels, Counter>,
}

impl Default for SlotMetrics {
    fn default() -> Self {
        Self {
            held: Gauge::default(),
            waiting: Gauge::default(),
            wait: Histogram::new(WAIT_BUCKETS),
            admissions: Family::default(),
        }
    }
}

impl SlotMetrics {
    /// Enters them; `registry` has the common prefix.
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "slots_held",
            "Slots of connections with a cap that this node uses",
            self.held.clone(),
        );
        registry.register(
            "slot_queue",
            "Requests of this node that wait for a slot",
            self.waiting.clone(),
        );
        registry.register(
            "slot_wait_seconds",
            "Waits for a slot, those that ended without one included",
            self.wait.clone(),
        );
        registry.register(
            "slot_admissions",
            "Attempts on connections with a cap, by how they came by a slot or went without",
            self.admissions.clone(),
        );
    }

    /// Counts an attempt: `free`, `waited`, `share`, `timeout`, `queue_full` or
    /// `uncounted`.
    pub(crate) fn admitted(&self, result: &'static str) {
        let labels = ResultLabels { result };
        self.admissions.get_or_create(&labels).inc();
    }
}

/// Counters of session pins.
#[derive(Clone, Default)]
pub(crate) struct PinMetrics {
    choices: Family<ResultLabels, Counter>,
}

impl PinMetrics {
    /// Enters them; `registry` has the common prefix.
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "session_pins",
            "Choices of a connection for a session, by what its pin said",
            self.choices.clone(),
        );
    }

    /// Counts a choice: `kept`, `made`, `found`, `spilled` or `local`.
    pub(crate) fn chosen(&self, result: &'static str) {
        let labels = ResultLabels { result };
        self.choices.get_or_create(&labels).inc();
    }
}
