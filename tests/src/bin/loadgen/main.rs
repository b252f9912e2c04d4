//! The load generator of `scripts/bench`: runs one scenario against one address, checks every answer,
//! prints one line of JSON; and turns many such lines into the table of results.

mod chunked;
mod cluster;
mod connection;
mod load;
mod measurement;
mod process;
mod report;
mod samples;
mod scenario;

use std::error::Error;
use std::io::{self, BufRead, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::load::Target;
use crate::measurement::{Measurement, Subject};
use crate::process::Usage;
use crate::scenario::Scenario;

#[derive(Parser)]
#[command(about = "Loads one address with chat completions and measures; see scripts/bench")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run one scenario and print its measurement as a line of JSON; fails if an answer was wrong
    Run(Run),
    /// Start nodes on one Redis and print a table of what that costs and how quickly they agree
    Cluster(Cluster),
    /// Print COUNT free ports of 127.0.0.1
    Ports { count: u8 },
    /// Print the table made from the lines of `run`
    Report { file: PathBuf },
}

#[derive(Args)]
struct Run {
    /// What to do.
    #[arg(long)]
    scenario: Scenario,
    /// What is measured: the name in the report.
    #[arg(long)]
    subject: Subject,
    /// The measurements of one round are compared with each other.
    #[arg(long, default_value_t = 1)]
    round: u32,
    /// Where the requests go.
    #[arg(long)]
    target: SocketAddr,
    /// The measured process; its children count too.
    #[arg(long)]
    pid: Option<u32>,
    /// How long to send; what is under way then is finished.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
}

#[derive(Args)]
struct Cluster {
    /// The mock upstream.
    #[arg(long)]
    upstream: SocketAddr,
    /// How long each measurement of traffic lasts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Run(run) => run.execute().await,
        Command::Cluster(cluster) => {
            cluster::run(cluster.upstream, Duration::from_secs(cluster.seconds)).await
        }
        Command::Ports { count } => print_ports(count),
        Command::Report { file } => print_report(&file),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // With stderr gone there is nobody to tell; the exit code still does.
            writeln!(io::stderr(), "loadgen: {error}").ok();
            ExitCode::FAILURE
        }
    }
}

impl Run {
    async fn execute(self) -> Result<(), Box<dyn Error>> {
        let target = Target {
            address: self.target,
            pid: self.pid,
            duration: Duration::from_secs(self.seconds),
        };
        let outcome = load::run(self.scenario, target).await?;
        let memory = self.pid.map(Usage::of).transpose()?;
        let measurement =
            Measurement::new((self.scenario, self.subject, self.round), &outcome, memory);
        writeln!(io::stdout(), "{}", serde_json::to_string(&measurement)?)?;
        if measurement.wrong > 0 {
            return Err(format!(
                "{} of {} answers were wrong: {}",
                measurement.wrong,
                measurement.requests,
                measurement.first_wrong.join("; ")
            )
            .into());
        }
        Ok(())
    }
}

/// Holds all the ports at once, so that no two are the same.
fn print_ports(count: u8) -> Result<(), Box<dyn Error>> {
    let held: Vec<TcpListener> = (0..count)
        .map(|_| TcpListener::bind("127.0.0.1:0"))
        .collect::<io::Result<_>>()?;
    for listener in held {
        writeln!(io::stdout(), "{}", listener.local_addr()?.port())?;
    }
    Ok(())
}

fn print_report(file: &Path) -> Result<(), Box<dyn Error>> {
    let mut measurements = Vec::new();
    for line in io::BufReader::new(std::fs::File::open(file)?).lines() {
        measurements.push(serde_json::from_str(&line?)?);
    }
    write!(io::stdout(), "{}", report::table(&measurements))?;
    Ok(())
}
