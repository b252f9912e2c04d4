//! A `coordinator` process with its own directory, port and log.

use std::net::SocketAddr;
use std::sync::Arc;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::client::Call;
use crate::config::Config;
use crate::node::{Log, Process, Setup};
use crate::port::Port;
use crate::wait::{SOON, eventually};

/// A coordinator that has said whether it leads.
pub struct Coordinator {
    process: Process,
    setup: Setup,
    port: Arc<Port>,
}

impl Coordinator {
    /// Starts one by this name and waits until it knows its role.
    pub async fn start(config: &Config, name: &str) -> Self {
        let port = Arc::new(Port::take());
        let setup = Setup::of("coordinator", config)
            .env("OMNIROUTE_NODE_ID", name)
            .arg("--listen")
            .arg(&port.addr().to_string());
        Self::begin(setup, port).await
    }

    async fn begin(setup: Setup, port: Arc<Port>) -> Self {
        let one = Self {
            process: setup.spawn(),
            setup,
            port,
        };
        eventually("the coordinator knows its role", || one.role()).await;
        one
    }

    /// Where it answers.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// Everything it printed.
    pub const fn log(&self) -> &Log {
        self.process.log()
    }

    /// A request without a body.
    pub fn get(&self, path: &str) -> Call {
        Call::new(self.addr(), "GET", path)
    }

    /// What `/readyz` says, if it says anything, whatever the status.
    pub async fn ready(&self) -> Option<Value> {
        let asking = self.get("/readyz").try_send();
        let answer = tokio::time::timeout(std::time::Duration::from_secs(2), asking).await;
        serde_json::from_slice(&answer.ok()?.ok()?.body).ok()
    }

    /// `leader` or `standby`, once it knows.
    pub async fn role(&self) -> Option<String> {
        let role = self.ready().await?["role"].as_str()?.to_owned();
        Some(role)
    }

    /// The epoch it knows of; 0 while there is none.
    pub async fn epoch(&self) -> u64 {
        let ready = self.ready().await;
        ready.and_then(|ready| ready["epoch"].as_u64()).unwrap_or(0)
    }

    /// Freezes it.
    pub fn freeze(&self) {
        self.process.signal(Signal::SIGSTOP);
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.process.signal(Signal::SIGCONT);
    }

    /// Kills it as the kernel would and waits until it is gone.
    pub async fn kill_9(&mut self) {
        self.process.signal(Signal::SIGKILL);
        self.process.exit(SOON).await;
    }

    /// Asks it to stop and waits until it has.
    pub async fn stop(&mut self) -> std::process::ExitStatus {
        self.process.signal(Signal::SIGTERM);
        self.process.exit(SOON).await
    }

    /// Starts it again; it must have ended.
    pub async fn start_again(&self) -> Self {
        Self::begin(self.setup.clone(), Arc::clone(&self.port)).await
    }
}
