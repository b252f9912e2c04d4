//! Entry point of a coordinator.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;
use coordinator::{Options, run};

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            writeln!(std::io::stderr().lock(), "coordinator: {error}").ok();
            ExitCode::from(error.exit_code())
        }
    }
}
