//! Tests of the configuration.

use std::collections::HashMap;
use std::path::Path as FilePath;

use super::{Env, Loaded, Overrides, Problem, Source, load};

mod egress;
mod extras;
mod files;
mod properties;
mod providers;
mod resolved;
mod rotation;
mod saved;
mod settings;
mod text;
mod zero;

/// Surroundings made by hand.
#[derive(Default)]
struct Surroundings {
    variables: HashMap<String, String>,
    files: HashMap<String, String>,
}

impl Surroundings {
    fn with(variables: &[(&str, &str)]) -> Self {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Self {
            variables: variables.iter().map(own).collect(),
            files: HashMap::new(),
        }
    }
}

impl Env for Surroundings {
    fn var(&self, name: &str) -> Option<String> {
        self.variables.get(name).cloned()
    }

    fn read_file(&self, path: &FilePath) -> Result<String, String> {
        let found = path.to_str().and_then(|path| self.files.get(path));
        found.cloned().ok_or_else(|| "no such file".to_owned())
    }
}

fn load_text(text: &str, env: &Surroundings) -> Result<Loaded, Vec<Problem>> {
    let source = Source {
        name: "omniroute.yaml",
        bytes: text.as_bytes(),
    };
    load(Some(&source), env, &Overrides::default())
}

/// Loads a file that has to be right.
fn good(text: &str) -> Loaded {
    load_text(text, &Surroundings::default()).unwrap_or_else(|problems| panic!("{problems:#?}"))
}

/// What is wrong with a file that has to be wrong.
fn bad(text: &str) -> Vec<String> {
    let problems = load_text(text, &Surroundings::default()).unwrap_err();
    problems.iter().map(ToString::to_string).collect()
}
