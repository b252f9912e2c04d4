//! The coordinator of a cluster.
//!
//! Its duties need a store that several processes share. An embedded store
//! belongs to one router process, whose own actors keep its timers, so beside
//! it there is nothing to coordinate. This version has no shared store: the
//! program checks the configuration and says so.

pub mod config;

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;
use shared_proto::config::{Env, Problem};

#[cfg(test)]
mod tests;

/// Checks the configuration and says whether there is anything to coordinate.
///
/// An embedded store belongs to one router process, which runs the
/// coordinator's duties itself; this version has no other store.
#[derive(Clone, Debug, Default, Parser)]
#[command(name = "coordinator", version, max_term_width = 100)]
pub struct Options {
    /// The routers' configuration file; else `$OMNIROUTE_CONFIG`, else `./omniroute.yaml` if it is there
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where state lives (or `OMNIROUTE_STORE_URL`)
    #[arg(long, value_name = "URL")]
    pub store: Option<String>,
    /// Address for health and metrics; unused as long as there is no shared store
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<SocketAddr>,
}

/// Why a coordinator does not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The configuration is refused: every problem, each with its place.
    #[error("the configuration is refused{}", lines(.0))]
    Config(Vec<Problem>),
    /// The store belongs to one router process.
    #[error(
        "nothing to coordinate: store.url is {0}, and an embedded store belongs to one router process, \
         which runs the coordinator's duties itself; a coordinator needs a shared store, and this \
         version has none"
    )]
    Embedded(String),
}

impl Error {
    /// The process's exit code: 1 for a refused configuration, 2 when there is
    /// nothing to coordinate.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) => 1,
            Self::Embedded(_) => 2,
        }
    }
}

/// Checks the configuration and coordinates what its store shares. Neither the
/// store nor any address is opened before both are known to be right.
pub fn run(options: &Options, env: &dyn Env) -> Result<(), Error> {
    let config = config::load(options, env).map_err(Error::Config)?;
    Err(Error::Embedded(config.store.url.to_string()))
}

fn lines(problems: &[Problem]) -> String {
    let mut text = String::new();
    for problem in problems {
        // Writing to a string can't fail.
        write!(text, "\n{problem}").ok();
    }
    text
}
