//! What is wrong with a configuration, and where.

use std::fmt;

/// One fault or oddity, with its place. Lines and columns count from 1; a
/// problem of a variable or an option has neither (both are 0).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file, or `environment`, or `command line`.
    pub file: String,
    /// Line in the file.
    pub line: usize,
    /// Column in the line, in characters.
    pub column: usize,
    /// The key's path, such as `connections[2].provider`, or the variable's name. Empty for the whole.
    pub path: String,
    /// What is wrong and what would be right. Never holds a secret.
    pub message: String,
    /// The nearest thing that exists.
    pub suggestion: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.file.is_empty() {
            f.write_str(&self.file)?;
            if self.line > 0 {
                write!(f, ":{}:{}", self.line, self.column)?;
            }
            f.write_str(": ")?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)?;
        if let Some(word) = &self.suggestion {
            write!(f, " (did you mean `{word}`?)")?;
        }
        Ok(())
    }
}

/// The way from the top of the file to one value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Path(Vec<Step>);

/// One step of a [`Path`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Into a mapping.
    Key(String),
    /// Into a list, from 0.
    Index(usize),
}

impl Path {
    /// A key of the top.
    pub(crate) fn of(key: &str) -> Self {
        Self::default().key(key)
    }

    /// This path and a key.
    pub(crate) fn key(&self, key: &str) -> Self {
        let mut steps = self.0.clone();
        steps.push(Step::Key(key.to_owned()));
        Self(steps)
    }

    /// This path and a place in a list.
    pub(crate) fn index(&self, index: usize) -> Self {
        let mut steps = self.0.clone();
        steps.push(Step::Index(index));
        Self(steps)
    }

    /// The steps from the top.
    pub(crate) fn steps(&self) -> &[Step] {
        &self.0
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.0.iter().enumerate() {
            match step {
                Step::Index(index) => write!(f, "[{index}]")?,
                Step::Key(key) => {
                    if at > 0 {
                        f.write_str(".")?;
                    }
                    let plain = |c: char| c.is_ascii_alphanumeric() || "_-/".contains(c);
                    if key.is_empty() || !key.chars().all(plain) {
                        write!(f, "{:?}", shorten(key))?;
                    } else {
                        f.write_str(&shorten(key))?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// `text` cut to a length that a message can hold.
pub(crate) fn shorten(text: &str) -> String {
    const LONGEST: usize = 80;
    if text.chars().nth(LONGEST).is_none() {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(LONGEST).collect();
    short.push('…');
    short
}

/// The candidate that `word` was most likely meant to be: the same letters and
/// digits in other case or punctuation, else one within a third of its length
/// in edits.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<String> {
    const LONGEST: usize = 64;
    if word.is_empty() || word.len() > LONGEST {
        return None;
    }
    let plain = |text: &str| -> String {
        text.chars()
            .filter(char::is_ascii_alphanumeric)
            .map(|c| c.to_ascii_lowercase())
            .collect()
    };
    let wanted = plain(word);
    let limit = wanted.len().div_ceil(3).max(1);
    candidates
        .into_iter()
        .filter(|candidate| *candidate != word && candidate.len() <= LONGEST)
        .map(|candidate| (strsim::osa_distance(&wanted, &plain(candidate)), candidate))
        .filter(|(distance, _)| *distance <= limit && *distance < wanted.len().max(1))
        .min()
        .map(|(_, candidate)| candidate.to_owned())
}
