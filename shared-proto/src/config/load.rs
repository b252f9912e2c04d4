//! From text and environment to a [`Config`], or to every problem at once.

use std::path::Path as FilePath;
use std::sync::Arc;

use super::Config;
use super::file::File;
use super::problem::{Path, Problem};
use super::report::Report;
use super::resolve::{self, Context};
use super::saved::Given;
use super::{shape, yaml};

/// A configuration file, read but not understood yet.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The name that messages show.
    pub name: &'a str,
    /// What it holds; at most 4 MiB of UTF-8 text.
    pub bytes: &'a [u8],
}

/// What a configuration may ask of its surroundings.
pub trait Env {
    /// The variable's value; `None` where it is not set.
    fn var(&self, name: &str) -> Option<String>;

    /// The text of the file that `{file: PATH}` names. A relative path counts
    /// from the working directory. The error is a reason in words.
    fn read_file(&self, path: &FilePath) -> Result<String, String>;
}

/// What the command line says; it goes before variables and file.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// `--listen`
    pub listen: Option<String>,
    /// `--store`
    pub store: Option<String>,
}

/// A usable configuration and what is to be said about it.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Everything resolved.
    pub config: Config,
    /// What works differently from what was written, by line.
    pub warnings: Vec<Problem>,
    /// Without a file: the connections that variables gave.
    pub found: Vec<FoundConnection>,
}

/// A connection that exists because a variable was set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundConnection {
    /// The variable's name.
    pub variable: String,
    /// The connection's id, which is also its provider's.
    pub connection: String,
}

/// Resolves a configuration. No source, or one that says nothing, is the
/// zero-configuration start. The error is every problem, by line.
pub fn load(
    source: Option<&Source<'_>>,
    env: &dyn Env,
    overrides: &Overrides,
) -> Result<Loaded, Vec<Problem>> {
    let name = source.map_or("", |source| source.name);
    let parsed = source.map_or_else(yaml::Parsed::default, |source| {
        yaml::parse(source.name, source.bytes)
    });
    let mut report = Report::new(name, parsed.root.as_ref());
    report.problems = parsed.problems;
    if parsed.root.is_none() && !report.problems.is_empty() {
        return Err(report.problems);
    }
    let file = parsed
        .root
        .as_ref()
        .map(|root| shape::check(root, &mut report));
    let given = file.as_ref().map(Given::by_file).unwrap_or_default();
    let file: Option<File> = file.map(|json| {
        serde_json::from_value(json).unwrap_or_else(|fault| {
            let message = format!("the file does not fit its own schema: {fault}");
            report.problem(&Path::default(), message);
            File::default()
        })
    });
    let mut context = Context {
        report: &mut report,
        env,
        overrides,
    };
    let (mut config, found) = resolve::config(file, &mut context);
    config.given = Arc::new(given);
    let Report {
        mut problems,
        mut warnings,
        ..
    } = report;
    let by_line = |a: &Problem, b: &Problem| (a.line, a.column).cmp(&(b.line, b.column));
    if problems.is_empty() {
        warnings.sort_by(by_line);
        return Ok(Loaded {
            config,
            warnings,
            found,
        });
    }
    problems.sort_by(by_line);
    Err(problems)
}
