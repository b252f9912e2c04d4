//! Reads the routers' configuration file and the environment; the core judges
//! what they say.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use shared_proto::config::{Config, Env, Overrides, Problem, Source, load as resolve};

use super::Options;

/// Largest file, bytes; the core's own bounds for what it holds are smaller.
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
        let unreadable = |error| format!("it can't be read: {error}");
        let file = std::fs::File::open(path).map_err(unreadable)?;
        let mut bytes = Vec::new();
        file.take(MAX_FILE.saturating_add(1))
            .read_to_end(&mut bytes)
            .map_err(unreadable)?;
        if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MAX_FILE {
            return Err(format!("it is larger than {MAX_FILE} bytes"));
        }
        String::from_utf8(bytes).map_err(|_| "it is not valid UTF-8".to_owned())
    }
}

/// The configuration that `options` and `env` lead to. The error is every problem.
pub(super) fn load(options: &Options, env: &dyn Env) -> Result<Config, Vec<Problem>> {
    let named = env.var("OMNIROUTE_CONFIG").filter(|name| !name.is_empty());
    let file = options
        .config
        .clone()
        .or_else(|| named.map(PathBuf::from))
        .or_else(|| Some(PathBuf::from(DEFAULT_FILE)).filter(|path| path.exists()));
    let name = file
        .as_ref()
        .map_or_else(String::new, |path| path.display().to_string());
    let text = file.map(|path| env.read_file(&path)).transpose();
    let text = text.map_err(|message| {
        vec![Problem {
            file: name.clone(),
            line: 0,
            column: 0,
            path: String::new(),
            message,
            suggestion: None,
        }]
    })?;
    let source = text.as_ref().map(|text| Source {
        name: &name,
        bytes: text.as_bytes(),
    });
    let overrides = Overrides {
        // `--listen` is an address of the coordinator, not of the routers.
        listen: None,
        store: options.store.clone(),
    };
    resolve(source.as_ref(), env, &overrides).map(|loaded| loaded.config)
}
