//! The image: its Dockerfile is linted, and the binaries that it would hold run
//! as they would in it, in an empty read-only root as another user.

use std::path::Path;
use std::process::Stdio;

use cluster_tests::chart::{Chart, installed, repository, run, succeed, text_of};
use cluster_tests::pod::{Plan, Pod, World};
use cluster_tests::redis::Redis;
use cluster_tests::wait::{SOON, eventually};
use nix::sys::signal::Signal;
use serde_json::json;
use tempfile::TempDir;
use tokio::process::Command;

const KEY: &str = "a-clients-key-0123456789";

#[tokio::test]
async fn the_dockerfile_passes_its_linter() {
    let mut command = Command::new(installed("deploy-tools/venv/bin/hadolint"));
    succeed(
        command
            .arg("--failure-threshold")
            .arg("style")
            .arg(repository("deploy/Dockerfile")),
    )
    .await;
    // And the linter does find faults.
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("Dockerfile");
    std::fs::write(&file, "FROM rust\nRUN cd /src && cargo build\n").unwrap();
    let mut command = Command::new(installed("deploy-tools/venv/bin/hadolint"));
    assert!(!run(command.arg(file)).await.status.success());
}

/// The lines of the Dockerfile with continued ones joined, without comments.
fn instructions() -> Vec<String> {
    let text = text_of("deploy/Dockerfile").replace("\\\n", " ");
    let lines = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect()
}

#[test]
fn the_image_has_two_programs_a_user_and_no_shell() {
    let all = instructions();
    let last = all
        .iter()
        .rposition(|line| line.starts_with("FROM "))
        .unwrap();
    assert_eq!(all[last], "FROM scratch");
    let of_image = &all[last..];
    let copied: Vec<_> = of_image
        .iter()
        .filter(|line| line.starts_with("COPY") || line.starts_with("ADD"))
        .collect();
    assert_eq!(copied, ["COPY --from=build /root-fs /"]);
    assert!(!of_image.iter().any(|line| line.starts_with("RUN")));
    assert!(of_image.contains(&"USER 65532:65532".to_owned()));
    assert!(of_image.contains(&"STOPSIGNAL SIGTERM".to_owned()));
    assert!(of_image.contains(&"ENTRYPOINT [\"/usr/local/bin/router-node\"]".to_owned()));
    let check = of_image
        .iter()
        .find(|line| line.starts_with("HEALTHCHECK"))
        .unwrap();
    assert!(
        check.ends_with(
            "CMD [\"/usr/local/bin/router-node\", \"health\", \"--address\", \"127.0.0.1:8080\"]"
        ),
        "{check}"
    );
    let labels = of_image
        .iter()
        .find(|line| line.starts_with("LABEL"))
        .unwrap();
    for label in ["title", "description", "licenses", "version", "revision"] {
        assert!(
            labels.contains(&format!("org.opencontainers.image.{label}=")),
            "{labels}"
        );
    }
    // What the empty root of these tests is made of is what the image is made of.
    let made = all
        .iter()
        .find(|line| line.contains("/root-fs/etc/passwd"))
        .unwrap();
    let root = text_of("tests/deploy/empty-root");
    for written in [
        "omniroute:x:65532:65532:omniroute:/:/none",
        "omniroute:x:65532:",
        "hosts: files dns",
    ] {
        assert!(made.contains(&format!("'{written}'")), "{made}");
        assert!(root.contains(&format!("'{written}'")), "{root}");
    }
    // The programs are made by the script that scripts/test makes them with.
    let built = all
        .iter()
        .find(|line| line.contains("cargo/registry"))
        .unwrap();
    assert!(built.ends_with(" scripts/image /out"), "{built}");
    assert!(text_of("scripts/test").contains("scripts/image --debug \"$target/image\""));
    let script = text_of("scripts/image");
    assert!(script.contains("--locked") && script.contains("target-feature=+crt-static"));
    let version = format!("ARG VERSION={}", env!("CARGO_PKG_VERSION"));
    assert!(all.contains(&version), "{version}");
}

/// The command of a pod inside an empty root.
fn inside(plan: &Plan, root: &Path, arguments: &[String]) -> Command {
    let mut command = Command::new(repository("tests/deploy/empty-root"));
    command
        .arg(root)
        .arg(installed("image"))
        .arg(plan.place("/etc/omniroute"))
        .arg(plan.place("/hosts"))
        .arg(format!("/usr/local/bin/{}", plan.program()))
        .args(arguments)
        .env_clear()
        .envs(plan.env())
        .env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        )
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// The chart's Redis by a name that only `/etc/hosts` has.
fn plan_of(chart: &Chart, component: &str, redis: &Redis, root: &TempDir) -> Plan {
    let address = format!("redis.data.svc:{}", redis.addr().port());
    let world = World::default()
        .secret("omniroute", "OMNIROUTE_CLIENT_KEY", KEY)
        .host("redis.data.svc:6379", &address);
    let owner = chart.one("Deployment", &format!("-{component}"));
    let plan = Plan::of(chart, owner, &world, component);
    std::fs::write(plan.place("/hosts"), "127.0.0.1 redis.data.svc\n").unwrap();
    assert!(root.path().exists());
    plan
}

/// The arguments as they are in the container, but for its ports.
fn arguments(plan: &Plan) -> Vec<String> {
    let here = plan.place("/etc/omniroute").display().to_string();
    let args = plan.args().into_iter();
    args.map(|arg| arg.replace(&here, "/etc/omniroute"))
        .collect()
}

fn status_of(pod: &Pod) -> String {
    std::fs::read_to_string(format!("/proc/{}/status", pod.process.pid())).unwrap()
}

/// A line of `/proc/PID/status`, without its name and tabs.
fn line<'a>(status: &'a str, name: &str) -> Vec<&'a str> {
    let found = status.lines().find_map(|line| line.strip_prefix(name));
    found
        .unwrap_or_else(|| panic!("no {name} in {status}"))
        .split_whitespace()
        .collect()
}

#[tokio::test]
async fn both_programs_run_in_an_empty_read_only_root_as_another_user() {
    let redis = Redis::start().await;
    let chart = Chart::of("minimal").await;
    let roots = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let mut pods = Vec::new();
    for (component, root) in ["router", "coordinator"].into_iter().zip(&roots) {
        let plan = plan_of(&chart, component, &redis, root);
        let command = inside(&plan, root.path(), &arguments(&plan));
        pods.push(plan.start_as(command));
    }
    for (pod, port) in pods.iter().zip([9090, 9091]) {
        pod.ready().await;
        eventually("it found Redis by its name", || async {
            let ready = pod
                .call(port, "GET", "/readyz")
                .try_send()
                .await
                .ok()?
                .json();
            (ready["store"] == "up").then_some(())
        })
        .await;
        let status = status_of(pod);
        if nix::unistd::getuid().is_root() {
            assert_eq!(line(&status, "Uid:"), ["65532"; 4]);
            assert_eq!(line(&status, "Gid:"), ["65532"; 4]);
        }
        assert_eq!(line(&status, "CapEff:"), ["0000000000000000"], "{status}");
        assert_eq!(line(&status, "NoNewPrivs:"), ["1"], "{status}");
        let mounts =
            std::fs::read_to_string(format!("/proc/{}/mountinfo", pod.process.pid())).unwrap();
        assert!(!mounts.is_empty());
        for mount in mounts.lines() {
            let options = mount.split(' ').nth(5).unwrap();
            assert!(options.split(',').any(|option| option == "ro"), "{mount}");
        }
    }
    let body = json!({"model": "simulated/ok", "messages": [{"role": "user", "content": "ping"}]});
    let call = pods[0]
        .call(8080, "POST", "/v1/chat/completions")
        .json(&body);
    call.bearer(KEY).send().await.expect_status(200);
    health_checks_pass(&pods, &roots).await;
    for pod in &mut pods {
        pod.process.signal(Signal::SIGTERM);
        assert_eq!(pod.process.exit(SOON).await.code(), Some(0));
    }
}

/// The image's own health checks, in the same kind of root.
async fn health_checks_pass(pods: &[Pod], roots: &[TempDir]) {
    for ((pod, port), root) in pods.iter().zip([8080, 9091]).zip(roots) {
        let address = pod.addr(port).to_string();
        let asked = ["health".to_owned(), "--address".to_owned(), address];
        let told = succeed(&mut inside(&pod.plan, root.path(), &asked)).await;
        assert!(told.contains("\"status\":"), "{told}");
    }
}
