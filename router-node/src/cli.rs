//! The command line.

use std::fmt::Write as _;
use std::io::Write as IoWrite;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use coordinator::config::ProcessEnv;
use coordinator::health::{self, Question};
use shared_proto::config::{Env as _, Overrides, Problem, schema};

use crate::config::{Origin, Seen};
use crate::node::{self, StartError};
use crate::observe::{Spans, Telemetry, init_log};
use crate::welcome;

/// Puts one URL in front of many LLM accounts, and knows which of them may be
/// used now.
///
#[derive(Debug, Parser)]
#[command(name = "router-node", version, max_term_width = 100, after_help = AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    start: Start,
}

/// What `--help` adds.
const AFTER_HELP: &str = "\
Without any configuration the router listens on 127.0.0.1:8080, keeps its state in
./omniroute-data, and uses one connection for each provider whose usual variable is
set (OPENAI_API_KEY, ANTHROPIC_API_KEY, GEMINI_API_KEY, ...) besides the built-in
simulated provider.

Variables: OMNIROUTE_CONFIG, OMNIROUTE_LISTEN, OMNIROUTE_ADMIN_LISTEN,
OMNIROUTE_STORE_URL, OMNIROUTE_ADMIN_TOKEN, OMNIROUTE_NODE_ID, RUST_LOG, and the
standard OTEL_* (OTEL_EXPORTER_OTLP_ENDPOINT switches tracing on).";

#[derive(Debug, Args)]
struct Start {
    #[command(flatten)]
    file: FileArg,
    /// Address to listen on, such as 127.0.0.1:8080 (or `OMNIROUTE_LISTEN`)
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Where state lives: `embedded:DIR` or `embedded:memory` (or `OMNIROUTE_STORE_URL`)
    #[arg(long, value_name = "URL")]
    store: Option<String>,
}

#[derive(Debug, Args)]
struct FileArg {
    /// The configuration file; else `$OMNIROUTE_CONFIG`, else `./omniroute.yaml` if it is there
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Validate the configuration: every problem at once, each with its line and the key's path
    Check(FileArg),
    /// Ask a running router whether it is well; the exit code is 0 if so
    Health(HealthArgs),
    /// Print a new API key and its sha256 for `apiKeys`
    Keygen,
    /// Print the JSON Schema of the configuration file
    Schema,
}

#[derive(Debug, Args)]
struct HealthArgs {
    #[command(flatten)]
    file: FileArg,
    /// Where it listens; else where the configuration says
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<String>,
    /// Also ask whether it can route, not only whether it lives
    #[arg(long)]
    ready: bool,
    /// Also ask this model, such as `simulated/ok`, for an answer, with the key in `OMNIROUTE_CLIENT_KEY`
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
}

/// Runs the program on the process's own arguments.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.command {
        None => start(cli.start),
        Some(Command::Check(file)) => check(file.config),
        Some(Command::Health(asked)) => health(asked),
        Some(Command::Keygen) => print(&keygen()),
        Some(Command::Schema) => match serde_json::to_string_pretty(&schema()) {
            Ok(text) => print(&text),
            Err(error) => fail(&error.to_string()),
        },
    }
}

fn start(start: Start) -> ExitCode {
    let (telemetry, warnings) = Telemetry::start(&ProcessEnv);
    let tracer = telemetry.as_ref().map(Telemetry::tracer);
    let _flush = init_log(ProcessEnv.var("RUST_LOG").as_deref(), tracer);
    for warning in &warnings {
        tracing::warn!("{warning}");
    }
    if let Some(telemetry) = &telemetry {
        tracing::info!(collector = telemetry.address(), "requests are traced");
    }
    let code = run(start, telemetry.as_ref().map(Telemetry::spans));
    if let Some(telemetry) = telemetry {
        telemetry.stop();
    }
    code
}

fn run(start: Start, spans: Option<Spans>) -> ExitCode {
    let overrides = Overrides {
        listen: start.listen,
        store: start.store,
    };
    let origin = Origin::find(start.file.config, overrides);
    match actix::System::new().block_on(node::run(origin, spans)) {
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
    let seen = origin.read(&Seen::default());
    let loaded = seen.and_then(|mut seen| origin.load(&mut seen));
    let name = origin.file.map_or_else(
        || "no configuration file".to_owned(),
        |file| file.display().to_string(),
    );
    match loaded {
        Ok(loaded) => {
            let config = &loaded.config;
            let mut text = lines("warning: ", &loaded.warnings);
            let (connections, combos) = (config.connections.len(), config.combos.len());
            let keys = config.api_keys.len();
            text.push_str(&name);
            let counts = format!("{connections} connections, {combos} combos, {keys} API keys");
            text.push_str(": ok (");
            text.push_str(&counts);
            text.push(')');
            print(&text)
        }
        Err(problems) => {
            let count = problems.len();
            let text = lines("", &problems);
            fail(&format!("{text}{name}: {count} problem(s)"))
        }
    }
}

fn health(asked: HealthArgs) -> ExitCode {
    let address = match asked.address {
        Some(address) => address,
        None => match configured_address(asked.file.config) {
            Ok(address) => address,
            Err(problems) => return fail(lines("", &problems).trim_end()),
        },
    };
    let mut questions = vec![Question::get("/healthz")];
    if asked.ready {
        questions.push(Question::get("/readyz"));
    }
    if let Some(model) = asked.model {
        let key = ProcessEnv.var("OMNIROUTE_CLIENT_KEY");
        questions.push(Question::completion(&model, key.as_deref()));
    }
    health::tell(&address, &questions)
}

/// Where the configured router is reached from its own machine.
fn configured_address(file: Option<PathBuf>) -> Result<String, Vec<Problem>> {
    let origin = Origin::find(file, Overrides::default());
    let mut seen = origin.read(&Seen::default())?;
    let loaded = origin.load(&mut seen)?;
    Ok(welcome::reachable(loaded.config.server.listen))
}

fn lines(prefix: &str, problems: &[Problem]) -> String {
    let mut text = String::new();
    for problem in problems {
        // Writing to a string can't fail.
        writeln!(text, "{prefix}{problem}").ok();
    }
    text
}

fn keygen() -> String {
    use sha2::{Digest as _, Sha256};
    let random = [uuid::Uuid::new_v4(), uuid::Uuid::new_v4()];
    let key = format!("omr_{}{}", random[0].simple(), random[1].simple());
    let hash: [u8; 32] = Sha256::digest(key.as_bytes()).into();
    let mut hex = String::new();
    for byte in hash {
        write!(hex, "{byte:02x}").ok();
    }
    format!("key: {key}\nsha256: {hex}")
}

fn print(text: &str) -> ExitCode {
    match IoWrite::write_all(
        &mut std::io::stdout().lock(),
        format!("{text}\n").as_bytes(),
    ) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader closed the pipe: nothing more to do.
        Err(_) => ExitCode::FAILURE,
    }
}

fn fail(text: &str) -> ExitCode {
    IoWrite::write_all(
        &mut std::io::stderr().lock(),
        format!("{text}\n").as_bytes(),
    )
    .ok();
    ExitCode::FAILURE
}
