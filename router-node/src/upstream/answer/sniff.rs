//! How a body is encoded, by its first bytes: some servers compress without saying
//! so, and `deflate` is the name of two encodings.

/// How gzip begins: its two bytes, and its one method. No text begins so.
const GZIP: &[u8] = &[0x1f, 0x8b, 0x08];

/// What the header names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// Nothing that is known here.
    Nothing,
    /// `deflate`: zlib by the book, and the bare encoding by some.
    Deflate,
}

/// How the body has to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Plain,
    Gzip,
    Zlib,
    /// Without zlib's head and sum.
    Deflate,
}

/// What `start` tells, once it is long enough or the body is over.
pub(super) fn encoding(start: &[u8], named: Named, is_over: bool) -> Option<Encoding> {
    match named {
        Named::Nothing if start.starts_with(GZIP) => Some(Encoding::Gzip),
        Named::Nothing if GZIP.starts_with(start) && !is_over => None,
        Named::Nothing => Some(Encoding::Plain),
        Named::Deflate => match start {
            [method, check, ..] if is_zlib(*method, *check) => Some(Encoding::Zlib),
            [_, _, ..] => Some(Encoding::Deflate),
            _ if is_over => Some(Encoding::Zlib),
            _ => None,
        },
    }
}

/// Whether these are the two bytes of zlib's head.
fn is_zlib(method: u8, check: u8) -> bool {
    method & 0x0f == 8 && u16::from_be_bytes([method, check]) % 31 == 0
}

#[cfg(test)]
mod tests {
    use super::{Encoding, Named, encoding};

    #[test]
    fn the_first_bytes_tell() {
        let open = [
            (&b""[..], None),
            (b"\x1f", None),
            (b"\x1f\x8b", None),
            (b"\x1f\x8b\x08", Some(Encoding::Gzip)),
            (b"\x1f\x8b\x08\x00rest", Some(Encoding::Gzip)),
            (b"\x1f\x8b\x09", Some(Encoding::Plain)),
            (b"\x1f{", Some(Encoding::Plain)),
            (b"{", Some(Encoding::Plain)),
            (b"\x78\x9c", Some(Encoding::Plain)),
        ];
        for (start, expected) in open {
            assert_eq!(
                encoding(start, Named::Nothing, false),
                expected,
                "{start:?}"
            );
            let over = encoding(start, Named::Nothing, true);
            assert_eq!(over, expected.or(Some(Encoding::Plain)), "{start:?}");
        }
        let named = [
            (&b""[..], None),
            (b"\x78", None),
            (b"\x78\x01", Some(Encoding::Zlib)),
            (b"\x78\x9c", Some(Encoding::Zlib)),
            (b"\x78\xda", Some(Encoding::Zlib)),
            (b"\x78\x02", Some(Encoding::Deflate)),
            (b"\xab\x56", Some(Encoding::Deflate)),
        ];
        for (start, expected) in named {
            assert_eq!(
                encoding(start, Named::Deflate, false),
                expected,
                "{start:?}"
            );
            let over = encoding(start, Named::Deflate, true);
            assert_eq!(over, expected.or(Some(Encoding::Zlib)), "{start:?}");
        }
    }
}
