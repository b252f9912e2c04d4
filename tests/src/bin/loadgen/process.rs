//! What a process and its children have used, from `/proc`.

use std::fs;
use std::io;
use std::time::Duration;

/// `/proc` counts CPU time in hundredths of a second on every Linux.
const TICK_MS: u64 = 10;

/// CPU time and memory of a process tree at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// User and system time so far.
    pub(crate) cpu: Duration,
    /// Resident memory. Pages that several processes share count for each.
    pub(crate) rss_kib: u64,
    /// The most resident memory so far, likewise.
    pub(crate) peak_kib: u64,
}

impl Usage {
    /// The usage of `root` and all its descendants. An error when `root` is not there.
    pub(crate) fn of(root: u32) -> io::Result<Self> {
        let all = processes()?;
        if all.iter().all(|process| process.pid != root) {
            let why = format!("no process {root}");
            return Err(io::Error::new(io::ErrorKind::NotFound, why));
        }
        let tree = descendants(root, &all);
        let mut usage = Self::default();
        for process in all.iter().filter(|process| tree.contains(&process.pid)) {
            let status = fs::read_to_string(format!("/proc/{}/status", process.pid))?;
            usage.cpu = usage.cpu.saturating_add(process.cpu);
            usage.rss_kib = usage.rss_kib.saturating_add(kib(&status, "VmRSS:"));
            usage.peak_kib = usage.peak_kib.saturating_add(kib(&status, "VmHWM:"));
        }
        Ok(usage)
    }
}

/// One line of the process table.
#[derive(Debug, PartialEq, Eq)]
struct Process {
    pid: u32,
    parent: u32,
    cpu: Duration,
}

/// `root`, its children, theirs, and so on. Each process has one parent, so none is met twice.
fn descendants(root: u32, all: &[Process]) -> Vec<u32> {
    let mut tree = vec![root];
    let mut next = 0;
    while let Some(parent) = tree.get(next).copied() {
        let children = all.iter().filter(|process| process.parent == parent);
        tree.extend(children.map(|process| process.pid));
        next = next.saturating_add(1);
    }
    tree
}

fn processes() -> io::Result<Vec<Process>> {
    let numbered = fs::read_dir("/proc")?.filter_map(|entry| {
        let name = entry.ok()?.file_name();
        name.to_str()?.parse::<u32>().ok()
    });
    // A process that ends while we look has no line any more.
    let found = numbered.filter_map(|pid| {
        let line = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        parse_stat(&line)
    });
    Ok(found.collect())
}

/// The fields of `/proc/PID/stat`. The name, in brackets, may hold anything, so count from its end.
fn parse_stat(line: &str) -> Option<Process> {
    let pid = line.split_whitespace().next()?.parse().ok()?;
    let (_, after_name) = line.rsplit_once(')')?;
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    let ticks = number(11)?.saturating_add(number(12)?);
    Some(Process {
        pid,
        parent: u32::try_from(number(1)?).ok()?,
        cpu: Duration::from_millis(ticks.saturating_mul(TICK_MS)),
    })
}

/// The kibibytes of one line of `/proc/PID/status`; 0 for a process without memory of its own.
fn kib(status: &str, label: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(label));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests;
