//! What several nodes on one Redis cost and how quickly they agree: `scripts/bench cluster`.
//!
//! Everything is started here, on loopback, but the upstream. Each part prints its figures as lines of a
//! table as soon as it has them; ratios compare measurements of the same run.

mod failover;
mod fleet;
mod lag;
mod leases;
mod traffic;

use std::error::Error;
use std::fmt::Display;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::Duration;

/// Why a part has no figures.
pub(crate) type Failed = Box<dyn Error>;

/// Runs all parts, each measurement for `duration`.
pub(crate) async fn run(upstream: SocketAddr, duration: Duration) -> Result<(), Failed> {
    say("| figure | value |")?;
    say("|---|---|")?;
    traffic::measure(upstream, duration).await?;
    leases::measure(upstream, duration).await?;
    lag::measure(upstream).await?;
    failover::measure(upstream).await
}

/// Prints one line of the table.
fn figure(name: impl Display, value: impl Display) -> io::Result<()> {
    say(&format!("| {name} | {value} |"))
}

fn say(line: &str) -> io::Result<()> {
    writeln!(io::stdout(), "{line}")
}
