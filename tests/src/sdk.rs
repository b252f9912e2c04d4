//! The official client SDKs, run as child processes. `scripts/test` installs
//! them below the build directory; a script prints one JSON object.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::process::Command;

use crate::wait::within;

/// Which SDK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sdk {
    /// Python `openai`.
    PythonOpenai,
    /// Python `anthropic`.
    PythonAnthropic,
    /// Node.js `openai`.
    NodeOpenai,
}

impl Sdk {
    fn script(self) -> &'static str {
        match self {
            Self::PythonOpenai => "openai_client.py",
            Self::PythonAnthropic => "anthropic_client.py",
            Self::NodeOpenai => "openai_client.cjs",
        }
    }
}

/// Runs a scenario of an SDK's script against `base_url`, the node's address
/// without `/v1`, and returns what it printed.
pub async fn run(sdk: Sdk, scenario: &str, base_url: &str, model: &str) -> Value {
    let mut command = interpreter(sdk);
    command
        .args([scenario, base_url, model])
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = within(Duration::from_secs(90), "the SDK ends", command.output())
        .await
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let last = stdout.lines().last().unwrap_or_default();
    match serde_json::from_str(last) {
        Ok(value) if output.status.success() => value,
        Ok(_) | Err(_) => panic!("{sdk:?} {scenario}: {stdout}\n{stderr}"),
    }
}

fn interpreter(sdk: Sdk) -> Command {
    let installed = installed();
    let mut command = match sdk {
        Sdk::PythonOpenai | Sdk::PythonAnthropic => {
            let mut python = Command::new(installed.join("venv/bin/python"));
            python.arg("-I");
            python
        }
        Sdk::NodeOpenai => Command::new(installed.join("node")),
    };
    command
        .env_clear()
        .env("NODE_PATH", installed.join("node_modules"))
        .arg(sources().join(sdk.script()));
    if let Some(path) = std::env::var_os("PATH") {
        command.env("PATH", path);
    }
    command
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("sdk")
}

/// `target/sdk`, wherever the test's own executable is below `target`.
fn installed() -> PathBuf {
    let me = std::env::current_exe().unwrap();
    me.ancestors()
        .map(|dir| dir.join("sdk"))
        .find(|dir| dir.join("venv/bin/python").exists())
        .expect("the SDKs are not installed: scripts/test does it")
}
