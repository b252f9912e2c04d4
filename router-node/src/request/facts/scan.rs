//! Finds members of a JSON object without building anything, several times as
//! quickly as a parser does, since most of a body is text inside strings.
//!
//! What it accepts, `serde_json` accepts too. What it refuses may yet be valid:
//! the caller asks `serde_json`, which also knows what to say of an error.

use std::ops::Range;

use wide::u8x16;

/// Bytes of a string that are looked at together.
const BLOCK: usize = 16;

/// Where the values of the members called `names` stand in the object that is
/// `body`, without the white space around them.
///
/// `None` when `body` is no valid JSON object in UTF-8, when one of `names`
/// comes twice, and when a member's name has an escape, which would have to be
/// undone before it could be compared.
pub(super) fn members<const N: usize>(
    body: &[u8],
    names: [&str; N],
) -> Option<[Option<Range<usize>>; N]> {
    let mut found = [const { None }; N];
    let mut scanner = Scanner {
        rest: body,
        open: Vec::new(),
        high_bits: 0,
    };
    scanner.token(b'{')?;
    if scanner.peek()? == b'}' {
        scanner.token(b'}')?;
    } else {
        loop {
            let name = scanner.name()?;
            if name.contains(&b'\\') {
                return None;
            }
            let value = scanner.value(body.len())?;
            let slot = names.iter().position(|wanted| wanted.as_bytes() == name);
            if let Some(slot) = slot.and_then(|index| found.get_mut(index))
                && slot.replace(value).is_some()
            {
                return None;
            }
            if !scanner.another(b'}')? {
                break;
            }
        }
    }
    let ended = scanner.peek().is_none();
    let text = ended && (scanner.high_bits == 0 || simdutf8::basic::from_utf8(body).is_ok());
    text.then_some(found)
}

/// How many elements the array `list` has; `None` where it is no valid array.
pub(super) fn elements(list: &[u8]) -> Option<usize> {
    let mut scanner = Scanner {
        rest: list,
        open: Vec::new(),
        high_bits: 0,
    };
    scanner.token(b'[')?;
    if scanner.peek()? == b']' {
        return Some(0);
    }
    let mut count = 0_usize;
    loop {
        scanner.value(list.len())?;
        count = count.saturating_add(1);
        if !scanner.another(b']')? {
            return Some(count);
        }
    }
}

/// Steps over one thing after another; `None` is invalid JSON.
struct Scanner<'a> {
    /// What is not yet read.
    rest: &'a [u8],
    /// How the arrays and objects around here end, the innermost last. Never
    /// more than the body has bytes.
    open: Vec<u8>,
    /// Not 0 once a string had a byte beyond ASCII; elsewhere none is valid.
    high_bits: u32,
}

impl<'a> Scanner<'a> {
    /// The next byte that is not white space.
    #[inline]
    fn peek(&mut self) -> Option<u8> {
        let mut rest = self.rest;
        loop {
            let (&byte, after) = rest.split_first()?;
            if byte > b' ' || !matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                self.rest = rest;
                return Some(byte);
            }
            rest = after;
        }
    }

    #[inline]
    fn skip(&mut self, bytes: usize) -> Option<()> {
        self.rest = self.rest.get(bytes..)?;
        Some(())
    }

    /// `byte`, which has to be next.
    #[inline]
    fn token(&mut self, byte: u8) -> Option<()> {
        if self.peek()? == byte {
            self.skip(1)
        } else {
            None
        }
    }

    /// A member's name and the colon; gives what is between the quotes.
    #[inline]
    fn name(&mut self) -> Option<&'a [u8]> {
        self.token(b'"')?;
        let from = self.rest;
        self.string()?;
        let (name, _) = from.split_at_checked(from.len().checked_sub(self.rest.len())?)?;
        self.token(b':')?;
        name.strip_suffix(b"\"")
    }

    /// A value of any depth; gives its place in a body of `total` bytes.
    fn value(&mut self, total: usize) -> Option<Range<usize>> {
        self.open.clear();
        self.peek()?;
        let start = total.checked_sub(self.rest.len())?;
        loop {
            let inside = match self.peek()? {
                b'{' => self.enter(b'}')?,
                b'[' => self.enter(b']')?,
                first => {
                    self.scalar(first)?;
                    false
                }
            };
            if !inside && !self.leave()? {
                return Some(start..total.checked_sub(self.rest.len())?);
            }
        }
    }

    /// The start of an array or object, up to its first value; `false` when
    /// there is none.
    #[inline]
    fn enter(&mut self, end: u8) -> Option<bool> {
        self.skip(1)?;
        if self.peek()? == end {
            self.skip(1)?;
            return Some(false);
        }
        self.open.push(end);
        if end == b'}' {
            self.name()?;
        }
        Some(true)
    }

    /// From behind a value up to the next one; `false` when nothing is open.
    #[inline]
    fn leave(&mut self) -> Option<bool> {
        while let Some(&end) = self.open.last() {
            if self.another(end)? {
                if end == b'}' {
                    self.name()?;
                }
                return Some(true);
            }
            self.open.pop();
        }
        Some(false)
    }

    /// A comma, or `end`: then `false`.
    #[inline]
    fn another(&mut self, end: u8) -> Option<bool> {
        let byte = self.peek()?;
        self.skip(1)?;
        (byte == b',' || byte == end).then_some(byte == b',')
    }

    #[inline]
    fn scalar(&mut self, first: u8) -> Option<()> {
        match first {
            b'"' => {
                self.skip(1)?;
                self.string()
            }
            b't' => self.word(b"true"),
            b'f' => self.word(b"false"),
            b'n' => self.word(b"null"),
            _ => self.number(),
        }
    }

    #[inline]
    fn word(&mut self, word: &[u8]) -> Option<()> {
        self.rest = self.rest.strip_prefix(word)?;
        Some(())
    }

    fn number(&mut self) -> Option<()> {
        self.one_of(b"-");
        if !self.one_of(b"0") {
            self.digits()?;
        }
        if self.one_of(b".") {
            self.digits()?;
        }
        if self.one_of(b"eE") {
            self.one_of(b"+-");
            self.digits()?;
        }
        Some(())
    }

    #[inline]
    fn one_of(&mut self, bytes: &[u8]) -> bool {
        match self.rest.split_first() {
            Some((byte, after)) if bytes.contains(byte) => {
                self.rest = after;
                true
            }
            _ => false,
        }
    }

    #[inline]
    fn digits(&mut self) -> Option<()> {
        let mut after = self.rest;
        while let Some((b'0'..=b'9', next)) = after.split_first() {
            after = next;
        }
        let some = after.len() < self.rest.len();
        self.rest = after;
        some.then_some(())
    }

    /// A string, from behind its opening quote.
    #[inline]
    fn string(&mut self) -> Option<()> {
        while let Some((block, after)) = self.rest.split_first_chunk::<BLOCK>() {
            let block = u8x16::new(*block);
            self.high_bits |= block.to_bitmask();
            let mut marked = special(block);
            let mut next = after;
            while marked != 0 {
                let from = self.rest.get(marked.trailing_zeros() as usize..)?;
                match from {
                    [b'"', after @ ..] => {
                        self.rest = after;
                        return Some(());
                    }
                    [b'\\', ..] => next = escape(from)?,
                    _ => return None,
                }
                let done = self.rest.len().checked_sub(next.len())?;
                if done >= BLOCK {
                    break;
                }
                marked &= u32::MAX.wrapping_shl(u32::try_from(done).ok()?);
                next = after;
            }
            self.rest = next;
        }
        self.end_of_string()
    }

    /// The same, byte by byte, for the last few of a body.
    #[cold]
    fn end_of_string(&mut self) -> Option<()> {
        loop {
            let (&byte, after) = self.rest.split_first()?;
            self.high_bits |= u32::from(byte & 0x80);
            self.rest = match byte {
                b'"' => {
                    self.rest = after;
                    return Some(());
                }
                b'\\' => escape(self.rest)?,
                0..b' ' => return None,
                _ => after,
            };
        }
    }
}

/// One bit for each byte that is a quote, a backslash or a control character,
/// the lowest for the first.
#[inline]
fn special(block: u8x16) -> u32 {
    let quote = block.simd_eq(u8x16::splat(b'"'));
    let backslash = block.simd_eq(u8x16::splat(b'\\'));
    let control = block.min(u8x16::splat(0x1f)).simd_eq(block);
    (quote | backslash | control).to_bitmask()
}

/// What follows the escape at the start of `text`.
#[inline]
fn escape(text: &[u8]) -> Option<&[u8]> {
    match text {
        [
            _,
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't',
            after @ ..,
        ] => Some(after),
        [_, b'u', a, b, c, d, after @ ..] => [a, b, c, d]
            .into_iter()
            .all(u8::is_ascii_hexdigit)
            .then_some(after),
        _ => None,
    }
}
