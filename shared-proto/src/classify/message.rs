//! What happened, in words that may be shown to anyone: upstream texts quote
//! keys, organisations, addresses and whole web pages.

use super::facts::Facts;
use crate::hint::document::Document;

/// What stands for a secret.
const HIDDEN: &str = "[redacted]";
/// Longest message, in characters.
const MESSAGE_MAX_CHARS: usize = 300;
/// Characters of an upstream's text that are looked at.
const SOURCE_MAX_CHARS: usize = 2_000;
/// From this length on a word of mixed letters and digits is taken for a secret or an id.
const OPAQUE_MIN_CHARS: usize = 20;
/// From this length on a number is taken for an account number.
const LONG_NUMBER_DIGITS: usize = 10;

/// Beginnings of keys, tokens and ids.
const SECRET_PREFIXES: &[&str] = &[
    "sk-",
    "sk_",
    "pk-",
    "pk_",
    "rk-",
    "ak-",
    "gsk_",
    "xai-",
    "csk-",
    "nvapi-",
    "hf_",
    "r8_",
    "aiza",
    "ya29.",
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "github_pat_",
    "eyj",
    "key-",
    "key_",
    "org-",
    "org_",
    "proj-",
    "proj_",
    "project_number:",
    "user-",
    "user_",
    "acct_",
    "team_",
    "req_",
    "req-",
    "request_id:",
    "resp_",
    "file-",
    "token-",
    "or-v1-",
];

/// Names whose value is a secret, without their `_` and `-`; ends of longer ones, too.
const SECRET_NAMES: &[&str] = &[
    "apikey",
    "accesskey",
    "secretkey",
    "privatekey",
    "password",
    "passwd",
    "pwd",
    "passphrase",
    "secret",
    "token",
];

/// What follows a name and a colon in prose, where no value does.
const PROSE: &[&str] = &[
    "a",
    "an",
    "are",
    "bearer",
    "cannot",
    "does",
    "expected",
    "expired",
    "has",
    "have",
    "invalid",
    "is",
    "it",
    "malformed",
    "missing",
    "must",
    "no",
    "not",
    "required",
    "signature",
    "the",
    "this",
    "unknown",
    "was",
    "your",
];

/// The message of a refusal with `status`; `redirect` is where it points to, if it does.
pub(super) fn compose(
    status: u16,
    document: &Document,
    facts: &Facts,
    redirect: Option<&str>,
) -> String {
    if status < 400 {
        return instead_of_an_answer(status, redirect);
    }
    if document.html {
        return format!("the upstream answered with an HTML page (status {status})");
    }
    let text = match &facts.message {
        Some(message) => message.as_str(),
        None if !document.layers.is_empty() => "",
        None if document.is_cut => {
            return format!(
                "the upstream answered {status} with a longer explanation than is read"
            );
        }
        None if document.text.starts_with(['{', '[']) => {
            return format!("the upstream answered with broken JSON (status {status})");
        }
        None => document.plain.as_str(),
    };
    let clean = sanitise(text);
    if clean.is_empty() {
        unexplained(status)
    } else {
        clean
    }
}

/// What is said of a refusal that says nothing.
pub(super) fn unexplained(status: u16) -> String {
    format!("the upstream answered {status} without an explanation")
}

/// What is said of a machine in front of the upstream that gives no reason.
pub(super) fn blocked(status: u16) -> String {
    format!(
        "a machine in front of the upstream (a CDN or a firewall) refused the call (status {status})"
    )
}

/// A status that is neither an answer nor a refusal. Of where a redirect points
/// to only the host is told: the rest may hold anything.
fn instead_of_an_answer(status: u16, location: Option<&str>) -> String {
    let host = location.and_then(host_of);
    match (status, host) {
        (300..400, Some(host)) => {
            format!("the upstream answered {status}, a redirect to host {host}")
        }
        (301..=303 | 307 | 308, None) => {
            format!("the upstream answered {status}, a redirect")
        }
        _ => format!("the upstream answered {status}, which is neither an answer nor an error"),
    }
}

/// The host of an absolute or scheme-relative URL.
fn host_of(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("//")?;
    let authority = rest.split(['/', '?', '#', '\\']).next()?;
    let host = authority.rsplit('@').next()?;
    let host = host.split(':').next()?;
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-');
    (!host.is_empty() && host.len() <= 253 && host.bytes().all(plain)).then_some(host)
}

/// `text` on one line, without keys, ids, hosts, addresses and markup, at most
/// [`MESSAGE_MAX_CHARS`] long.
pub(super) fn sanitise(text: &str) -> String {
    let is_gap = |c: char| c.is_whitespace() || c.is_control();
    let is_edge = |c: char| "\"'`<>()[]{},;|".contains(c) || ('\u{3000}'..='\u{303f}').contains(&c);
    let mut out = Clean::default();
    let mut word = String::new();
    for c in text.chars().take(SOURCE_MAX_CHARS) {
        if !is_gap(c) && !is_edge(c) {
            word.push(c);
            continue;
        }
        out.push_word(&word);
        word.clear();
        // What comes now would be cut off.
        if out.text.len() > MESSAGE_MAX_CHARS && out.text.chars().count() > MESSAGE_MAX_CHARS {
            return shorten(out.text.trim());
        }
        let text = &mut out.text;
        // A lone `>` compares; one after a word closes a bracket.
        if is_edge(c) && c != '<' && (c != '>' || text.ends_with(' ')) {
            text.push(c);
            out.edge(c);
        } else if !text.is_empty() && !text.ends_with(' ') {
            text.push(' ');
        }
    }
    out.push_word(&word);
    shorten(out.text.trim())
}

/// A text in the making.
#[derive(Default)]
struct Clean {
    text: String,
    next: Next,
}

/// What the next word may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Next {
    /// Any word.
    #[default]
    Any,
    /// The separator after the name of a secret.
    Separator,
    /// The secret itself: whatever it looks like, or unless it is prose.
    Secret { certain: bool },
}

impl Clean {
    /// Quotes may stand around a name and a value; other edges end them.
    fn edge(&mut self, c: char) {
        if !matches!(c, '"' | '\'' | '`') {
            self.next = Next::Any;
        }
    }

    fn push_word(&mut self, word: &str) {
        let core = word.trim_end_matches(['.', ':', '!', '?']);
        let tail = word.get(core.len()..).unwrap_or("");
        if word.is_empty() {
            return;
        }
        let next = std::mem::take(&mut self.next);
        if let Next::Secret { certain } = next {
            if word.bytes().all(|b| matches!(b, b'=' | b':')) {
                self.next = next;
                self.text.push_str(word);
            } else if certain || !PROSE.contains(&core.to_lowercase().as_str()) {
                self.text.push_str(HIDDEN);
                self.text.push_str(tail);
            } else {
                self.push_plain(core, tail);
            }
            return;
        }
        // `name=value`, `name: value`, `"name": "value"`, `a=b&name=value`
        let follows = next == Next::Separator && word.starts_with(['=', ':']);
        let at = if follows { Some(0) } else { secret_named(word) };
        let Some(at) = at else {
            self.push_plain(core, tail);
            if tail.is_empty() && is_secret_name(core) {
                self.next = Next::Separator;
            }
            return;
        };
        let (name, rest) = word.split_at_checked(at).unwrap_or((word, ""));
        let value = rest.trim_start_matches(['=', ':']);
        let separator = rest.strip_suffix(value).unwrap_or(rest);
        self.push_plain(name, separator);
        if value.is_empty() {
            let certain = separator.contains('=') || follows;
            self.next = Next::Secret { certain };
        } else {
            self.text.push_str(HIDDEN);
        }
    }

    fn push_plain(&mut self, core: &str, tail: &str) {
        self.text.push_str(mask(core).unwrap_or(core));
        self.text.push_str(tail);
    }
}

/// Where the separator after the name of a secret stands in `word`.
fn secret_named(word: &str) -> Option<usize> {
    let separators = word.match_indices(['=', ':']);
    separators.map(|(at, _)| at).find(|at| {
        let name = word.get(..*at).unwrap_or("");
        let name = name.rsplit(['&', '?', '/', '=', ':']).next().unwrap_or("");
        is_secret_name(name)
    })
}

/// Whether what is called `name` is a secret.
fn is_secret_name(name: &str) -> bool {
    let plain: String = name
        .chars()
        .filter(|c| !matches!(c, '_' | '-' | '.'))
        .map(|c| c.to_ascii_lowercase())
        .collect();
    SECRET_NAMES.iter().any(|known| plain.ends_with(known))
}

fn shorten(text: &str) -> String {
    if text.chars().count() <= MESSAGE_MAX_CHARS {
        return text.to_owned();
    }
    let head: String = text
        .chars()
        .take(MESSAGE_MAX_CHARS.saturating_sub(3))
        .collect();
    format!("{}...", head.trim_end())
}

/// What to show instead of `word`, if it must not be shown.
fn mask(word: &str) -> Option<&'static str> {
    if is_plain(word) {
        return None;
    }
    let lower = word.to_lowercase();
    if lower.contains("://") || lower.starts_with("www.") {
        return Some("[url]");
    }
    if word.contains('@') && word.contains('.') {
        return Some("[email]");
    }
    let value = lower.rsplit('=').next().unwrap_or("");
    let secret = SECRET_PREFIXES.iter().any(|prefix| {
        value
            .strip_prefix(prefix)
            .is_some_and(|rest| !rest.is_empty())
    });
    if secret || word.contains("**") || has_opaque(word) || has_long_number(word) || is_uuid(word) {
        return Some(HIDDEN);
    }
    is_host(word).then_some("[host]")
}

/// Nothing but a few letters, which is what most words are: no host, no address,
/// and no secret but for those whose prefix is letters too.
fn is_plain(word: &str) -> bool {
    let begins = |prefix: &str| {
        let head = word.get(..prefix.len());
        head.is_some_and(|head| head.eq_ignore_ascii_case(prefix))
    };
    word.len() < OPAQUE_MIN_CHARS
        && word.bytes().all(|b| b.is_ascii_alphabetic())
        && !begins("aiza")
        && !begins("eyj")
}

/// A run of letters and digits without a break that no word or model name has.
fn has_opaque(word: &str) -> bool {
    word.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .any(|run| {
            run.len() >= OPAQUE_MIN_CHARS
                && run.bytes().any(|b| b.is_ascii_digit())
                && run.bytes().any(|b| b.is_ascii_alphabetic())
        })
}

fn has_long_number(word: &str) -> bool {
    word.split(|c: char| !c.is_ascii_digit())
        .any(|run| run.len() >= LONG_NUMBER_DIGITS)
}

fn is_uuid(word: &str) -> bool {
    word.split(['/', ':', '_', '.']).any(|part| {
        let lengths = [8, 4, 4, 4, 12];
        let hex = |group: &str| group.bytes().all(|b| b.is_ascii_hexdigit());
        part.split('-').map(str::len).eq(lengths) && part.split('-').all(hex)
    })
}

/// A domain name or an IPv4 address, with or without port and path.
fn is_host(word: &str) -> bool {
    let host = word.split(['/', ':', '?']).next().unwrap_or("");
    let labels: Vec<&str> = host.split('.').collect();
    let label = |l: &&str| {
        !l.is_empty()
            && l.bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    let Some((top, rest)) = labels.split_last() else {
        return false;
    };
    if rest.is_empty() || !labels.iter().all(label) {
        return false;
    }
    let digits = |l: &&str| l.bytes().all(|b| b.is_ascii_digit());
    let named = top.len() >= 2 && top.bytes().all(|b| b.is_ascii_lowercase());
    named || labels.len() == 4 && labels.iter().all(digits)
}
