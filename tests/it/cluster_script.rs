//! `scripts/cluster`: starts with one command, serves through the balancer,
//! streams included, and leaves nothing behind.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use cluster_tests::client::Call;
use cluster_tests::node::binary;
use cluster_tests::port::Port;
use cluster_tests::wait::{eventually, eventually_within, within};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

/// Everything has to be there within this time on a busy machine.
const UP: Duration = Duration::from_mins(1);

struct Script {
    child: Child,
    dir: tempfile::TempDir,
    ports: Vec<Port>,
    said: String,
}

impl Script {
    /// Starts it, and waits until it has said what to try.
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ports: Vec<Port> = (0..7).map(|_| Port::take()).collect();
        let numbers: Vec<String> = ports.iter().map(|port| port.number().to_string()).collect();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/cluster");
        let target: PathBuf = binary("router-node").ancestors().nth(2).unwrap().into();
        let mut child = Command::new(script)
            .args(["--debug", "--no-build", "--ports", &numbers.join(",")])
            .arg("--dir")
            .arg(dir.path())
            .env("CARGO_TARGET_DIR", target)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut said = String::new();
        let reading = async {
            while let Some(line) = lines.next_line().await.unwrap() {
                said.push_str(&line);
                said.push('\n');
                if line.starts_with("curl ") {
                    return;
                }
            }
            panic!("it ended; it said:\n{said}");
        };
        within(UP, "the cluster is up", reading).await;
        // Whatever else it says is read, so that it can go on.
        drop(tokio::spawn(async move {
            while let Ok(Some(_)) = lines.next_line().await {}
        }));
        Self {
            child,
            dir,
            ports,
            said,
        }
    }

    fn curl_line(&self) -> &str {
        let line = self.said.lines().find(|line| line.starts_with("curl "));
        line.unwrap()
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id().unwrap()).unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
    }

    /// Processes that work in its directory or were started with it.
    fn left(&self) -> Vec<String> {
        let mark = self.dir.path().to_str().unwrap();
        let mut left = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let path = entry.path();
            let line = std::fs::read(path.join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            let cwd = std::fs::read_link(path.join("cwd")).unwrap_or_default();
            if line.contains(mark) || cwd.starts_with(mark) {
                left.push(line);
            }
        }
        left
    }
}

#[tokio::test]
async fn one_command_serves_through_the_balancer_and_ends_without_a_trace() {
    let mut script = Script::start().await;
    let mut shell = Command::new("sh");
    shell.args(["-c", script.curl_line()]).stdin(Stdio::null());
    let output = within(UP, "curl ends", shell.output()).await.unwrap();
    let answer = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && answer.contains("\"choices\""),
        "{output:?}"
    );

    let body = json!({
        "model": "simulated/ok",
        "stream": true,
        "messages": [{"role": "user", "content": "ping"}],
    });
    let balancer = script.ports[0].addr();
    let call = Call::new(balancer, "POST", "/v1/chat/completions").json(&body);
    let mut stream = call.open().await;
    stream.read_until("data: ").await;
    let text = stream.finish().await;
    assert!(text.trim_end().ends_with("data: [DONE]"), "{text}");

    let nodes = Call::new(balancer, "GET", "/api/nodes").send().await.json();
    let listed = nodes["nodes"].as_array().unwrap().len();
    assert!(listed >= 3, "{nodes}");
    eventually("all five are listed", || async {
        let nodes = Call::new(balancer, "GET", "/api/nodes").send().await.json();
        (nodes["nodes"].as_array()?.len() == 5).then_some(())
    })
    .await;

    assert!(!script.left().is_empty());
    script.signal(Signal::SIGTERM);
    let status = within(UP, "it ends", script.child.wait()).await.unwrap();
    assert_eq!(status.code(), Some(0));
    assert_eq!(script.left(), Vec::<String>::new());
    for port in &script.ports {
        let gone = std::net::TcpStream::connect(port.addr()).is_err();
        assert!(gone, "something still listens on {}", port.number());
    }
}

#[tokio::test]
async fn what_it_started_ends_with_it_even_when_it_is_killed() {
    let mut script = Script::start().await;
    script.signal(Signal::SIGKILL);
    script.child.wait().await.unwrap();
    eventually_within(UP, "nothing is left", || async {
        script.left().is_empty().then_some(())
    })
    .await;
}
