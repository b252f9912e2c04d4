//! The coordinator of a cluster: what one process does for all.
//!
//! Coordinators on one shared store elect a leader
//! ([`shared_proto::leader`]), which does the duties: it writes down that
//! leases ran out, deletes what is long over, trims the change log, notices who
//! has gone. Nothing is wrong without one, only late: each reader judges time
//! by itself. A router on a store of its own does the same duties in its own
//! process ([`alone`]).
//!
//! | what | module |
//! |---|---|
//! | the loop of turns: election first, then duties | `lead` |
//! | each duty, its period and bound | `duty` |
//! | what is due when (pure) | [`agenda`] |
//! | writes under the fence | `pen` |
//! | snapshot and log | `follow` |
//! | the process: health, metrics, signals, roster | `process`, `http` |
//! | the command line; asking a running process, for routers too | [`cli`], [`health`] |
//! | configuration from files and environment, for routers too | [`config`] |

pub mod agenda;
pub mod cli;
pub mod config;
mod duty;
mod follow;
pub mod health;
mod http;
mod lead;
mod log;
mod metrics;
mod pause;
mod pen;
mod process;

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use shared_proto::config::{Config, Env, Problem, RedisUrl, StoreUrl};

pub use duty::Configured;
pub use lead::{Board, Work, alone};
pub use metrics::Metrics;
pub use pause::Backoff;

#[cfg(test)]
mod tests;

/// Where a coordinator listens unless told otherwise.
const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9091);

/// What a coordinator is started with.
#[derive(Args, Clone, Debug, Default)]
pub struct Options {
    /// The routers' configuration file; else `$OMNIROUTE_CONFIG`, else `./omniroute.yaml` if it is there
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where state lives, such as `redis://127.0.0.1:6379` (or `OMNIROUTE_STORE_URL`)
    #[arg(long, value_name = "URL")]
    pub store: Option<String>,
    /// Address for /healthz, /readyz and /metrics [default: 127.0.0.1:9091]
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<SocketAddr>,
}

/// Why a coordinator does not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration is refused: every problem, each with its place.
    #[error("the configuration is refused{}", lines(.0))]
    Config(Vec<Problem>),
    /// The store belongs to one router process.
    #[error(
        "nothing to coordinate: store.url is {0}, and an embedded store belongs to one router process, \
         which does the coordinator's duties itself; a coordinator needs a shared store \
         (redis://, rediss://, redis+sentinel:// or redis+cluster://)"
    )]
    Embedded(String),
    /// The shared store can't even be looked for.
    #[error("{0}")]
    Store(String),
    /// The address can't be listened on.
    #[error("--listen: can't listen on {address}: {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        error: std::io::Error,
    },
    /// Signals can't be received.
    #[error("signals can't be received: {0}")]
    Signals(std::io::Error),
    /// The server failed while it ran.
    #[error("the server failed: {0}")]
    Server(std::io::Error),
}

impl Error {
    /// The process's exit code: 2 when there is nothing to coordinate, else 1.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_)
            | Self::Store(_)
            | Self::Listen { .. }
            | Self::Signals(_)
            | Self::Server(_) => 1,
            Self::Embedded(_) => 2,
        }
    }
}

/// Coordinates what the store shares until it is told to stop. Neither the
/// store nor any address is opened before both are known to be right.
pub fn run(options: &Options) -> Result<(), Error> {
    let env = config::ProcessEnv;
    let (config, url) = plan(options, &env)?;
    log::init(env.var("RUST_LOG").as_deref());
    let again = options.clone();
    // Read afresh each time: the routers take over a changed file, too.
    let configured: Configured = Arc::new(move || {
        let config = config::load(&again, &env).ok()?;
        Some(
            config
                .connections
                .iter()
                .map(|one| one.id.clone())
                .collect(),
        )
    });
    let address = options.listen.unwrap_or(DEFAULT_LISTEN);
    let running = process::run(config, url, address, configured);
    actix_web::rt::System::new().block_on(running)
}

/// The configuration, and the shared store in it.
fn plan(options: &Options, env: &dyn Env) -> Result<(Config, RedisUrl), Error> {
    let config = config::load(options, env).map_err(Error::Config)?;
    match config.store.url.clone() {
        StoreUrl::Redis(url) => Ok((config, url)),
        embedded @ (StoreUrl::Memory | StoreUrl::Disk(_)) => {
            Err(Error::Embedded(embedded.to_string()))
        }
    }
}

fn lines(problems: &[Problem]) -> String {
    let mut text = String::new();
    for problem in problems {
        // Writing to a string can't fail.
        write!(text, "\n{problem}").ok();
    }
    text
}
