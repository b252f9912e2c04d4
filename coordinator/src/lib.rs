//! The coordinator of a cluster.
//!
//! Its duties make shared state prompt; nothing is wrong without it, only
//! late. Duties need a store that several processes share. The embedded store
//! belongs to one router, whose own actors keep its timers, so beside it there
//! is nothing to coordinate, and the program says so.

use std::path::PathBuf;

use clap::Parser;

/// Runs the duties of a cluster: expiry timers, sweeps, clean-up.
#[derive(Debug, Parser)]
#[command(name = "coordinator", version, max_term_width = 100)]
pub struct Options {
    /// The configuration file, the same as the routers'
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where shared state lives
    #[arg(long, value_name = "URL")]
    pub store: Option<String>,
    /// Address for health and metrics
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
}

/// Why a coordinator does not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The store belongs to one process.
    #[error(
        "store.url is {0}: an embedded store belongs to one router, which runs these duties itself; a coordinator needs a store that is shared, which this version does not have yet"
    )]
    NothingToCoordinate(String),
}

/// Runs until told to stop.
pub fn run(options: &Options) -> Result<(), Error> {
    let store = options.store.as_deref().unwrap_or("embedded");
    // Only the scheme is shown: the rest of a store's URL may hold a password.
    let scheme = store.split(':').next().unwrap_or(store);
    Err(Error::NothingToCoordinate(scheme.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::{Options, run};

    #[test]
    fn an_embedded_store_has_nothing_to_coordinate_and_no_password_is_shown() {
        let options = |store: Option<&str>| Options {
            config: None,
            store: store.map(str::to_owned),
            listen: None,
        };
        let told = run(&options(None)).unwrap_err().to_string();
        assert!(
            told.contains("embedded") && told.contains("router"),
            "{told}"
        );
        let told = run(&options(Some("redis://user:secret@host"))).unwrap_err();
        assert!(!told.to_string().contains("secret"));
    }
}
