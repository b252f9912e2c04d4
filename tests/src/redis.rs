//! A real `redis-server` with its own directory and port. It leads a process
//! group of its own, which is killed when this is dropped or the test's thread
//! ends, so that none outlives a test that was itself killed.

mod tls;

use std::fmt::Write as _;
use std::io::{self, ErrorKind, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::port::Port;
use crate::resp::{Link, Monitor, Resp};
use crate::wait::{SOON, eventually, within};

use tls::Authority;

/// The user by which tests reach a server that has users.
const TESTER: (&str, &str) = ("tester", "of-the-tests");

/// A server about to be started.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    durable: bool,
    tls: Option<Arc<Authority>>,
    password: Option<String>,
    user: Option<(String, String)>,
    lines: Vec<String>,
}

impl Setup {
    /// A server that forgets everything when it ends.
    pub fn memory() -> Self {
        Self::default()
    }

    /// A server that has on disk what it acknowledged.
    pub fn durable() -> Self {
        Self {
            durable: true,
            ..Self::default()
        }
    }

    /// Asks for a password.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Lets in a user with this name and password; `rules` are those of an
    /// ACL, such as `~omniroute* &* +@all`.
    #[must_use]
    pub fn user(mut self, name: &str, password: &str, rules: &str) -> Self {
        self.user = Some((name.into(), password.into()));
        self.line(&format!("user {name} on >{password} {rules}"))
            .line("user default off")
            .line(&format!("user {} on >{} ~* &* +@all", TESTER.0, TESTER.1))
    }

    /// Speaks TLS to clients; see [`Redis::tls_query`]. All servers of copies
    /// of this setup trust one authority.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = Some(Arc::new(Authority::new()));
        self
    }

    /// Speaks TLS as the servers of `other` do, if they do.
    #[must_use]
    pub fn tls_of(mut self, other: &Self) -> Self {
        self.tls.clone_from(&other.tls);
        self
    }

    /// Lets in only clients with a certificate.
    #[must_use]
    pub fn with_client_certificates(self) -> Self {
        self.line("tls-auth-clients yes")
    }

    /// What a URL needs to reach such servers over TLS, with the `?`; empty
    /// without TLS.
    pub fn tls_query(&self) -> String {
        self.tls
            .as_ref()
            .map_or_else(String::new, |authority| authority.query())
    }

    /// The arguments with which `redis-cli` reaches such servers.
    pub(crate) fn cli_args(&self) -> Vec<String> {
        self.tls
            .as_ref()
            .map_or_else(Vec::new, |authority| authority.cli_args())
    }

    /// Adds a line of configuration.
    #[must_use]
    pub fn line(mut self, line: &str) -> Self {
        self.lines.push(line.into());
        self
    }

    /// Starts it and waits until it answers.
    pub async fn start(&self) -> Redis {
        self.start_as("redis-server").await
    }

    /// Starts `program`, which is `redis-server` or reads its configuration.
    pub async fn start_as(&self, program: &'static str) -> Redis {
        let dir = tempfile::tempdir().unwrap();
        let (port, tls_port) = (Port::take(), self.tls.as_ref().map(|_| Port::take()));
        let file = dir.path().join("server.conf");
        std::fs::write(&file, self.text(dir.path(), &port, tls_port.as_ref())).unwrap();
        let child = spawn(program, &file, dir.path());
        let redis = Redis {
            setup: self.clone(),
            program,
            dir,
            port,
            tls_port,
            child,
        };
        redis.answers().await;
        redis
    }

    fn text(&self, dir: &Path, port: &Port, tls_port: Option<&Port>) -> String {
        let mut text = format!(
            "port {}\nbind 127.0.0.1\ndir {}\nlogfile server.log\nsave \"\"\n",
            port.number(),
            dir.display()
        );
        text.push_str("enable-debug-command yes\n");
        if self.durable {
            text.push_str("appendonly yes\nappendfsync always\n");
        }
        if let (Some(authority), Some(tls_port)) = (&self.tls, tls_port) {
            write!(
                text,
                "tls-port {}\n{}",
                tls_port.number(),
                authority.lines()
            )
            .unwrap();
        }
        if let Some(password) = &self.password {
            writeln!(text, "requirepass {password}").unwrap();
        }
        for line in &self.lines {
            writeln!(text, "{line}").unwrap();
        }
        text
    }

    fn credentials(&self) -> String {
        match (&self.user, &self.password) {
            (Some((name, password)), _) => format!("{name}:{password}@"),
            (None, Some(password)) => format!(":{password}@"),
            (None, None) => String::new(),
        }
    }
}

/// Spawns a server that dies with the calling thread, at the latest.
pub(crate) fn spawn(program: &str, file: &Path, dir: &Path) -> Child {
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", program])
        .arg(file)
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .kill_on_drop(true);
    if program == "redis-sentinel" {
        command.arg("--sentinel");
    }
    let child = command.spawn();
    child.unwrap_or_else(|error| panic!("no {program} (scripts/test installs it): {error}"))
}

/// A running server.
#[derive(Debug)]
pub struct Redis {
    setup: Setup,
    program: &'static str,
    dir: TempDir,
    port: Port,
    tls_port: Option<Port>,
    child: Child,
}

impl Drop for Redis {
    fn drop(&mut self) {
        if let Some(pid) = self.try_pid() {
            // It may have ended already, which is fine.
            killpg(pid, Signal::SIGKILL).ok();
        }
        if std::thread::panicking() {
            let text = format!("--- log of {} ---\n{}\n---\n", self.program, self.log());
            drop(io::stderr().write_all(text.as_bytes()));
        }
    }
}

impl Redis {
    /// A server that forgets everything when it ends.
    pub async fn start() -> Self {
        Setup::memory().start().await
    }

    /// The URL for nodes.
    pub fn url(&self) -> String {
        self.url_via(self.tls_port.as_ref().unwrap_or(&self.port).addr())
    }

    /// The URL for nodes that reach it at another address.
    pub fn url_via(&self, addr: SocketAddr) -> String {
        let scheme = if self.tls_port.is_some() {
            "rediss"
        } else {
            "redis"
        };
        format!("{scheme}://{}{addr}/0", self.setup.credentials())
    }

    /// Where tests reach it, without TLS.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// Where nodes reach it: with TLS when it speaks that.
    pub fn node_addr(&self) -> SocketAddr {
        self.tls_port.as_ref().unwrap_or(&self.port).addr()
    }

    /// The authority that signed its certificate.
    pub fn ca_file(&self) -> PathBuf {
        let authority = self.setup.tls.as_ref();
        authority.expect("it does not speak TLS").ca_file()
    }

    /// See [`Setup::tls_query`].
    pub fn tls_query(&self) -> String {
        self.setup.tls_query()
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("server.log")).unwrap_or_default()
    }

    /// The id of its process.
    pub fn pid(&self) -> Pid {
        self.try_pid().expect("the server has ended")
    }

    fn try_pid(&self) -> Option<Pid> {
        let id = self.child.id()?;
        Some(Pid::from_raw(i32::try_from(id).unwrap()))
    }

    /// Freezes it.
    pub fn stop(&self) {
        kill(self.pid(), Signal::SIGSTOP).unwrap();
    }

    /// Lets it go on.
    pub fn cont(&self) {
        kill(self.pid(), Signal::SIGCONT).unwrap();
    }

    /// Kills it and waits until it is gone.
    pub async fn kill(&mut self) {
        kill(self.pid(), Signal::SIGKILL).unwrap();
        within(SOON, "the server ends", self.child.wait())
            .await
            .unwrap();
    }

    /// Starts it again with what it has on disk; it must have been killed.
    pub async fn restart(&mut self) {
        let file = self.dir.path().join("server.conf");
        self.child = spawn(self.program, &file, self.dir.path());
        self.answers().await;
    }

    /// Starts it again without its data; it must have been killed.
    pub async fn restart_empty(&mut self) {
        drop(std::fs::remove_dir_all(
            self.dir.path().join("appendonlydir"),
        ));
        drop(std::fs::remove_file(self.dir.path().join("dump.rdb")));
        self.restart().await;
    }

    /// A connection with full rights.
    pub async fn link(&self) -> io::Result<Link> {
        let mut link = Link::connect(self.addr()).await?;
        let auth = match (&self.setup.user, &self.setup.password) {
            (Some(_), _) => Some(vec!["AUTH", TESTER.0, TESTER.1]),
            (None, Some(password)) => Some(vec!["AUTH", password]),
            (None, None) => None,
        };
        if let Some(words) = auth {
            link.call(&words).await?;
        }
        Ok(link)
    }

    /// Calls one command on a connection of its own; again when that is reset,
    /// as a sentinel does to all of a server that it makes a master.
    pub async fn call(&self, words: &[&str]) -> Resp {
        let calling = async {
            loop {
                match self.try_call(words).await {
                    Err(error) if was_closed(&error) => tokio::task::yield_now().await,
                    outcome => return outcome,
                }
            }
        };
        within(SOON, "Redis answers", calling).await.unwrap()
    }

    async fn try_call(&self, words: &[&str]) -> io::Result<Resp> {
        self.link().await?.call(words).await
    }

    /// Every command it is sent from now on.
    pub async fn monitor(&self) -> Monitor {
        Monitor::start(self.link().await.unwrap()).await
    }

    /// A number of `INFO`.
    pub async fn info(&self, name: &str) -> i64 {
        let text = self.call(&["INFO", "everything"]).await.text();
        let prefix = format!("{name}:");
        let line = text.lines().find_map(|line| line.strip_prefix(&prefix));
        let value = line.unwrap_or_else(|| panic!("no {name} in {text}"));
        value.trim().parse().unwrap()
    }

    /// Scripts that clients have called so far.
    pub async fn scripts(&self) -> i64 {
        let text = self.call(&["INFO", "commandstats"]).await.text();
        let called = text.lines().filter_map(|line| {
            let rest = line.strip_prefix("cmdstat_evalsha:calls=")?;
            rest.split(',').next()?.parse::<i64>().ok()
        });
        called.sum()
    }

    /// All keys.
    pub async fn keys(&self) -> Vec<String> {
        let keys = self.call(&["KEYS", "*"]).await.array();
        keys.iter().map(Resp::text).collect()
    }

    /// Everything it holds, keys and data, as text.
    pub async fn contents(&self) -> String {
        let mut all = String::new();
        for key in self.keys().await {
            let kind = self.call(&["TYPE", &key]).await.text();
            let words: Vec<&str> = match kind.as_str() {
                "string" => vec!["GET", &key],
                "hash" => vec!["HGETALL", &key],
                "list" => vec!["LRANGE", &key, "0", "-1"],
                "set" => vec!["SMEMBERS", &key],
                "zset" => vec!["ZRANGE", &key, "0", "-1", "WITHSCORES"],
                "stream" => vec!["XRANGE", &key, "-", "+"],
                // It may have expired since it was listed.
                _ => continue,
            };
            let data = self.call(&words).await.flat();
            writeln!(all, "{key}: {data}").unwrap();
        }
        all
    }

    async fn answers(&self) {
        eventually("Redis answers", || async {
            let reply = self.link().await.ok()?.call(&["PING"]).await.ok()?;
            (reply == Resp::Simple("PONG".into())).then_some(())
        })
        .await;
    }
}

fn was_closed(error: &io::Error) -> bool {
    let kind = error.kind();
    kind == ErrorKind::ConnectionReset || kind == ErrorKind::UnexpectedEof
}
