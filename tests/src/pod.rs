//! A pod of a rendered chart as a process of this machine: the container's
//! command, arguments, variables, files, ports, probes and stop as they are
//! written, with the real binary behind them. Only places are mapped: the
//! paths of the container below a directory, its ports to free ones of
//! loopback, and the names of other hosts to what the test says.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;

use crate::chart::Chart;
use crate::client::Call;
use crate::node::{Process, binary};
use crate::port::Port;
use crate::wait::{eventually, let_time_pass};

/// Where the files of routers and coordinators are.
const MOUNTS: &str = "/etc/omniroute";

/// What a cluster has besides the chart's objects.
#[derive(Clone, Debug, Default)]
pub struct World {
    /// Secrets by name, each with its keys.
    pub secrets: BTreeMap<String, BTreeMap<String, String>>,
    /// What is written, and what stands for it here.
    pub hosts: Vec<(String, String)>,
}

impl World {
    /// With one more key in a Secret.
    #[must_use]
    pub fn secret(mut self, name: &str, key: &str, value: &str) -> Self {
        let secret = self.secrets.entry(name.into()).or_default();
        secret.insert(key.into(), value.into());
        self
    }

    /// With something else where `written` is.
    #[must_use]
    pub fn host(mut self, written: &str, here: &str) -> Self {
        self.hosts.push((written.into(), here.into()));
        self
    }

    fn key(&self, of: &Value) -> &str {
        let (name, key) = (text(&of["name"]), text(&of["key"]));
        let found = self.secrets.get(name).and_then(|secret| secret.get(key));
        found.unwrap_or_else(|| panic!("no Secret {name} with {key}"))
    }
}

/// A string of an object.
pub fn text(value: &Value) -> &str {
    value
        .as_str()
        .unwrap_or_else(|| panic!("{value} is no text"))
}

/// A container about to be started.
pub struct Plan {
    /// The `Pod` or its template.
    pub pod: Value,
    /// Its only container.
    pub container: Value,
    dir: Arc<TempDir>,
    ports: BTreeMap<u64, Port>,
    replaced: Vec<(String, String)>,
    env: BTreeMap<String, String>,
}

impl Plan {
    /// The pod that `owner` (a `Deployment`, a `Pod`) makes, by the name `name`.
    pub fn of(chart: &Chart, owner: &Value, world: &World, name: &str) -> Self {
        let template = &owner["spec"]["template"];
        let pod = if template.is_null() { owner } else { template };
        let containers = pod["spec"]["containers"].as_array().unwrap();
        assert_eq!(containers.len(), 1);
        let mut plan = Self {
            pod: pod.clone(),
            container: containers[0].clone(),
            dir: Arc::new(tempfile::tempdir().unwrap()),
            ports: BTreeMap::new(),
            replaced: world.hosts.clone(),
            env: BTreeMap::new(),
        };
        plan.take_ports();
        plan.mount(chart, world, &owner["spec"]["volumeClaimTemplates"]);
        plan.set_variables(world, name);
        plan
    }

    fn take_ports(&mut self) {
        for port in self.container["ports"].as_array().into_iter().flatten() {
            let number = port["containerPort"].as_u64().unwrap();
            let here = Port::take();
            let written = format!("0.0.0.0:{number}");
            // Still on every address, since the rules of a loopback listener are others.
            self.replaced
                .push((written, format!("0.0.0.0:{}", here.number())));
            self.ports.insert(number, here);
        }
    }

    /// Where a path of the container is.
    pub fn place(&self, path: &str) -> PathBuf {
        self.dir.path().join(path.trim_start_matches('/'))
    }

    fn mount(&mut self, chart: &Chart, world: &World, claims: &Value) {
        let volumes = self.pod["spec"]["volumes"].as_array().cloned();
        let claims = claims.as_array().cloned().unwrap_or_default();
        for mount in self.container["volumeMounts"]
            .as_array()
            .cloned()
            .into_iter()
            .flatten()
        {
            let path = text(&mount["mountPath"]).to_owned();
            let here = self.place(&path);
            std::fs::create_dir_all(&here).unwrap();
            if !path.starts_with(MOUNTS) {
                self.replaced.push((path, here.display().to_string()));
            }
            if claims
                .iter()
                .any(|claim| claim["metadata"]["name"] == mount["name"])
            {
                continue;
            }
            let volume = volumes
                .iter()
                .flatten()
                .find(|one| one["name"] == mount["name"]);
            let volume = volume.unwrap_or_else(|| panic!("{mount} mounts nothing"));
            let files: Vec<(String, String)> =
                if let Some(secret) = volume["secret"]["secretName"].as_str() {
                    world.secrets[secret].clone().into_iter().collect()
                } else {
                    let map = chart.one("ConfigMap", text(&volume["configMap"]["name"]));
                    let data = map["data"].as_object().unwrap().iter();
                    data.map(|(key, value)| (key.clone(), self.mapped(text(value))))
                        .collect()
                };
            self.publish(text(&mount["mountPath"]), &files);
        }
    }

    /// Puts files into a mount as the kubelet does: all of them at once, by a
    /// link that is replaced.
    pub fn publish(&self, mount: &str, files: &[(String, String)]) {
        let mount = self.place(mount);
        let data = mount.join("..data");
        let number = std::fs::read_dir(&mount).unwrap().count();
        let version = format!("..{number}");
        std::fs::create_dir(mount.join(&version)).unwrap();
        for (key, value) in files {
            std::fs::write(mount.join(&version).join(key), value).unwrap();
            let link = mount.join(key);
            if !link.exists() {
                std::os::unix::fs::symlink(Path::new("..data").join(key), link).unwrap();
            }
        }
        let next = mount.join("..data_tmp");
        std::os::unix::fs::symlink(version, &next).unwrap();
        std::fs::rename(next, data).unwrap();
    }

    /// What is written, with places of this machine.
    pub fn mapped(&self, written: &str) -> String {
        let replace = |all: String, (from, to): &(String, String)| all.replace(from, to);
        let all = self.replaced.iter().fold(written.to_owned(), replace);
        all.replace(MOUNTS, &self.place(MOUNTS).display().to_string())
    }

    fn set_variables(&mut self, world: &World, name: &str) {
        for from in self.container["envFrom"]
            .as_array()
            .cloned()
            .into_iter()
            .flatten()
        {
            let secret = text(&from["secretRef"]["name"]);
            let usable = |key: &str| key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
            for (key, value) in world.secrets[secret].iter().filter(|(key, _)| usable(key)) {
                self.env.insert(key.clone(), value.clone());
            }
        }
        for one in self.container["env"]
            .as_array()
            .cloned()
            .into_iter()
            .flatten()
        {
            let from = &one["valueFrom"];
            let value = if let Some(field) = from["fieldRef"]["fieldPath"].as_str() {
                assert_eq!(field, "metadata.name");
                name.to_owned()
            } else if from.is_null() {
                let given = self.env.iter();
                given.fold(text(&one["value"]).to_owned(), |value, (key, given)| {
                    value.replace(&format!("$({key})"), given)
                })
            } else {
                world.key(&from["secretKeyRef"]).to_owned()
            };
            let value = self.mapped(&value);
            self.env.insert(text(&one["name"]).to_owned(), value);
        }
    }

    /// Its variables.
    pub const fn env(&self) -> &BTreeMap<String, String> {
        &self.env
    }

    /// The name of its program, without the directory.
    pub fn program(&self) -> &str {
        let command = self.container["command"].as_array().unwrap();
        assert_eq!(command.len(), 1);
        let name = text(&command[0]).strip_prefix("/usr/local/bin/");
        name.expect("the image has its programs in /usr/local/bin")
    }

    /// Its arguments, with places of this machine.
    pub fn args(&self) -> Vec<String> {
        let args = self.container["args"].as_array().unwrap();
        args.iter().map(|arg| self.mapped(text(arg))).collect()
    }

    /// The whole command with nothing else in its environment.
    pub fn command(&self) -> Command {
        self.command_of(Command::new(binary(self.program())))
    }

    /// The same, begun with another program in front.
    pub fn command_of(&self, mut command: Command) -> Command {
        command
            .args(self.args())
            .env_clear()
            .envs(&self.env)
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Starts it.
    pub fn start(self) -> Pod {
        let command = self.command();
        self.start_as(command)
    }

    /// Starts it by another command.
    pub fn start_as(self, mut command: Command) -> Pod {
        let process = Process::begin(&mut command, &self.dir);
        Pod {
            plan: self,
            process,
        }
    }
}

/// A running container.
pub struct Pod {
    /// How it was started.
    pub plan: Plan,
    /// Its process.
    pub process: Process,
}

impl Pod {
    /// Where a port of the container is reached.
    pub fn addr(&self, port: u64) -> SocketAddr {
        self.plan.ports[&port].addr()
    }

    /// Asks what `probe` asks; the status, if there is an answer within its timeout.
    pub async fn probe(&self, probe: &str) -> Option<u16> {
        let probe = &self.plan.container[probe];
        let ports = self.plan.container["ports"].as_array().unwrap();
        let get = &probe["httpGet"];
        let port = ports.iter().find(|port| port["name"] == get["port"]);
        let port = port.expect("a probe names a port")["containerPort"].as_u64();
        let call = Call::new(self.addr(port.unwrap()), "GET", text(&get["path"]));
        let limit = Duration::from_secs(probe["timeoutSeconds"].as_u64().unwrap());
        let answer = tokio::time::timeout(limit, call.try_send()).await;
        answer.ok()?.ok().map(|answer| answer.status)
    }

    /// Waits until it has started and is ready, as the kubelet would.
    pub async fn ready(&self) {
        for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
            eventually(probe, || async {
                (self.probe(probe).await? == 200).then_some(())
            })
            .await;
        }
    }

    /// Seconds between the deletion and SIGTERM.
    pub fn pre_stop(&self) -> Duration {
        let seconds = &self.plan.container["lifecycle"]["preStop"]["sleep"]["seconds"];
        Duration::from_secs(seconds.as_u64().unwrap_or(0))
    }

    /// Seconds between the deletion and SIGKILL.
    pub fn grace(&self) -> Duration {
        let seconds = &self.plan.pod["spec"]["terminationGracePeriodSeconds"];
        Duration::from_secs(seconds.as_u64().unwrap())
    }

    /// What the kubelet does when the pod is deleted. The process has to end
    /// with 0 before it would be killed.
    pub async fn delete(&mut self) {
        let before = self.pre_stop();
        if !before.is_zero() {
            let_time_pass(before, "preStop sleeps").await;
        }
        self.process.signal(Signal::SIGTERM);
        let left = self.grace().saturating_sub(before);
        let status = self.process.exit(left).await;
        assert_eq!(status.code(), Some(0), "{status}");
    }

    /// A request to a port of it.
    pub fn call(&self, port: u64, method: &str, path: &str) -> Call {
        Call::new(self.addr(port), method, path)
    }

    /// The directory that stands for its root.
    pub fn root(&self) -> &Path {
        self.plan.dir.path()
    }
}
