//! The Helm chart, rendered by the real helm, and the other tools that
//! `tests/deploy/install` puts below the build directory.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use serde::Deserialize as _;
use serde_json::Value;
use tokio::process::Command;

use crate::wait::within;

/// The release and the namespace of every rendering.
pub const RELEASE: &str = "rel";
/// See [`RELEASE`].
pub const NAMESPACE: &str = "llm";

/// The value files of `helm/ci`, without `-values.yaml`.
pub const VALUES: [&str; 6] = [
    "cluster",
    "evaluation",
    "everything",
    "minimal",
    "production",
    "sentinel-tls",
];

/// A path of the repository.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// A file of the repository, as text.
pub fn text_of(path: &str) -> String {
    let read = std::fs::read_to_string(repository(path));
    read.unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Something that `scripts/test` puts below `target`, wherever the test's own
/// executable is there.
pub fn installed(path: &str) -> PathBuf {
    let me = std::env::current_exe().unwrap();
    me.ancestors()
        .map(|dir| dir.join(path))
        .find(|path| path.exists())
        .unwrap_or_else(|| panic!("{path} is not there: scripts/test makes it"))
}

/// Runs a program to its end.
pub async fn run(command: &mut Command) -> Output {
    let command = command.stdin(Stdio::null()).kill_on_drop(true);
    let ended = within(Duration::from_mins(1), "the tool ends", command.output()).await;
    ended.unwrap()
}

/// Runs a program, which has to succeed, and returns what it printed.
pub async fn succeed(command: &mut Command) -> String {
    let output = run(command).await;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {stdout}\n{stderr}");
    stdout
}

/// `helm` with `arguments`.
pub fn helm(arguments: &[&str]) -> Command {
    let mut command = Command::new(installed("deploy-tools/helm"));
    command.args(arguments);
    command
}

/// `helm VERB [RELEASE] helm` with the value file `name` and further `--set`s.
pub fn of_values(verb: &[&str], name: &str, sets: &[&str]) -> Command {
    let mut command = helm(verb);
    command
        .arg(repository("helm"))
        .args(["--namespace", NAMESPACE, "--values"])
        .arg(repository(&format!("helm/ci/{name}-values.yaml")));
    for set in sets {
        command.args(["--set", set]);
    }
    command
}

/// What the chart makes of a value file.
#[derive(Clone, Debug)]
pub struct Chart {
    /// As helm printed it.
    pub text: String,
    /// Its objects.
    pub objects: Vec<Value>,
}

impl Chart {
    /// Renders the chart with a value file of `helm/ci`.
    pub async fn of(name: &str) -> Self {
        Self::with(name, &[]).await
    }

    /// The same with further `--set`s.
    pub async fn with(name: &str, sets: &[&str]) -> Self {
        let mut command = of_values(&["template", RELEASE], name, sets);
        let text = succeed(&mut command).await;
        let objects = serde_yaml_ng::Deserializer::from_str(&text)
            .map(|one| Value::deserialize(one).unwrap())
            .filter(|one| !one.is_null())
            .collect();
        Self { text, objects }
    }

    /// All objects of a kind.
    pub fn all(&self, kind: &str) -> Vec<&Value> {
        let of_kind = |one: &&Value| one["kind"] == kind;
        self.objects.iter().filter(of_kind).collect()
    }

    /// The one object of a kind whose name ends so.
    pub fn one(&self, kind: &str, suffix: &str) -> &Value {
        let mut all = self.all(kind);
        all.retain(|one| {
            let name = one["metadata"]["name"].as_str().unwrap();
            name.ends_with(suffix)
        });
        assert_eq!(all.len(), 1, "{kind} *{suffix}");
        all[0]
    }

    /// The configuration file in the `ConfigMap`.
    pub fn config(&self) -> &str {
        let data = &self.one("ConfigMap", "")["data"];
        data["omniroute.yaml"].as_str().unwrap()
    }
}
