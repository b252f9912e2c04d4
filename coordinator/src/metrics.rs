//! Metrics of the duties and of the election.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::duty::Duty;
use crate::pen::Stop;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DutyLabels {
    duty: &'static str,
    result: &'static str,
}

/// What the duties count. Copies count together.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    turns: Family<DutyLabels, Counter>,
    pub(crate) writes: Counter,
    pub(crate) fenced: Counter,
    pub(crate) expired: Counter,
    pub(crate) forgotten: Counter,
    pub(crate) trimmed: Counter,
    pub(crate) lapsed: Counter,
    pub(crate) rested: Counter,
    pub(crate) elections: Counter,
}

impl Metrics {
    /// Enters them; `registry` has the common prefix.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "duty_turns",
            "Turns of the coordinator's duties by how they ended",
            self.turns.clone(),
        );
        for (name, help, counter) in [
            (
                "duty_writes",
                "Writes of the coordinator's duties",
                &self.writes,
            ),
            (
                "duty_writes_refused",
                "Writes that the fence refused, since another led already",
                &self.fenced,
            ),
            (
                "leases_expired",
                "Leases written down as expired",
                &self.expired,
            ),
            (
                "records_forgotten",
                "Records deleted because they were long over",
                &self.forgotten,
            ),
            (
                "log_entries_trimmed",
                "Entries taken from the change log for their age",
                &self.trimmed,
            ),
            (
                "nodes_lapsed",
                "Nodes that went without a word",
                &self.lapsed,
            ),
            (
                "siblings_rested",
                "Connections rested by the sweep for a limit of the address they leave by",
                &self.rested,
            ),
            (
                "elections_won",
                "Times this process came to lead",
                &self.elections,
            ),
        ] {
            registry.register(name, help, counter.clone());
        }
    }

    /// Counts a turn.
    pub(crate) fn turn(&self, duty: Duty, ended: Option<&Stop>) {
        let result = match ended {
            None => "done",
            Some(Stop::Over) => "cut_short",
            Some(Stop::Fenced) => "fenced",
            Some(Stop::Away(_)) => "failed",
        };
        let labels = DutyLabels {
            duty: duty.as_str(),
            result,
        };
        self.turns.get_or_create(&labels).inc();
    }
}
