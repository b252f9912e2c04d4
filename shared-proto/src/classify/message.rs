//! What happened, in words that may be shown to anyone: upstream texts quote
//! keys, organisations, addresses and whole web pages.

use super::facts::Facts;
use crate::hint::document::Document;

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

/// The message of a refusal with `status`.
pub(super) fn compose(status: u16, document: &Document, facts: &Facts) -> String {
    if document.html {
        return format!("the upstream answered with an HTML page (status {status})");
    }
    let text = match &facts.message {
        Some(message) => message.as_str(),
        None if !document.layers.is_empty() => "",
        None if document.text.starts_with(['{', '[']) => {
            return format!("the upstream answered with broken JSON (status {status})");
        }
        None => document.plain.as_str(),
    };
    let clean = sanitise(text);
    if clean.is_empty() {
        format!("the upstream answered {status} without an explanation")
    } else {
        clean
    }
}

/// `text` on one line, without keys, ids, hosts, addresses and markup, at most
/// [`MESSAGE_MAX_CHARS`] long.
pub(super) fn sanitise(text: &str) -> String {
    let is_gap = |c: char| c.is_whitespace() || c.is_control();
    let is_edge = |c: char| "\"'`<>()[]{},;|".contains(c) || ('\u{3000}'..='\u{303f}').contains(&c);
    let mut out = String::new();
    let mut word = String::new();
    for c in text.chars().take(SOURCE_MAX_CHARS) {
        if !is_gap(c) && !is_edge(c) {
            word.push(c);
            continue;
        }
        push_word(&mut out, &word);
        word.clear();
        // What comes now would be cut off.
        if out.len() > MESSAGE_MAX_CHARS && out.chars().count() > MESSAGE_MAX_CHARS {
            return shorten(out.trim());
        }
        // A lone `>` compares; one after a word closes a bracket.
        if is_edge(c) && c != '<' && (c != '>' || out.ends_with(' ')) {
            out.push(c);
        } else if !out.is_empty() && !out.ends_with(' ') {
            out.push(' ');
        }
    }
    push_word(&mut out, &word);
    shorten(out.trim())
}

fn push_word(out: &mut String, word: &str) {
    let core = word.trim_end_matches(['.', ':', '!', '?']);
    let tail = word.get(core.len()..).unwrap_or("");
    out.push_str(mask(core).unwrap_or(core));
    out.push_str(tail);
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
        return Some("[redacted]");
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
