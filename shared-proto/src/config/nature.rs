//! What sets a provider's refusals and quotas apart from the usual; all of it
//! is data of the catalogue.

/// How a provider's refusals are to be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Its built-in rules may say what a refusal is charged to.
    pub honours_rule_scope: bool,
    /// Its built-in rules see the whole text of a refusal, not only its code and type.
    pub full_text_rules: bool,
    /// How it refuses what is too long without saying so.
    pub unsaid_overflow: UnsaidOverflow,
}

/// Signs of a prompt that is too long, where no word tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnsaidOverflow {
    /// A 400 with nothing in it.
    pub bare_400: bool,
    /// A well-formed answer with nothing in it.
    pub empty_answer: bool,
}

/// Models that share one quota on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFamily {
    /// Its name in keys of locks.
    pub name: String,
    /// Which models: lower-case names, with `*` for anything at either end.
    pub models: Vec<String>,
}

impl ModelFamily {
    /// Whether `model`, in lower case, is one of them.
    pub fn has(&self, model: &str) -> bool {
        self.models.iter().any(|pattern| fits(pattern, model))
    }
}

/// Whether the name says that it is somebody's server of a usual kind, whose
/// quotas are as unknown as its models.
pub(super) fn is_compatible(id: &str) -> bool {
    ["openai-compatible", "anthropic-compatible"]
        .iter()
        .any(|kind| id.starts_with(kind))
}

fn fits(pattern: &str, model: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(""), _) => true,
        (Some(rest), Some(_)) => model.contains(rest.strip_suffix('*').unwrap_or(rest)),
        (Some(end), None) => model.ends_with(end),
        (None, Some(start)) => model.starts_with(start),
        (None, None) => pattern == model,
    }
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn patterns_have_a_star_at_either_end() {
        let table = [
            ("*", "x", true),
            ("*spark*", "gpt-5.3-codex-spark", true),
            ("*spark*", "gpt-5", false),
            ("gemini-*", "gemini-3-pro", true),
            ("gemini-*", "x-gemini-3", false),
            ("*:free", "a/b:free", true),
            ("*:free", "a/b", false),
            ("a", "a", true),
            ("a", "ab", false),
            ("**", "x", true),
        ];
        for (pattern, model, expected) in table {
            assert_eq!(fits(pattern, model), expected, "{pattern} {model}");
        }
    }
}
