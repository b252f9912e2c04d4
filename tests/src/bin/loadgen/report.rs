//! The table of results: medians over the rounds, the router beside nginx, the targets beside both.
//!
//! A comparison is made within each round, where both ran one after the other on the same machine, and
//! the median is taken of the comparisons: a machine that is slower for a while harms it little.

mod results;

use std::fmt::{self, Display, Write as _};

use crate::measurement::{Measurement, Subject, ratio};
use crate::scenario::Scenario;

use self::results::{Metric, Results, Spread};

/// A title and the lines below it.
type Section = (&'static str, Vec<Row>);

/// What a target bounds, and in which unit it is written. The range over the rounds says how far to trust it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bound {
    /// Nothing is promised.
    None,
    /// Router / nginx, or one router / another.
    Times(f64),
    /// Router - nginx in milliseconds.
    MoreMs(f64),
    /// The router's memory in MiB.
    Mib(f64),
}

/// A line of the table.
struct Row {
    what: &'static str,
    direct: Option<f64>,
    nginx: Option<f64>,
    router: Option<f64>,
    decimals: usize,
    /// What the bound is about.
    compared: Option<Spread>,
    bound: Bound,
}

/// The whole report, one line of text per row.
pub(crate) fn table(measurements: &[Measurement]) -> String {
    let results = Results(measurements);
    let mut lines = vec![format!(
        "{:42}{:>10}{:>10}{:>10}{:>10}{:>18}  target",
        "", "direct", "nginx", "router", "to nginx", "(range)"
    )];
    for (title, rows) in sections(&results) {
        lines.push(title.to_owned());
        lines.extend(rows.iter().map(Row::to_string));
    }
    let sum = |count: fn(&Measurement) -> u32| -> u64 {
        measurements.iter().map(count).map(u64::from).sum()
    };
    lines.push(format!(
        "wrong answers: {} of {}",
        sum(|m| m.wrong),
        sum(|m| m.requests)
    ));
    lines.join("\n") + "\n"
}

fn sections(results: &Results<'_>) -> Vec<Section> {
    use Scenario::{FirstByte, Large, Latency, PacedStreams, ReadyStreams, Small};
    let mut paced = throughput(results, PacedStreams, Bound::None);
    paced.push(Row {
        decimals: 1,
        ..relative(
            results,
            "time of a stream at p50, ms",
            PacedStreams,
            Measurement::latency_p50,
        )
    });
    let small = throughput(results, Small, Bound::Times(2.0));
    let large = throughput(results, Large, Bound::Times(2.0));
    let ready = throughput(results, ReadyStreams, Bound::Times(2.5));
    let (p50, p99) = (Measurement::latency_p50, Measurement::latency_p99);
    let latency = added(results, Latency, (p50, p99), Bound::MoreMs(0.15));
    let (p50, p99) = (Measurement::first_byte_p50, Measurement::first_byte_p99);
    let first_byte = added(results, FirstByte, (p50, p99), Bound::MoreMs(0.2));
    vec![
        ("small bodies, 64 connections", small),
        ("200 KB bodies, 64 connections", large),
        ("64 streams of 200 events, one per 5 ms", paced),
        ("streams of 20 ready events, 64 connections", ready),
        ("small bodies, 200 a second", latency),
        ("first byte of a stream, 100 a second", first_byte),
        ("memory", memory(results)),
        ("choice", vec![choice(results)]),
    ]
}

/// Requests a second, and the CPU they cost within `bound`.
fn throughput(results: &Results<'_>, scenario: Scenario, bound: Bound) -> Vec<Row> {
    let cpu = Measurement::cpu_per_thousand;
    vec![
        relative(results, "requests/s", scenario, Measurement::rate),
        Row {
            decimals: 3,
            bound,
            ..relative(results, "CPU s per 1,000 requests", scenario, cpu)
        },
    ]
}

/// The values of all three, and router / nginx.
fn relative(results: &Results<'_>, what: &'static str, of: Scenario, metric: Metric) -> Row {
    let pair = (Subject::Router, Subject::Nginx);
    Row {
        what,
        direct: results.middle(of, Subject::Direct, metric),
        nginx: results.middle(of, Subject::Nginx, metric),
        router: results.middle(of, Subject::Router, metric),
        decimals: 0,
        compared: results.paired(of, pair, metric, ratio),
        bound: Bound::None,
    }
}

/// What nginx and the router add to the direct time at p50, the router within `bound` of nginx, and at p99.
fn added(
    results: &Results<'_>,
    of: Scenario,
    (p50, p99): (Metric, Metric),
    bound: Bound,
) -> Vec<Row> {
    let added = |what, metric, bound| {
        let to = |pair| results.paired(of, pair, metric, |left, right| Some(left - right));
        let more = |pair| to(pair).map(|spread| spread.median);
        Row {
            what,
            direct: None,
            nginx: more((Subject::Nginx, Subject::Direct)),
            router: more((Subject::Router, Subject::Direct)),
            decimals: 3,
            compared: to((Subject::Router, Subject::Nginx)),
            bound,
        }
    };
    let whole = |what, metric| Row {
        decimals: 3,
        compared: None,
        ..relative(results, what, of, metric)
    };
    vec![
        whole("p50, ms", p50),
        added("added at p50, ms", p50, bound),
        whole("p99, ms", p99),
        added("added at p99, ms", p99, Bound::MoreMs(f64::INFINITY)),
    ]
}

fn memory(results: &Results<'_>) -> Vec<Row> {
    let peak = Measurement::peak_mib;
    let alone = |what, router, limit| Row {
        what,
        direct: None,
        nginx: None,
        router,
        decimals: 1,
        compared: router.map(Spread::single),
        bound: Bound::Mib(limit),
    };
    let thousand = Subject::Router1000;
    let idle = results.middle(Scenario::Idle, thousand, Measurement::rss_mib);
    vec![
        Row {
            what: "peak RSS after all of the above, MiB",
            direct: None,
            nginx: results.largest(Subject::Nginx, peak),
            router: results.largest(Subject::Router, peak),
            decimals: 1,
            compared: None,
            bound: Bound::None,
        },
        alone("idle RSS, 1,000 connections, MiB", idle, 40.0),
        alone(
            "peak RSS after load, 1,000 connections",
            results.largest(thousand, peak),
            80.0,
        ),
    ]
}

/// CPU of a whole request that chooses among many connections, to that of one that chooses among few.
fn choice(results: &Results<'_>) -> Row {
    let pair = (Subject::Router10000, Subject::Router10);
    let cpu = Measurement::cpu_per_thousand;
    Row {
        what: "CPU of a request, 10,000 : 10 connections",
        direct: None,
        nginx: None,
        router: None,
        decimals: 3,
        compared: results.paired(Scenario::Small, pair, cpu, ratio),
        bound: Bound::Times(2.0),
    }
}

impl Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  {:40}", self.what)?;
        for value in [self.direct, self.nginx, self.router] {
            match value {
                Some(value) => write!(f, "{value:>10.*}", self.decimals)?,
                None => write!(f, "{:>10}", "-")?,
            }
        }
        let mut tail = String::new();
        self.bound.write(&mut tail, self.compared)?;
        f.write_str(tail.trim_end())
    }
}

impl Bound {
    /// The comparison, the limit, and whether it holds.
    fn write(self, out: &mut String, compared: Option<Spread>) -> fmt::Result {
        let (show, limit, unit): (fn(f64) -> String, _, _) = match self {
            Self::None => (times, None, ""),
            Self::Times(limit) => (times, Some(limit), "x"),
            Self::MoreMs(limit) => (|ms| format!("{ms:+.3}"), Some(limit), " ms"),
            Self::Mib(limit) => (|_| String::new(), Some(limit), " MiB"),
        };
        let median = compared.map(|spread| show(spread.median));
        write!(out, "{:>10}", median.unwrap_or_default())?;
        let range = compared
            .filter(|spread| spread.low < spread.high)
            .map(|spread| format!("({} {})", show(spread.low), show(spread.high)));
        write!(out, "{:>18}", range.unwrap_or_default())?;
        let Some(limit) = limit.filter(|limit| limit.is_finite()) else {
            return Ok(());
        };
        let verdict = match compared {
            None => "not measured",
            Some(spread) if spread.median <= limit => "met",
            Some(_) => "NOT MET",
        };
        write!(out, "  at most {:11}{verdict}", format!("{limit}{unit}"))
    }
}

fn times(ratio: f64) -> String {
    format!("{ratio:.2}x")
}

#[cfg(test)]
mod tests;
