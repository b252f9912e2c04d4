//! What a client sent, as far as an upstream's refusal may quote it.
//!
//! A refusal often repeats a part of its request: a model's name, a role, a
//! field's name, a header's value, the prompt. A phrase in such a quote says
//! nothing of the account. [`Asked::says`] is how the readers of refusals tell.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::fmt;

use memchr::{memchr, memmem};

/// Different phrases that are looked for in one request.
const LOOKUPS_MAX: usize = 512;
/// Bytes that are searched for one request.
const SEARCHED_MAX: usize = 1 << 30;
/// Shorter words are looked for as whole words: among millions of letters of an
/// image in base64 any few letters stand somewhere.
const WHOLE_BELOW: usize = 8;
/// Between the parts of a request: no phrase goes on over it.
const BORDER: u8 = 0xff;

/// A request's body and the values of its headers, read only when somebody asks.
///
/// Letters and digits are compared, without case and accents; whatever stands
/// between words is one gap. Each part counts as it is written with its JSON
/// escapes undone, and undone once more, since arguments of tools are JSON in
/// JSON. At the bounds (512 phrases, a GiB searched) every phrase counts as said:
/// then the refusal's status speaks.
pub struct Asked<'a> {
    body: &'a [u8],
    headers: Vec<&'a [u8]>,
    text: OnceCell<Vec<u8>>,
    answered: RefCell<BTreeMap<Vec<u8>, bool>>,
    searched: Cell<usize>,
}

impl<'a> Asked<'a> {
    /// A request's body as it came, and the values of headers that are passed on.
    pub fn new(body: &'a [u8], headers: impl IntoIterator<Item = &'a [u8]>) -> Self {
        Self {
            body,
            headers: headers.into_iter().collect(),
            text: OnceCell::new(),
            answered: RefCell::default(),
            searched: Cell::new(0),
        }
    }

    /// Whether the client wrote `phrase`, a part of a refusal, which may have been
    /// escaped on its way back. A phrase without letters and digits is nobody's.
    pub fn says(&self, phrase: &str) -> bool {
        in_any_form(phrase, |words| self.holds(words))
    }

    fn holds(&self, words: &[u8]) -> bool {
        if let Some(known) = self.answered.borrow().get(words) {
            return *known;
        }
        let text = self.text.get_or_init(|| self.read());
        let searched = self.searched.get().saturating_add(text.len());
        if searched > SEARCHED_MAX || self.answered.borrow().len() >= LOOKUPS_MAX {
            return true;
        }
        self.searched.set(searched);
        let found = stands_in(words, text);
        self.answered.borrow_mut().insert(words.to_vec(), found);
        found
    }

    fn read(&self) -> Vec<u8> {
        let mut text = Vec::with_capacity(self.body.len());
        for part in std::iter::once(&self.body).chain(&self.headers) {
            let mut once: Option<Vec<u8>> = None;
            for _ in 0..2 {
                let written = once.as_deref().unwrap_or(part);
                if memchr(b'\\', written).is_none() {
                    break;
                }
                let plain = unescaped(written);
                fold(&plain, &mut text);
                text.push(BORDER);
                once = Some(plain);
            }
            if once.is_none() {
                fold(part, &mut text);
                text.push(BORDER);
            }
        }
        text
    }
}

impl fmt::Debug for Asked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asked").finish_non_exhaustive()
    }
}

/// Whether a name that went upstream in the client's stead holds `phrase`.
pub(crate) fn name_says(name: &str, phrase: &str) -> bool {
    let mut text = Vec::new();
    fold(name.as_bytes(), &mut text);
    in_any_form(phrase, |words| stands_in(words, &text))
}

/// Whether `phrase`, as it is written or with its escapes undone, `holds`.
fn in_any_form(phrase: &str, holds: impl Fn(&[u8]) -> bool) -> bool {
    let mut written = phrase.as_bytes().to_vec();
    for _ in 0..3 {
        let mut words = Vec::new();
        fold(&written, &mut words);
        let words = words.trim_ascii();
        if !words.is_empty() && holds(words) {
            return true;
        }
        if memchr(b'\\', &written).is_none() {
            break;
        }
        written = unescaped(&written);
    }
    false
}

fn stands_in(words: &[u8], text: &[u8]) -> bool {
    if words.len() >= WHOLE_BELOW || !words.is_ascii() {
        return memmem::find(text, words).is_some();
    }
    let whole = [b" ", words, b" "].concat();
    memmem::find(text, &whole).is_some()
}

/// Adds the words of `text`, in lower case, a space before, between and after them.
fn fold(text: &[u8], into: &mut Vec<u8>) {
    let gap = |into: &mut Vec<u8>| {
        if into.last() != Some(&b' ') {
            into.push(b' ');
        }
    };
    gap(into);
    for chunk in text.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                'a'..='z' | '0'..='9' => into.push(u8::try_from(c).unwrap_or(b' ')),
                'A'..='Z' => into.push(u8::try_from(c).unwrap_or(b' ').to_ascii_lowercase()),
                c if is_nothing(c) => {}
                c if c.is_alphanumeric() => {
                    for lower in c.to_lowercase().map(plain).filter(|c| !is_nothing(*c)) {
                        into.extend_from_slice(lower.encode_utf8(&mut [0; 4]).as_bytes());
                    }
                }
                _ => gap(into),
            }
        }
        if !chunk.invalid().is_empty() {
            gap(into);
        }
    }
    gap(into);
}

/// Characters that a reader does not see, and that are dropped on the way: control
/// characters, marks on letters, joiners of no width.
const fn is_nothing(c: char) -> bool {
    matches!(c,
        '\0'..='\u{8}' | '\u{e}'..='\u{1f}' | '\u{7f}' | '\u{ad}' | '\u{300}'..='\u{36f}'
        | '\u{200b}'..='\u{200f}' | '\u{2060}'..='\u{2064}' | '\u{feff}')
}

/// A letter without its accent.
pub(crate) const fn plain(c: char) -> char {
    match c {
        'á' | 'à' | 'â' | 'ã' => 'a',
        'é' | 'ê' => 'e',
        'í' => 'i',
        'ó' | 'ô' | 'õ' => 'o',
        'ú' => 'u',
        'ç' => 'c',
        // It is written so at the end of a word only.
        'ς' => 'σ',
        other => other,
    }
}

/// `text` with the escapes of JSON strings undone, once. What is no escape stays.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((plain, escape)) = memchr(b'\\', rest).and_then(|at| rest.split_at_checked(at)) {
        out.extend_from_slice(plain);
        rest = match escape {
            [_, b'n' | b'r' | b't' | b'f', after @ ..] => {
                out.push(b' ');
                after
            }
            [_, b'\\', after @ ..] => {
                out.push(b'\\');
                after
            }
            [_, b'u', digits @ ..] => match character(digits) {
                Some((c, after)) => {
                    out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                    after
                }
                None => escape.get(1..).unwrap_or_default(),
            },
            [_, b'b', after @ ..] | [_, after @ ..] => after,
            [] => escape,
        };
    }
    out.extend_from_slice(rest);
    out
}

/// The character that the digits after `\u` stand for, and what follows them.
fn character(digits: &[u8]) -> Option<(char, &[u8])> {
    let (unit, after) = unit(digits)?;
    if !(0xd800..0xdc00).contains(&unit) {
        return Some((char::from_u32(unit).unwrap_or(' '), after));
    }
    let low = after.strip_prefix(b"\\u").and_then(self::unit);
    let pair = low.filter(|(low, _)| (0xdc00..0xe000).contains(low));
    let Some((low, after)) = pair else {
        return Some((' ', after));
    };
    let high = unit.saturating_sub(0xd800).saturating_mul(0x400);
    let code = high.saturating_add(low.saturating_sub(0xdc00));
    let c = char::from_u32(code.saturating_add(0x1_0000)).unwrap_or(' ');
    Some((c, after))
}

fn unit(digits: &[u8]) -> Option<(u32, &[u8])> {
    let (digits, after) = digits.split_at_checked(4)?;
    if !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let digits = std::str::from_utf8(digits).ok()?;
    Some((u32::from_str_radix(digits, 16).ok()?, after))
}

#[cfg(test)]
mod tests;
