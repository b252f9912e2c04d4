//! Questions to a set of measurements; `None` where what is asked for was not measured.

use crate::measurement::{Measurement, Subject};
use crate::samples::median;
use crate::scenario::Scenario;

/// One number of a measurement.
pub(super) type Metric = fn(&Measurement) -> Option<f64>;

/// A number that was measured several times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Spread {
    pub(super) fn single(value: f64) -> Self {
        Self {
            median: value,
            low: value,
            high: value,
        }
    }

    fn of(values: Vec<f64>) -> Option<Self> {
        let low = values.iter().copied().reduce(f64::min)?;
        let high = values.iter().copied().reduce(f64::max)?;
        let median = median(values)?;
        Some(Self { median, low, high })
    }
}

/// The measurements of a whole run of the benchmark.
pub(super) struct Results<'a>(pub(super) &'a [Measurement]);

impl Results<'_> {
    /// The median over the rounds.
    pub(super) fn middle(&self, of: Scenario, subject: Subject, metric: Metric) -> Option<f64> {
        median(
            self.rounds(of, subject, metric)
                .map(|(_, value)| value)
                .collect(),
        )
    }

    /// `combine(left, right)` over the rounds, each pair from one round.
    pub(super) fn paired(
        &self,
        of: Scenario,
        (left, right): (Subject, Subject),
        metric: Metric,
        combine: fn(f64, f64) -> Option<f64>,
    ) -> Option<Spread> {
        let pairs = self.rounds(of, left, metric).filter_map(|(round, value)| {
            let mut others = self.rounds(of, right, metric);
            let (_, other) = others.find(|(other_round, _)| *other_round == round)?;
            combine(value, other)
        });
        Spread::of(pairs.collect())
    }

    /// The largest value over everything that was done to `subject`.
    pub(super) fn largest(&self, subject: Subject, metric: Metric) -> Option<f64> {
        let of_subject = self.0.iter().filter(|m| m.subject == subject);
        of_subject.filter_map(metric).reduce(f64::max)
    }

    fn rounds(
        &self,
        of: Scenario,
        subject: Subject,
        metric: Metric,
    ) -> impl Iterator<Item = (u32, f64)> {
        let asked = self
            .0
            .iter()
            .filter(move |m| m.scenario == of && m.subject == subject);
        asked.filter_map(move |m| Some((m.round, metric(m)?)))
    }
}
