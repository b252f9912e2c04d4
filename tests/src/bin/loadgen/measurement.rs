//! One measurement: a line of JSON between `run` and `report`.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::load::{Outcome, Sample};
use crate::process::Usage;
use crate::samples::Quantiles;
use crate::scenario::Scenario;

/// What stands between the load and the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Subject {
    /// Nothing.
    Direct,
    Nginx,
    /// The router with one connection.
    Router,
    /// The router with so many connections.
    #[value(name = "router-10")]
    Router10,
    #[value(name = "router-1000")]
    Router1000,
    #[value(name = "router-10000")]
    Router10000,
}

/// What was measured, in which round.
pub(crate) type Label = (Scenario, Subject, u32);

/// The result of one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Measurement {
    pub(crate) scenario: Scenario,
    pub(crate) subject: Subject,
    pub(crate) round: u32,
    /// Right and wrong answers.
    pub(crate) requests: u32,
    pub(crate) wrong: u32,
    /// The first few wrong answers.
    pub(crate) first_wrong: Vec<String>,
    pub(crate) elapsed_seconds: f64,
    /// CPU time of the measured processes during the run.
    pub(crate) cpu_seconds: Option<f64>,
    /// To the end of the answer, from when the request was due.
    pub(crate) latency_us: Option<Quantiles>,
    /// To the first byte of the answer's body, likewise.
    pub(crate) first_byte_us: Option<Quantiles>,
    /// Memory of the measured processes after the run.
    pub(crate) rss_kib: Option<u64>,
    /// The most they ever had.
    pub(crate) peak_kib: Option<u64>,
}

impl Measurement {
    pub(crate) fn new(label: Label, outcome: &Outcome, memory: Option<Usage>) -> Self {
        let (scenario, subject, round) = label;
        let tally = &outcome.tally;
        let right = u32::try_from(tally.samples.len()).unwrap_or(u32::MAX);
        let quantiles =
            |field: fn(&Sample) -> u32| Quantiles::of(tally.samples.iter().map(field).collect());
        Self {
            scenario,
            subject,
            round,
            requests: right.saturating_add(tally.wrong),
            wrong: tally.wrong,
            first_wrong: tally.first_wrong.clone(),
            elapsed_seconds: outcome.elapsed.as_secs_f64(),
            cpu_seconds: outcome.cpu.map(|cpu| cpu.as_secs_f64()),
            latency_us: quantiles(|sample| sample.total_us),
            first_byte_us: quantiles(|sample| sample.first_byte_us),
            rss_kib: memory.map(|memory| memory.rss_kib),
            peak_kib: memory.map(|memory| memory.peak_kib),
        }
    }

    /// Answers a second.
    pub(crate) fn rate(&self) -> Option<f64> {
        ratio(f64::from(self.requests), self.elapsed_seconds)
    }

    /// CPU seconds for 1,000 requests.
    pub(crate) fn cpu_per_thousand(&self) -> Option<f64> {
        ratio(self.cpu_seconds? * 1000.0, f64::from(self.requests))
    }

    /// Milliseconds to the end of the answer, for half of the requests.
    pub(crate) fn latency_p50(&self) -> Option<f64> {
        Some(milliseconds(self.latency_us?.p50))
    }

    /// Milliseconds to the end of the answer, for 99 % of the requests.
    pub(crate) fn latency_p99(&self) -> Option<f64> {
        Some(milliseconds(self.latency_us?.p99))
    }

    /// Milliseconds to the first byte of the body, for half of the requests.
    pub(crate) fn first_byte_p50(&self) -> Option<f64> {
        Some(milliseconds(self.first_byte_us?.p50))
    }

    /// Milliseconds to the first byte of the body, for 99 % of the requests.
    pub(crate) fn first_byte_p99(&self) -> Option<f64> {
        Some(milliseconds(self.first_byte_us?.p99))
    }

    /// Resident memory after the run, MiB.
    pub(crate) fn rss_mib(&self) -> Option<f64> {
        self.rss_kib.map(mebibytes)
    }

    /// The most resident memory so far, MiB.
    pub(crate) fn peak_mib(&self) -> Option<f64> {
        self.peak_kib.map(mebibytes)
    }
}

/// `None` where there is nothing to divide by.
pub(crate) fn ratio(value: f64, by: f64) -> Option<f64> {
    (by > 0.0).then(|| value / by)
}

fn milliseconds(micros: u32) -> f64 {
    f64::from(micros) / 1000.0
}

fn mebibytes(kib: u64) -> f64 {
    f64::from(u32::try_from(kib).unwrap_or(u32::MAX)) / 1024.0
}
