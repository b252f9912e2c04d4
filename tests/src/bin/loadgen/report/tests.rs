//! The table's lines from hand-made measurements.

use super::table;
use crate::measurement::{Measurement, Subject};
use crate::samples::Quantiles;
use crate::scenario::Scenario;

fn measured(scenario: Scenario, subject: Subject, round: u32) -> Measurement {
    Measurement {
        scenario,
        subject,
        round,
        requests: 1_000,
        wrong: 0,
        first_wrong: Vec::new(),
        elapsed_seconds: 1.0,
        cpu_seconds: None,
        latency_us: None,
        first_byte_us: None,
        rss_kib: None,
        peak_kib: None,
    }
}

/// The words of the line after `title` that starts with `what`.
fn line(measurements: &[Measurement], title: &str, what: &str) -> String {
    let table = table(measurements);
    let below = table.split_once(title).unwrap().1;
    let found = below
        .lines()
        .find_map(|line| line.trim().strip_prefix(what));
    let words: Vec<&str> = found.unwrap().split_whitespace().collect();
    words.join(" ")
}

#[test]
fn the_ratio_is_the_median_of_the_rounds_ratios() {
    let cpu = |subject, round, seconds| Measurement {
        cpu_seconds: Some(seconds),
        ..measured(Scenario::Small, subject, round)
    };
    let mut all = vec![
        cpu(Subject::Nginx, 1, 0.1),
        cpu(Subject::Router, 1, 0.15),
        cpu(Subject::Nginx, 2, 0.4),
        cpu(Subject::Router, 2, 0.8),
        cpu(Subject::Nginx, 3, 0.1),
        cpu(Subject::Router, 3, 0.21),
    ];
    let small = |all: &[Measurement]| line(all, "small bodies, 64", "CPU s per 1,000 requests");
    assert_eq!(
        small(&all),
        "- 0.100 0.210 2.00x (1.50x 2.10x) at most 2x met"
    );
    all.push(cpu(Subject::Nginx, 4, 0.1));
    all.push(cpu(Subject::Router, 4, 0.3));
    assert_eq!(
        small(&all),
        "- 0.100 0.255 2.05x (1.50x 3.00x) at most 2x NOT MET"
    );
    all.retain(|m| m.subject == Subject::Nginx);
    assert_eq!(small(&all), "- 0.100 - at most 2x not measured");
}

#[test]
fn added_time_is_the_difference_to_direct() {
    let timed = |subject, p50| Measurement {
        latency_us: Some(Quantiles {
            p50,
            p99: 900,
            max: 900,
        }),
        ..measured(Scenario::Latency, subject, 1)
    };
    let all = [
        timed(Subject::Direct, 100),
        timed(Subject::Nginx, 150),
        timed(Subject::Router, 290),
    ];
    let row = |what| line(&all, "small bodies, 200", what);
    assert_eq!(row("p50, ms"), "0.100 0.150 0.290");
    assert_eq!(
        row("added at p50, ms"),
        "- 0.050 0.190 +0.140 at most 0.15 ms met"
    );
    assert_eq!(row("added at p99, ms"), "- 0.000 0.000 +0.000");
}

#[test]
fn memory_is_the_peak_of_all_runs() {
    let peak = |scenario, kib| Measurement {
        rss_kib: Some(kib),
        peak_kib: Some(kib),
        ..measured(scenario, Subject::Router1000, 1)
    };
    let all = [
        peak(Scenario::Idle, 39 << 10),
        peak(Scenario::Small, 81 << 10),
        peak(Scenario::Large, 60 << 10),
    ];
    let row = |what| line(&all, "memory", what);
    assert_eq!(
        row("idle RSS, 1,000 connections, MiB"),
        "- - 39.0 at most 40 MiB met"
    );
    let after = row("peak RSS after load, 1,000 connections");
    assert_eq!(after, "- - 81.0 at most 80 MiB NOT MET");
}

#[test]
fn wrong_answers_are_counted() {
    let mut all = [
        measured(Scenario::Small, Subject::Direct, 1),
        measured(Scenario::Small, Subject::Nginx, 1),
    ];
    all[1].wrong = 7;
    assert!(table(&all).ends_with("wrong answers: 7 of 2000\n"));
}
