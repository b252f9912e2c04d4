//! Collects what is wrong, and finds the place of it.

use super::problem::{Path, Problem, Step, nearest};
use super::yaml::{Node, Value};

/// Suggestions cost a comparison with every candidate; a file that is wrong
/// this often gets no more of them.
const MAX_SUGGESTIONS: usize = 500;

/// Problems refuse the configuration; warnings do not.
pub(super) struct Report<'a> {
    file: &'a str,
    root: Option<&'a Node>,
    suggestions_left: usize,
    pub(super) problems: Vec<Problem>,
    pub(super) warnings: Vec<Problem>,
}

impl<'a> Report<'a> {
    /// For the file of this name and tree; without a tree every path is at its top.
    pub(super) const fn new(file: &'a str, root: Option<&'a Node>) -> Self {
        Self {
            file,
            root,
            suggestions_left: MAX_SUGGESTIONS,
            problems: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// A fault of the value at `path`.
    pub(super) fn problem(&mut self, path: &Path, message: impl Into<String>) {
        let problem = self.at(path, message.into());
        self.problems.push(problem);
    }

    /// A fault of the value at `path`, which holds `word` where one of `known` would be right.
    pub(super) fn unknown<'w>(
        &mut self,
        path: &Path,
        message: impl Into<String>,
        word: &str,
        known: impl IntoIterator<Item = &'w str>,
    ) {
        let mut problem = self.at(path, message.into());
        problem.suggestion = self.suggest(word, known);
        self.problems.push(problem);
    }

    /// A fault with its remedy.
    pub(super) fn problem_with(
        &mut self,
        path: &Path,
        message: impl Into<String>,
        suggestion: Option<String>,
    ) {
        let mut problem = self.at(path, message.into());
        problem.suggestion = suggestion;
        self.problems.push(problem);
    }

    /// A key that should not be there, at the key itself.
    pub(super) fn unknown_key<'w>(
        &mut self,
        path: &Path,
        (line, column): (usize, usize),
        key: &str,
        known: impl IntoIterator<Item = &'w str>,
    ) {
        let problem = Problem {
            line,
            column,
            suggestion: self.suggest(key, known),
            ..self.at(path, "unknown key".to_owned())
        };
        self.problems.push(problem);
    }

    /// An oddity of the value at `path`.
    pub(super) fn warn(&mut self, path: &Path, message: impl Into<String>) {
        let warning = self.at(path, message.into());
        self.warnings.push(warning);
    }

    /// An oddity of the value at `path`, which holds `word` where one of `known` would make sense.
    pub(super) fn warn_unknown<'w>(
        &mut self,
        path: &Path,
        message: impl Into<String>,
        word: &str,
        known: impl IntoIterator<Item = &'w str>,
    ) {
        let mut warning = self.at(path, message.into());
        warning.suggestion = self.suggest(word, known);
        self.warnings.push(warning);
    }

    /// A fault of a variable or option.
    pub(super) fn outside(&mut self, origin: Origin, message: impl Into<String>) {
        self.problems.push(origin.problem(message.into()));
    }

    /// An oddity of a variable or option.
    pub(super) fn warn_outside(&mut self, origin: Origin, message: impl Into<String>) {
        self.warnings.push(origin.problem(message.into()));
    }

    /// A fault of a value that may come from the file or from elsewhere.
    pub(super) fn problem_of(&mut self, from: &From, message: impl Into<String>) {
        match from {
            From::File(path) => self.problem(path, message),
            From::Outside(origin) => self.outside(*origin, message),
        }
    }

    /// An oddity of a value that may come from the file or from elsewhere.
    pub(super) fn warn_of(&mut self, from: &From, message: impl Into<String>) {
        match from {
            From::File(path) => self.warn(path, message),
            From::Outside(origin) => self.warn_outside(*origin, message),
        }
    }

    /// Whether a fault was found at `path` or below.
    pub(super) fn faulty_below(&self, path: &Path) -> bool {
        let prefix = path.to_string();
        self.problems
            .iter()
            .any(|problem| problem.path.starts_with(&prefix))
    }

    fn at(&self, path: &Path, message: String) -> Problem {
        let (line, column) = self.root.map_or((1, 1), |root| locate(root, path));
        Problem {
            file: self.file.to_owned(),
            line,
            column,
            path: path.to_string(),
            message,
            suggestion: None,
        }
    }

    fn suggest<'w>(
        &mut self,
        word: &str,
        known: impl IntoIterator<Item = &'w str>,
    ) -> Option<String> {
        self.suggestions_left = self.suggestions_left.checked_sub(1)?;
        nearest(word, known)
    }
}

/// Where a value outside the file stands.
#[derive(Clone, Copy, Debug)]
pub(super) enum Origin {
    /// A variable's name.
    Variable(&'static str),
    /// An option's name, with its dashes.
    Option(&'static str),
}

impl Origin {
    fn problem(self, message: String) -> Problem {
        let (file, name) = match self {
            Self::Variable(name) => ("environment", name),
            Self::Option(name) => ("command line", name),
        };
        Problem {
            file: file.to_owned(),
            line: 0,
            column: 0,
            path: name.to_owned(),
            message,
            suggestion: None,
        }
    }
}

/// Where a value comes from.
#[derive(Clone, Debug)]
pub(super) enum From {
    /// The file, or its default.
    File(Path),
    /// Elsewhere.
    Outside(Origin),
}

/// The place of the value at `path`, or of the nearest value above it. A list
/// or mapping is where its key is.
fn locate(root: &Node, path: &Path) -> (usize, usize) {
    let mut node = root;
    let mut place = (root.line, root.column);
    for step in path.steps() {
        match (step, &node.value) {
            (Step::Key(key), Value::Map(entries)) => {
                let Some(entry) = entries.iter().find(|entry| entry.key == *key) else {
                    break;
                };
                node = &entry.node;
                place = match node.value {
                    Value::Null | Value::List(_) | Value::Map(_) => (entry.line, entry.column),
                    Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Text(_) => {
                        (node.line, node.column)
                    }
                };
            }
            (Step::Index(index), Value::List(items)) => {
                let Some(item) = items.get(*index) else {
                    break;
                };
                node = item;
                place = (node.line, node.column);
            }
            _ => break,
        }
    }
    place
}
