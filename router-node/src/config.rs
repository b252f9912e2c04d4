//! The edge where configuration comes in: the only reader of the environment
//! and of files. What it reads goes to the core, which judges it.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use shared_proto::config::{Env, Loaded, Overrides, Problem, Source, load};

/// Largest configuration file, bytes.
const MAX_FILE: u64 = 4 * 1024 * 1024;
/// Largest secret file, bytes.
const MAX_SECRET: u64 = 64 * 1024;
/// The file looked for when none is named.
const DEFAULT_FILE: &str = "omniroute.yaml";

/// The process's environment.
#[derive(Clone, Copy, Debug)]
pub struct ProcessEnv;

impl Env for ProcessEnv {
    fn var(&self, name: &str) -> Option<String> {
        var(name)
    }

    fn read_file(&self, path: &Path) -> Result<String, String> {
        read_bounded(path, MAX_SECRET).and_then(|bytes| {
            String::from_utf8(bytes).map_err(|_| "it is not valid UTF-8".to_owned())
        })
    }
}

/// One variable of the process's environment.
pub fn var(name: &str) -> Option<String> {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that reads the environment"
    )]
    std::env::var(name).ok()
}

/// Where the configuration comes from.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The file, if there is one.
    pub file: Option<PathBuf>,
    /// What the command line sets.
    pub overrides: Overrides,
}

impl Origin {
    /// `--config`, else `$OMNIROUTE_CONFIG`, else `./omniroute.yaml` if it is there.
    pub fn find(named: Option<PathBuf>, overrides: Overrides) -> Self {
        let file = named
            .or_else(|| {
                var("OMNIROUTE_CONFIG")
                    .filter(|v| !v.is_empty())
                    .map(PathBuf::from)
            })
            .or_else(|| Some(PathBuf::from(DEFAULT_FILE)).filter(|path| path.exists()));
        Self { file, overrides }
    }

    /// The file's bytes as they are now.
    pub fn read(&self) -> Result<Option<Vec<u8>>, Vec<Problem>> {
        let Some(path) = &self.file else {
            return Ok(None);
        };
        read_bounded(path, MAX_FILE).map(Some).map_err(|why| {
            vec![Problem {
                file: path.display().to_string(),
                line: 0,
                column: 0,
                path: String::new(),
                message: why,
                suggestion: None,
            }]
        })
    }

    /// Loads what [`Self::read`] gave.
    pub fn load(&self, bytes: Option<&[u8]>) -> Result<Loaded, Vec<Problem>> {
        let name = self.file.as_ref().map(|path| path.display().to_string());
        let source = match (&name, bytes) {
            (Some(name), Some(bytes)) => Some(Source { name, bytes }),
            _ => None,
        };
        load(source.as_ref(), &ProcessEnv, &self.overrides)
    }
}

fn read_bounded(path: &Path, max: u64) -> Result<Vec<u8>, String> {
    let file = std::fs::File::open(path).map_err(|error| format!("it can't be read: {error}"))?;
    let mut bytes = Vec::new();
    file.take(max.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(|error| format!("it can't be read: {error}"))?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > max {
        return Err(format!("it is larger than {max} bytes"));
    }
    Ok(bytes)
}
