//! A `router-node` process with its own directory, port and log. It is killed
//! when dropped, and its log is shown when the test fails.

mod log;

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::client::{Answer, Call};
use crate::config::Config;
use crate::wait::{SOON, eventually, within};

pub use log::{Log, field};

/// The path of a binary of this workspace: beside the running program, or
/// above the `deps` of a running test.
pub fn binary(name: &str) -> PathBuf {
    let me = std::env::current_exe().unwrap();
    let beside = me.parent().unwrap();
    let profile = if beside.ends_with("deps") {
        beside.parent().unwrap()
    } else {
        beside
    };
    let path = profile.join(name);
    assert!(
        path.exists(),
        "{} is not there: build the workspace first (scripts/test does)",
        path.display()
    );
    path
}

/// A command of the binary `name` with an environment of its own: only `PATH`
/// and `HOME` are taken over.
pub fn command(name: &str, dir: &Path) -> Command {
    let mut command = Command::new(binary(name));
    command.env_clear().current_dir(dir).stdin(Stdio::null());
    for key in ["PATH", "HOME"] {
        if let Some(value) = std::env::var_os(key) {
            command.env(key, value);
        }
    }
    command
}

/// A node about to be started.
#[derive(Clone)]
pub struct Setup {
    program: &'static str,
    dir: Arc<TempDir>,
    file: bool,
    args: Vec<String>,
    env: Vec<(String, String)>,
}

impl Setup {
    /// A node without a configuration file, on a free port.
    pub fn bare() -> Self {
        let mut setup = Self::empty("router-node");
        setup.file = false;
        setup.env("OMNIROUTE_LISTEN", "127.0.0.1:0")
    }

    /// A node with a configuration file.
    pub fn with(config: &Config) -> Self {
        Self::with_text(&config.to_yaml())
    }

    /// A node whose configuration file has this text.
    pub fn with_text(text: &str) -> Self {
        let setup = Self::empty("router-node");
        std::fs::write(setup.file(), text).unwrap();
        setup
    }

    /// A process of any binary of this workspace with a configuration file.
    pub fn of(program: &'static str, config: &Config) -> Self {
        let setup = Self::empty(program);
        std::fs::write(setup.file(), config.to_yaml()).unwrap();
        setup
    }

    fn empty(program: &'static str) -> Self {
        Self {
            program,
            dir: Arc::new(tempfile::tempdir().unwrap()),
            file: true,
            args: Vec::new(),
            env: Vec::new(),
        }
    }

    /// Sets a variable.
    #[must_use]
    pub fn env(mut self, key: &str, value: &str) -> Self {
        self.env.push((key.into(), value.into()));
        self
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: &str) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Where the configuration file is.
    pub fn file(&self) -> PathBuf {
        self.dir.path().join("router.yaml")
    }

    /// The node's working directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Starts the process without waiting for anything.
    pub fn spawn(&self) -> Process {
        let mut command = command(self.program, self.dir());
        if self.file {
            command.arg("--config").arg(self.file());
        }
        command
            .args(&self.args)
            .envs(self.env.iter().cloned())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        Process::begin(&mut command, &self.dir)
    }

    /// Starts the process and waits until it is ready.
    pub async fn start(&self) -> Node {
        let mut process = self.spawn();
        let (addr, admin) = process.listening().await;
        let node = Node {
            process,
            setup: self.clone(),
            addr,
            admin,
        };
        eventually("the node is ready", || async {
            let answer = node.get("/readyz").try_send().await.ok()?;
            (answer.status == 200).then_some(())
        })
        .await;
        node
    }
}

/// A running process of the binary, ready or not.
pub struct Process {
    child: Child,
    log: Log,
    /// Kept as long as the process may look at it.
    _dir: Arc<TempDir>,
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already, which is fine.
        drop(self.child.start_kill());
        if std::thread::panicking() {
            let text = format!("--- log of the process ---\n{}\n---\n", self.log.text());
            drop(std::io::stderr().write_all(text.as_bytes()));
        }
    }
}

impl Process {
    /// Starts a command whose output is piped and that works in `dir`.
    pub fn begin(command: &mut Command, dir: &Arc<TempDir>) -> Self {
        let mut child = command.spawn().unwrap();
        let log = Log::follow(child.stdout.take().unwrap(), child.stderr.take().unwrap());
        Self {
            child,
            log,
            _dir: Arc::clone(dir),
        }
    }

    /// Everything it printed.
    pub const fn log(&self) -> &Log {
        &self.log
    }

    /// Its process id.
    pub fn pid(&self) -> Pid {
        let id = self.child.id().expect("the process has ended");
        Pid::from_raw(i32::try_from(id).unwrap())
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// Waits for its end.
    pub async fn exit(&mut self, limit: Duration) -> ExitStatus {
        within(limit, "the process ends", self.child.wait())
            .await
            .unwrap()
    }

    /// The addresses it says it listens on: for clients, and for
    /// administration when that is apart.
    async fn listening(&mut self) -> (SocketAddr, Option<SocketAddr>) {
        let end = std::time::Instant::now() + SOON;
        loop {
            let (client, admin) = self.log.addresses();
            if let Some(client) = client {
                return (client, admin);
            }
            if let Some(status) = self.child.try_wait().unwrap() {
                // Gives the readers time to take what is left in the pipes.
                self.log.closed().await;
                panic!("the node ended with {status} before it listened");
            }
            assert!(
                std::time::Instant::now() < end,
                "the node does not say where it listens"
            );
            self.log.changed(Duration::from_millis(100)).await;
        }
    }
}

/// A node that is ready.
pub struct Node {
    process: Process,
    setup: Setup,
    addr: SocketAddr,
    admin: Option<SocketAddr>,
}

impl Node {
    /// Starts a node with this configuration.
    pub async fn start(config: &Config) -> Self {
        Setup::with(config).start().await
    }

    /// Where clients reach it.
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The id of its process.
    pub fn process_id(&self) -> i32 {
        self.process.pid().as_raw()
    }

    /// Where administration reaches it.
    pub fn admin_addr(&self) -> SocketAddr {
        self.admin.unwrap_or(self.addr)
    }

    /// Everything it printed.
    pub const fn log(&self) -> &Log {
        self.process.log()
    }

    /// How it was started.
    pub const fn setup(&self) -> &Setup {
        &self.setup
    }

    /// Its process.
    pub const fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// A request without a body.
    pub fn get(&self, path: &str) -> Call {
        Call::new(self.addr, "GET", path)
    }

    /// A request with a JSON body.
    pub fn post(&self, path: &str, body: &Value) -> Call {
        Call::new(self.addr, "POST", path).json(body)
    }

    /// A request to the administration's address.
    pub fn admin_call(&self, method: &str, path: &str) -> Call {
        Call::new(self.admin_addr(), method, path)
    }

    /// What the management API says at `path`, without credentials.
    pub async fn admin_get(&self, path: &str) -> Value {
        let answer = self.admin_call("GET", path).send().await;
        answer.expect_status(200).json()
    }

    /// The state of one connection.
    pub async fn connection(&self, id: &str) -> Value {
        let all = self.admin_get("/api/resilience/connections").await;
        let found = all["connections"]
            .as_array()
            .and_then(|all| all.iter().find(|one| one["id"] == id));
        found
            .unwrap_or_else(|| panic!("no connection {id} in {all}"))
            .clone()
    }

    /// Waits until a connection has this `connectionStatus`.
    pub async fn connection_becomes(&self, id: &str, status: &str) -> Value {
        let what = format!("{id} becomes {status}");
        eventually(&what, || async {
            let connection = self.connection(id).await;
            (connection["connectionStatus"] == status).then_some(connection)
        })
        .await
    }

    /// What the node remembers about the request an answer belongs to.
    pub async fn trace(&self, answer: &Answer) -> Value {
        let id = answer.header("x-request-id").expect("no x-request-id");
        self.admin_get(&format!("/api/requests/{id}")).await
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
    pub async fn stop(&mut self) -> ExitStatus {
        self.process.signal(Signal::SIGTERM);
        self.process.exit(SOON).await
    }

    /// Starts it again in the same directory; it must have ended.
    pub async fn start_again(&self) -> Self {
        self.setup.start().await
    }
}
