//! The lines of `/proc`, and this very process.

use std::process::Command;
use std::time::Duration;

use super::{Process, Usage, descendants, kib, parse_stat};

#[test]
fn a_name_may_hold_brackets_and_spaces() {
    let line = "42 (a) b (c) R 7 42 42 0 -1 4194304 98 0 0 0 150 25 900 900 20 0 1 0 131379";
    let expected = Process {
        pid: 42,
        parent: 7,
        cpu: Duration::from_millis(1750),
    };
    assert_eq!(parse_stat(line), Some(expected));
    assert_eq!(parse_stat("42 (cut"), None);
}

#[test]
fn memory_lines_are_in_kib() {
    let status = "Name:\tx\nVmHWM:\t    1704 kB\nVmRSS:\t    1600 kB\n";
    assert_eq!((kib(status, "VmHWM:"), kib(status, "VmRSS:")), (1704, 1600));
    assert_eq!(kib("Name:\tkthreadd\n", "VmRSS:"), 0);
}

#[test]
fn the_tree_is_the_root_and_all_below_it() {
    let table = [
        (1, 0),
        (10, 1),
        (11, 10),
        (12, 11),
        (13, 10),
        (20, 1),
        (21, 20),
    ];
    let all: Vec<Process> = table
        .iter()
        .map(|&(pid, parent)| Process {
            pid,
            parent,
            cpu: Duration::ZERO,
        })
        .collect();
    assert_eq!(descendants(10, &all), [10, 11, 13, 12]);
    assert_eq!(descendants(21, &all), [21]);
}

#[test]
fn a_process_that_is_not_there_is_an_error() {
    let own = Usage::of(std::process::id()).unwrap();
    assert!(own.rss_kib > 0 && own.peak_kib >= own.rss_kib);
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    assert!(Usage::of(child.id()).is_err());
}
