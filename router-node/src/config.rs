//! What this process was started with, and how it is read again after a change.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use coordinator::config::{ProcessEnv, locate, read};
use sha2::{Digest as _, Sha256};
use shared_proto::config::{Env, Loaded, Overrides, Problem, Source, load};

/// Where the configuration comes from.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The file, if there is one.
    pub file: Option<PathBuf>,
    /// What the command line sets.
    pub overrides: Overrides,
}

/// What a configuration is made from, as it was at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The configuration file's bytes.
    pub file: Option<Vec<u8>>,
    /// The files that secrets were read from, each with a hash of its content;
    /// none where it could not be read.
    secrets: BTreeMap<PathBuf, Option<[u8; 32]>>,
}

impl Origin {
    /// The file that `named`, the environment or the working directory gives.
    pub fn find(named: Option<PathBuf>, overrides: Overrides) -> Self {
        Self {
            file: locate(named, &ProcessEnv),
            overrides,
        }
    }

    /// The file as it is now, and with it the secret files of `before`. The
    /// error is about the configuration file; a secret that can't be read is
    /// for [`Self::load`] to refuse.
    pub fn read(&self, before: &Seen) -> Result<Seen, Vec<Problem>> {
        let file = self.file.as_deref().map(read).transpose()?;
        let noting = Noting::default();
        for path in before.secrets.keys() {
            noting.read_file(path).ok();
        }
        let secrets = noting.0.into_inner();
        Ok(Seen { file, secrets })
    }

    /// Loads what [`Self::read`] gave. Afterwards `seen` names the secret files
    /// that were asked for, with what they held.
    pub fn load(&self, seen: &mut Seen) -> Result<Loaded, Vec<Problem>> {
        let name = self.file.as_ref().map(|path| path.display().to_string());
        let source = name.as_ref().zip(seen.file.as_deref());
        let source = source.map(|(name, bytes)| Source { name, bytes });
        let noting = Noting::default();
        let loaded = load(source.as_ref(), &noting, &self.overrides);
        seen.secrets = noting.0.into_inner();
        loaded
    }
}

/// The process's environment, which notes the files that it read.
#[derive(Default)]
struct Noting(RefCell<BTreeMap<PathBuf, Option<[u8; 32]>>>);

impl Env for Noting {
    fn var(&self, name: &str) -> Option<String> {
        ProcessEnv.var(name)
    }

    fn read_file(&self, path: &Path) -> Result<String, String> {
        let text = ProcessEnv.read_file(path);
        let hash = text.as_ref().ok().map(|text| Sha256::digest(text).into());
        self.0.borrow_mut().insert(path.to_owned(), hash);
        text
    }
}
