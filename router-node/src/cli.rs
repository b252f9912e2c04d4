//! The command line.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use shared_proto::config::{Overrides, Problem, schema};

use crate::config::{Origin, var};
use crate::node::{self, StartError};
use crate::observe::init_log;

/// Puts one URL in front of many LLM accounts, and knows which of them may be
/// used now.
///
/// Without any configuration it listens on 127.0.0.1:8080, keeps its state in
/// ./omniroute-data, and uses one connection for each provider whose usual
/// variable is set (OPENAI_API_KEY, ANTHROPIC_API_KEY, GEMINI_API_KEY, ...)
/// besides the built-in simulated provider.
#[derive(Debug, Parser)]
#[command(name = "router-node", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    start: Start,
}

#[derive(Debug, Args)]
struct Start {
    #[command(flatten)]
    file: FileArg,
    /// Address to listen on, such as 127.0.0.1:8080 [env: OMNIROUTE_LISTEN]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Where state lives: embedded:DIR or embedded:memory [env: OMNIROUTE_STORE_URL]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
}

#[derive(Debug, Args)]
struct FileArg {
    /// The configuration file; else $OMNIROUTE_CONFIG, else ./omniroute.yaml if it is there
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Validate the configuration: every problem at once, each with file:line and the key's path
    Check(FileArg),
    /// Print a new API key and its sha256 for `apiKeys`
    Keygen,
    /// Print the JSON Schema of the configuration file
    Schema,
}

/// Runs the program on the process's own arguments.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.command {
        None => start(cli.start),
        Some(Command::Check(file)) => check(file.config),
        Some(Command::Keygen) => print(&keygen()),
        Some(Command::Schema) => match serde_json::to_string_pretty(&schema()) {
            Ok(text) => print(&text),
            Err(error) => fail(&error.to_string()),
        },
    }
}

fn start(start: Start) -> ExitCode {
    init_log(var("RUST_LOG").as_deref());
    let overrides = Overrides {
        listen: start.listen,
        store: start.store,
    };
    let origin = Origin::find(start.file.config, overrides);
    match actix::System::new().block_on(node::run(origin)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(StartError::Config(problems)) => {
            for problem in &problems {
                tracing::error!("{problem}");
            }
            tracing::error!(problems = problems.len(), "the configuration is refused");
            ExitCode::FAILURE
        }
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn check(file: Option<PathBuf>) -> ExitCode {
    let origin = Origin::find(file, Overrides::default());
    let loaded = origin
        .read()
        .and_then(|bytes| origin.load(bytes.as_deref()));
    let name = origin.file.map_or_else(
        || "no configuration file".to_owned(),
        |file| file.display().to_string(),
    );
    match loaded {
        Ok(loaded) => {
            let config = &loaded.config;
            let mut text = lines("warning: ", &loaded.warnings);
            text.push_str(&format!(
                "{name}: ok ({} connections, {} combos, {} API keys)",
                config.connections.len(),
                config.combos.len(),
                config.api_keys.len()
            ));
            print(&text)
        }
        Err(problems) => {
            let count = problems.len();
            let text = lines("", &problems);
            fail(&format!("{text}{name}: {count} problem(s)"))
        }
    }
}

fn lines(prefix: &str, problems: &[Problem]) -> String {
    problems
        .iter()
        .map(|problem| format!("{prefix}{problem}\n"))
        .collect()
}

fn keygen() -> String {
    use sha2::{Digest as _, Sha256};
    let random = [uuid::Uuid::new_v4(), uuid::Uuid::new_v4()];
    let key = format!("omr_{}{}", random[0].simple(), random[1].simple());
    let hash: [u8; 32] = Sha256::digest(key.as_bytes()).into();
    let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("key: {key}\nsha256: {hash}")
}

fn print(text: &str) -> ExitCode {
    match writeln!(std::io::stdout().lock(), "{text}") {
        Ok(()) => ExitCode::SUCCESS,
        // The reader closed the pipe: nothing more to do.
        Err(_) => ExitCode::FAILURE,
    }
}

fn fail(text: &str) -> ExitCode {
    writeln!(std::io::stderr().lock(), "{text}").ok();
    ExitCode::FAILURE
}
