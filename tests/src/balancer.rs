//! nginx with the configuration of `deploy/compose/nginx.conf`, in front of
//! routers that come and go.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::chart::text_of;
use crate::client::Call;
use crate::port::Port;
use crate::wait::{eventually, within};

/// A running nginx.
pub struct Balancer {
    child: Child,
    dir: TempDir,
    port: Port,
    routers: Vec<SocketAddr>,
}

impl Balancer {
    /// Starts it in front of `routers` and waits until it passes a request on.
    pub async fn start(routers: &[SocketAddr]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let port = Port::take();
        std::fs::write(
            dir.path().join("nginx.conf"),
            text(dir.path(), &port, routers),
        )
        .unwrap();
        let child = command(dir.path(), &["-g", "daemon off;"])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let balancer = Self {
            child,
            dir,
            port,
            routers: routers.to_vec(),
        };
        eventually("the balancer passes requests on", || async {
            let call = Call::new(balancer.addr(), "GET", "/healthz");
            (call.try_send().await.ok()?.status == 200).then_some(())
        })
        .await;
        balancer
    }

    /// Where clients reach it.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// Has it know one router more.
    pub fn add(&mut self, router: SocketAddr) {
        self.routers.push(router);
        self.reload();
    }

    /// Has it forget a router: no new request goes there.
    pub fn remove(&mut self, router: SocketAddr) {
        self.routers.retain(|one| *one != router);
        self.reload();
    }

    fn reload(&self) {
        let text = text(self.dir.path(), &self.port, &self.routers);
        std::fs::write(self.dir.path().join("nginx.conf"), text).unwrap();
        self.signal(Signal::SIGHUP);
    }

    /// What it complains of, but for how many files this machine lets it open.
    pub fn complaints(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.dir.path().join("error.log")).unwrap();
        let of_routers = |line: &&str| !line.contains("open file resource limit");
        text.lines().filter(of_routers).map(str::to_owned).collect()
    }

    /// Stops it as a container's engine would: streams finish.
    pub async fn stop(&mut self) {
        self.signal(Signal::SIGQUIT);
        let ended = within(crate::wait::SOON, "nginx ends", self.child.wait()).await;
        assert!(ended.unwrap().success());
    }

    fn signal(&self, signal: Signal) {
        let id = self.child.id().expect("nginx has ended");
        kill(Pid::from_raw(i32::try_from(id).unwrap()), signal).unwrap();
    }
}

fn command(dir: &Path, more: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "TERM", "nginx", "-e", "stderr", "-c"])
        .arg(dir.join("nginx.conf"))
        .args(more)
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true);
    command
}

/// The file as it is shipped, with places of this machine. `resolve` is of
/// newer servers than Debian's, and there are no names to resolve here.
fn text(dir: &Path, port: &Port, routers: &[SocketAddr]) -> String {
    let shipped = text_of("deploy/compose/nginx.conf");
    let dir = dir.display();
    let mut out = String::new();
    if nix::unistd::getuid().is_root() {
        out.push_str("user root root;\n");
    }
    let mut told = false;
    for line in shipped.lines() {
        if line.trim_start().starts_with("server router-") {
            if !std::mem::replace(&mut told, true) {
                for router in routers {
                    let rest = line.split_once(" resolve ").unwrap().1;
                    writeln!(out, "    server {router} {rest}").unwrap();
                }
            }
            continue;
        }
        let line = line
            .replace("/tmp/", &format!("{dir}/"))
            .replace("/dev/stderr", &format!("{dir}/error.log"))
            .replace("worker_processes auto", "worker_processes 1")
            .replace(
                "listen 8080",
                &format!("listen 127.0.0.1:{}", port.number()),
            );
        writeln!(out, "{line}").unwrap();
    }
    assert!(told, "no server in {shipped}");
    out
}
