//! Where configuration comes in: the only reader of the environment and of
//! files, for coordinators and routers. The core judges what they say.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use shared_proto::config::{Config, Env, Overrides, Problem, Source, load as resolve};

use super::Options;

/// Largest file, bytes, a configuration's or a secret's.
const MAX_FILE: u64 = 4 * 1024 * 1024;
/// The file looked for when none is named.
const DEFAULT_FILE: &str = "omniroute.yaml";

/// The process's environment and files.
#[derive(Clone, Copy, Debug)]
pub struct ProcessEnv;

impl Env for ProcessEnv {
    fn var(&self, name: &str) -> Option<String> {
        #[expect(
            clippy::disallowed_methods,
            reason = "the one place that reads the environment"
        )]
        std::env::var(name).ok()
    }

    fn read_file(&self, path: &Path) -> Result<String, String> {
        let bytes = read_bounded(path)?;
        String::from_utf8(bytes).map_err(|_| "it is not valid UTF-8".to_owned())
    }
}

/// The configuration file: the one named, else `$OMNIROUTE_CONFIG`, else
/// `./omniroute.yaml` if it is there.
pub fn locate(named: Option<PathBuf>, env: &dyn Env) -> Option<PathBuf> {
    let variable = env.var("OMNIROUTE_CONFIG").filter(|name| !name.is_empty());
    named
        .or_else(|| variable.map(PathBuf::from))
        .or_else(|| Some(PathBuf::from(DEFAULT_FILE)).filter(|path| path.exists()))
}

/// The bytes of a configuration file. The error is a problem of the whole file.
pub fn read(path: &Path) -> Result<Vec<u8>, Vec<Problem>> {
    read_bounded(path).map_err(|why| unreadable(path, why))
}

fn unreadable(path: &Path, message: String) -> Vec<Problem> {
    vec![Problem {
        file: path.display().to_string(),
        line: 0,
        column: 0,
        path: String::new(),
        message,
        suggestion: None,
    }]
}

fn read_bounded(path: &Path) -> Result<Vec<u8>, String> {
    let unreadable = |error| format!("it can't be read: {error}");
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MAX_FILE {
        return Err(format!("it is larger than {MAX_FILE} bytes"));
    }
    Ok(bytes)
}

/// The configuration that `options` and `env` lead to. The error is every problem.
pub(super) fn load(options: &Options, env: &dyn Env) -> Result<Config, Vec<Problem>> {
    let file = locate(options.config.clone(), env);
    let name = file.as_ref().map(|path| path.display().to_string());
    let text = file
        .as_deref()
        .map(|path| env.read_file(path).map_err(|why| unreadable(path, why)));
    let text = text.transpose()?;
    let source = name.as_ref().zip(text.as_ref());
    let source = source.map(|(name, text)| Source {
        name,
        bytes: text.as_bytes(),
    });
    let overrides = Overrides {
        // `--listen` is an address of the coordinator, not of the routers.
        listen: None,
        store: options.store.clone(),
    };
    resolve(source.as_ref(), env, &overrides).map(|loaded| loaded.config)
}
