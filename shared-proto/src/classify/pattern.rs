//! Patterns over lowercase text, as data.

/// One pattern. All but [`Pat::Has`] stay within a line.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pat {
    /// The text, anywhere.
    Has(&'static str),
    /// The text, with no letter or digit on either side.
    Word(&'static str),
    /// The first, later the second.
    Seq(&'static str, &'static str),
    /// The texts in this order, each somewhere after the one before.
    Seq3(&'static str, &'static str, &'static str),
    /// Both in either order, at most so many characters apart.
    Near(&'static str, &'static str, usize),
}

/// Places of one text that are looked at per line.
const PLACES_MAX: usize = 64;

/// Whether one of `patterns` is in `text`.
pub(super) fn any(text: &str, patterns: &[Pat]) -> bool {
    !text.is_empty() && patterns.iter().any(|pattern| matches(text, *pattern))
}

fn matches(text: &str, pattern: Pat) -> bool {
    match pattern {
        Pat::Has(needle) => text.contains(needle),
        Pat::Word(word) => text.lines().any(|line| has_word(line, word)),
        Pat::Seq(a, b) => text.lines().any(|line| in_order(line, &[a, b])),
        Pat::Seq3(a, b, c) => text.lines().any(|line| in_order(line, &[a, b, c])),
        Pat::Near(a, b, gap) => text
            .lines()
            .any(|line| followed(line, a, b, gap) || followed(line, b, a, gap)),
    }
}

fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).take(PLACES_MAX).any(|(at, _)| {
        let (before, rest) = line.split_at(at);
        let after = rest.strip_prefix(word).unwrap_or(rest);
        !before.ends_with(char::is_alphanumeric) && !after.starts_with(char::is_alphanumeric)
    })
}

/// The earliest place of each is the best one, so no search back is needed.
fn in_order(line: &str, parts: &[&str]) -> bool {
    let mut rest = Some(line);
    for part in parts {
        rest = rest
            .and_then(|rest| rest.split_once(part))
            .map(|(_, rest)| rest);
    }
    rest.is_some()
}

fn followed(line: &str, first: &str, second: &str, gap: usize) -> bool {
    line.match_indices(first).take(PLACES_MAX).any(|(at, _)| {
        let after = line
            .get(at..)
            .and_then(|rest| rest.strip_prefix(first))
            .unwrap_or("");
        after
            .split_once(second)
            .is_some_and(|(between, _)| between.chars().count() <= gap)
    })
}

/// Whether `word` (not as a part of a longer word; `file-` starts one) and
/// `other` stand at most `gap` characters apart in `line`, in either order.
pub(super) fn word_near(line: &str, word: &str, other: &str, gap: usize) -> bool {
    line.match_indices(word).take(PLACES_MAX).any(|(at, _)| {
        let (before, rest) = line.split_at(at);
        let after = rest.strip_prefix(word).unwrap_or(rest);
        let open = word.ends_with('-') || !after.starts_with(char::is_alphanumeric);
        let whole = !before.ends_with(char::is_alphanumeric) && open;
        let ahead = after.split_once(other).map(|(between, _)| between);
        let behind = before.rsplit_once(other).map(|(_, between)| between);
        let close = |between: Option<&str>| between.is_some_and(|b| b.chars().count() <= gap);
        whole && (close(ahead) || close(behind))
    })
}
