//! What this process was started with, and how it is read again after a change.

use std::path::PathBuf;

use coordinator::config::{ProcessEnv, locate, read};
use shared_proto::config::{Loaded, Overrides, Problem, Source, load};

/// Where the configuration comes from.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The file, if there is one.
    pub file: Option<PathBuf>,
    /// What the command line sets.
    pub overrides: Overrides,
}

impl Origin {
    /// The file that `named`, the environment or the working directory gives.
    pub fn find(named: Option<PathBuf>, overrides: Overrides) -> Self {
        Self {
            file: locate(named, &ProcessEnv),
            overrides,
        }
    }

    /// The file's bytes as they are now.
    pub fn read(&self) -> Result<Option<Vec<u8>>, Vec<Problem>> {
        self.file.as_deref().map(read).transpose()
    }

    /// Loads what [`Self::read`] gave.
    pub fn load(&self, bytes: Option<&[u8]>) -> Result<Loaded, Vec<Problem>> {
        let name = self.file.as_ref().map(|path| path.display().to_string());
        let source = name.as_ref().zip(bytes);
        let source = source.map(|(name, bytes)| Source { name, bytes });
        load(source.as_ref(), &ProcessEnv, &self.overrides)
    }
}
