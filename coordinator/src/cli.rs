//! The command line.

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::{DEFAULT_LISTEN, Options, health, run};

/// Does for a cluster what one process has to do: expiry, clean-up, log trimming.
///
/// Start two or more on the routers' shared store: one leads, the others stand by
/// and take over when it falls silent for `coordinator.leaseMs`. Without any,
/// nothing is wrong, only late. An embedded store belongs to one router process,
/// which does the same itself.
#[derive(Debug, Parser)]
#[command(name = "coordinator", version, max_term_width = 100, after_help = AFTER_HELP)]
#[command(args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    options: Options,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Ask a running coordinator whether it is well; the exit code is 0 if so
    Health {
        /// Where it listens
        #[arg(long, value_name = "HOST:PORT", default_value_t = DEFAULT_LISTEN.to_string())]
        address: String,
    },
}

/// What `--help` adds.
const AFTER_HELP: &str = "\
Exit codes: 0 after SIGTERM or SIGINT; 1 for a refused configuration or an address that is
taken; 2 when the store is embedded, so that there is nothing to coordinate.

Variables: OMNIROUTE_CONFIG, OMNIROUTE_STORE_URL, OMNIROUTE_NODE_ID, RUST_LOG.";

/// Runs the program on the process's own arguments.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Some(Command::Health { address }) = cli.command {
        return health::tell(&address, &[health::Question::get("/readyz")]);
    }
    match run(&cli.options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            writeln!(std::io::stderr().lock(), "coordinator: {error}").ok();
            ExitCode::from(error.exit_code())
        }
    }
}
