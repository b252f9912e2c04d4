//! Changes of a body that leave every other byte as it came.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

/// What stands somewhere in a body, and what is to stand there instead.
pub(crate) type Edit = (Range<usize>, String);

/// `body` with `edits`, which do not overlap.
pub(crate) fn edited(body: &Bytes, edits: &mut [Edit]) -> Bytes {
    edits.sort_by_key(|(place, _)| place.start);
    let more: usize = edits.iter().map(|(_, text)| text.len()).sum();
    let mut out = BytesMut::with_capacity(body.len().saturating_add(more));
    let mut at = 0;
    for (place, text) in edits {
        out.extend_from_slice(body.get(at..place.start).unwrap_or_default());
        out.extend_from_slice(text.as_bytes());
        at = place.end.max(at);
    }
    out.extend_from_slice(body.get(at..).unwrap_or_default());
    out.freeze()
}

/// Where a member stands with its name and one comma, given where its value does.
/// `None` where its name is not written `name`.
pub(super) fn member(body: &[u8], name: &str, value: &Range<usize>) -> Option<Range<usize>> {
    let before = body.get(..value.start)?.trim_ascii_end();
    let before = before.strip_suffix(b":")?.trim_ascii_end();
    let before = before.strip_suffix(b"\"")?.strip_suffix(name.as_bytes())?;
    let before = before.strip_suffix(b"\"")?;
    let after = body.get(value.end..)?;
    let rest = after.trim_ascii_start();
    if let Some(rest) = rest.strip_prefix(b",") {
        return Some(before.len()..body.len().checked_sub(rest.len())?);
    }
    let before = before.trim_ascii_end();
    let before = before.strip_suffix(b",").unwrap_or(before);
    Some(before.len()..value.end)
}
