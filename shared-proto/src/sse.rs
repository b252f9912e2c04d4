//! Server-sent events, decoded from bytes.
//!
//! Framing works on bytes, never on text, so a character split over two reads
//! is no special case. An event keeps the exact bytes it came in, as a slice of
//! the chunk it arrived in wherever it did not straddle two, so that a relay
//! can pass it on without a copy.

use std::ops::Range;

use bytes::{Buf, Bytes, BytesMut};
use memchr::{memchr, memchr2};

/// The usual bound of one event, in bytes.
pub const MAX_EVENT_BYTES: usize = 8 * 1024 * 1024;

const BOM: [u8; 3] = [0xEF, 0xBB, 0xBF];

/// One event was longer than the decoder's bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("one event exceeds {limit} bytes")]
pub struct TooLarge {
    /// The bound, in bytes.
    pub limit: usize,
}

/// What a block of lines amounts to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// At least one field the grammar knows, or `error`.
    Fields,
    /// Comments, perhaps with unknown fields between them.
    Comment,
    /// Only fields nobody knows: most likely no event stream at all.
    Unknown,
    /// The LF of a CRLF whose CR ended the event before, at the end of a read.
    /// It belongs wherever that event's bytes went.
    LineFeed,
}

/// One block of an event stream: the lines up to and including a blank one.
#[derive(Clone, Debug)]
pub struct Event {
    raw: Bytes,
    kind: EventKind,
    name: Range<usize>,
    data: Data,
    error: Option<Range<usize>>,
}

#[derive(Clone, Debug)]
enum Data {
    None,
    One(Range<usize>),
    Joined(Vec<u8>),
}

impl Event {
    /// The block's exact bytes, line ends and closing blank line included.
    pub const fn raw(&self) -> &Bytes {
        &self.raw
    }

    /// The same, taken out.
    pub fn into_raw(self) -> Bytes {
        self.raw
    }

    /// What kind of block it is.
    pub const fn kind(&self) -> EventKind {
        self.kind
    }

    /// Value of the last `event` field; empty without one.
    pub fn name(&self) -> &[u8] {
        self.slice(&self.name)
    }

    /// The values of all `data` fields joined with LF; `None` without one.
    pub fn data(&self) -> Option<&[u8]> {
        match &self.data {
            Data::None => None,
            Data::One(range) => Some(self.slice(range)),
            Data::Joined(bytes) => Some(bytes),
        }
    }

    /// Value of a field named `error`, which some servers write instead of an event.
    pub fn error(&self) -> Option<&[u8]> {
        self.error.as_ref().map(|range| self.slice(range))
    }

    /// The event with its closing blank line added where the stream ended before it.
    #[must_use]
    pub fn completed(mut self) -> Self {
        let missing: &[u8] = if self.raw.ends_with(b"\n") {
            b"\n"
        } else {
            b"\n\n"
        };
        self.raw = Bytes::from([&self.raw[..], missing].concat());
        self
    }

    fn slice(&self, range: &Range<usize>) -> &[u8] {
        self.raw.get(range.clone()).unwrap_or_default()
    }
}

/// What becomes of an LF that follows a block ended by a CR at the end of a read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Orphan {
    None,
    Yield,
    Swallow,
}

/// Splits a stream into events, as the bytes come in.
pub struct Decoder {
    /// What was pushed and not yet looked at.
    chunk: Bytes,
    /// The start of a block whose end has not arrived.
    carry: BytesMut,
    /// The current line has bytes already.
    line_open: bool,
    /// The last byte was the CR of a line inside a block.
    after_cr: bool,
    orphan: Orphan,
    /// Bytes of a byte order mark seen so far; 3 once the start is behind us.
    bom: usize,
    limit: usize,
}

impl Decoder {
    /// A decoder that refuses events longer than `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            chunk: Bytes::new(),
            carry: BytesMut::new(),
            line_open: false,
            after_cr: false,
            orphan: Orphan::None,
            bom: 0,
            limit,
        }
    }

    /// Takes the next bytes of the stream.
    pub fn push(&mut self, chunk: Bytes) {
        if self.chunk.is_empty() {
            self.chunk = chunk;
        } else {
            self.chunk = Bytes::from([&self.chunk[..], &chunk[..]].concat());
        }
    }

    /// The next whole event, or `None` until more bytes come. Blank lines
    /// between events are skipped. After an error nothing more comes out.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator would suggest that `None` is the end"
    )]
    pub fn next(&mut self) -> Result<Option<Event>, TooLarge> {
        if self.bom < BOM.len() {
            self.skip_bom();
        }
        loop {
            if let Some(event) = self.take_orphan() {
                return Ok(Some(event));
            }
            let Some(end) = self.find_end() else {
                self.carry.extend_from_slice(&self.chunk);
                self.chunk = Bytes::new();
                self.check(self.carry.len())?;
                return Ok(None);
            };
            let raw = self.take_block(end);
            self.check(raw.strip_suffix(b"\r\n").map_or(raw.len(), |head| {
                head.len().saturating_add(1) // counted alike wherever a CRLF was split
            }))?;
            if let Some(event) = parse(raw) {
                return Ok(Some(event));
            }
            if self.orphan == Orphan::Yield {
                self.orphan = Orphan::Swallow;
            }
        }
    }

    /// At the end of the stream, after [`Self::next`] gave `None`: the last
    /// event if its blank line is missing.
    pub fn finish(&mut self) -> Option<Event> {
        let mut rest = self.carry.split();
        rest.extend_from_slice(&self.chunk);
        self.discard();
        parse(rest.freeze())
    }

    /// Forgets what was pushed and not yet given out.
    pub fn discard(&mut self) {
        self.chunk = Bytes::new();
        self.carry.clear();
        self.line_open = false;
        self.after_cr = false;
    }

    fn check(&mut self, len: usize) -> Result<(), TooLarge> {
        if len > self.limit {
            self.discard();
            return Err(TooLarge { limit: self.limit });
        }
        Ok(())
    }

    /// Drops a byte order mark at the start; one that stays incomplete is text.
    fn skip_bom(&mut self) {
        while let (Some(&byte), Some(&expected)) = (self.chunk.first(), BOM.get(self.bom)) {
            if byte != expected {
                self.carry
                    .extend_from_slice(BOM.get(..self.bom).unwrap_or_default());
                self.line_open = self.bom > 0;
                self.bom = BOM.len();
                return;
            }
            self.chunk.advance(1);
            self.bom = self.bom.saturating_add(1);
        }
    }

    fn take_orphan(&mut self) -> Option<Event> {
        if self.orphan == Orphan::None || self.chunk.is_empty() {
            return None;
        }
        let orphan = std::mem::replace(&mut self.orphan, Orphan::None);
        if self.chunk.first() != Some(&b'\n') {
            return None;
        }
        let raw = self.chunk.split_to(1);
        (orphan == Orphan::Yield).then_some(Event {
            raw,
            kind: EventKind::LineFeed,
            name: 0..0,
            data: Data::None,
            error: None,
        })
    }

    /// Where in the chunk the current block ends, after its blank line.
    fn find_end(&mut self) -> Option<usize> {
        let bytes = &self.chunk[..];
        let mut at = 0_usize;
        if self.after_cr && !bytes.is_empty() {
            self.after_cr = false;
            at = usize::from(bytes.first() == Some(&b'\n'));
        }
        loop {
            let rest = bytes.get(at..).unwrap_or_default();
            let Some(len) = memchr2(b'\n', b'\r', rest) else {
                self.line_open |= !rest.is_empty();
                return None;
            };
            let blank = len == 0 && !self.line_open;
            self.line_open = false;
            let mut end = at.saturating_add(len).saturating_add(1);
            if rest.get(len) == Some(&b'\r') {
                match bytes.get(end) {
                    Some(b'\n') => end = end.saturating_add(1),
                    Some(_) => {}
                    None if blank => self.orphan = Orphan::Yield,
                    None => self.after_cr = true,
                }
            }
            if blank {
                return Some(end);
            }
            at = end;
        }
    }

    fn take_block(&mut self, end: usize) -> Bytes {
        if self.carry.is_empty() {
            return self.chunk.split_to(end);
        }
        let head = self.chunk.split_to(end);
        self.carry.extend_from_slice(&head);
        self.carry.split().freeze()
    }
}

/// Reads the fields of one block; `None` for nothing but blank lines.
fn parse(raw: Bytes) -> Option<Event> {
    let mut fields = Fields::default();
    let mut at = 0_usize;
    while at < raw.len() {
        let rest = raw.get(at..).unwrap_or_default();
        let len = memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
        let end = at.saturating_add(len);
        if len > 0 {
            fields.line(&raw, at..end);
        }
        // The LF of a CRLF then counts as an empty line, which is skipped.
        at = end.saturating_add(1);
    }
    let kind = match (fields.known, fields.comment, fields.unknown) {
        (true, _, _) => EventKind::Fields,
        (false, true, _) => EventKind::Comment,
        (false, false, true) => EventKind::Unknown,
        (false, false, false) => return None,
    };
    Some(Event {
        raw,
        kind,
        name: fields.name,
        data: fields.data,
        error: fields.error,
    })
}

struct Fields {
    known: bool,
    comment: bool,
    unknown: bool,
    name: Range<usize>,
    data: Data,
    error: Option<Range<usize>>,
}

impl Default for Fields {
    fn default() -> Self {
        Self {
            known: false,
            comment: false,
            unknown: false,
            name: 0..0,
            data: Data::None,
            error: None,
        }
    }
}

impl Fields {
    /// Takes one line, without its end and not empty.
    fn line(&mut self, raw: &[u8], line: Range<usize>) {
        let text = raw.get(line.clone()).unwrap_or_default();
        let colon = memchr(b':', text).unwrap_or(text.len());
        let field = text.get(..colon).unwrap_or_default();
        let mut start = line
            .start
            .saturating_add(colon)
            .saturating_add(1)
            .min(line.end);
        if start < line.end && raw.get(start) == Some(&b' ') {
            start = start.saturating_add(1);
        }
        let value = start..line.end;
        self.known |= matches!(field, b"data" | b"event" | b"id" | b"retry" | b"error");
        match field {
            b"data" => self.data(raw, value),
            b"event" => self.name = value,
            b"error" => self.error = Some(value),
            b"id" | b"retry" => {}
            b"" => self.comment = true,
            _ => self.unknown = true,
        }
    }

    fn data(&mut self, raw: &[u8], value: Range<usize>) {
        let slice = |range: &Range<usize>| raw.get(range.clone()).unwrap_or_default();
        match &mut self.data {
            Data::None => self.data = Data::One(value),
            Data::One(first) => {
                self.data = Data::Joined([slice(first), slice(&value)].join(&b'\n'));
            }
            Data::Joined(joined) => {
                joined.push(b'\n');
                joined.extend_from_slice(slice(&value));
            }
        }
    }
}

#[cfg(test)]
mod tests;
