//! The chunked transfer coding, decoded piece by piece.

/// Bytes of a line between chunks; more is an error.
const LINE_BYTES_MAX: usize = 256;

/// The input breaks the rules of the coding.
#[derive(Debug, thiserror::Error)]
#[error("broken chunked body")]
pub(crate) struct Broken;

/// Where in the coding the input stands.
#[derive(Debug, Default)]
enum At {
    #[default]
    Size,
    Data(usize),
    DataEnd,
    Trailer,
    Done,
}

/// The state of one body.
#[derive(Debug, Default)]
pub(crate) struct Decoder(At);

impl Decoder {
    /// Takes what it can from `input`, appends the data to `out`, and returns how many bytes it took.
    pub(crate) fn decode(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize, Broken> {
        let mut rest = input;
        loop {
            match self.0 {
                At::Size => {
                    let Some(line) = take_line(&mut rest)? else {
                        break;
                    };
                    self.0 = match size(line)? {
                        0 => At::Trailer,
                        size => At::Data(size),
                    };
                }
                At::Data(left) => {
                    let (data, after) = rest.split_at(left.min(rest.len()));
                    out.extend_from_slice(data);
                    rest = after;
                    self.0 = match left.saturating_sub(data.len()) {
                        0 => At::DataEnd,
                        left => At::Data(left),
                    };
                    if rest.is_empty() {
                        break;
                    }
                }
                At::DataEnd => match take_line(&mut rest)? {
                    Some([]) => self.0 = At::Size,
                    Some(_) => return Err(Broken),
                    None => break,
                },
                At::Trailer => match take_line(&mut rest)? {
                    Some([]) => self.0 = At::Done,
                    Some(_) => {}
                    None => break,
                },
                At::Done => break,
            }
        }
        Ok(input.len().saturating_sub(rest.len()))
    }

    /// Whether the body has ended.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self.0, At::Done)
    }
}

/// Takes a line off the front, without its end; `None` while the line is incomplete.
fn take_line<'a>(rest: &mut &'a [u8]) -> Result<Option<&'a [u8]>, Broken> {
    match memchr::memchr(b'\n', rest) {
        None if rest.len() > LINE_BYTES_MAX => Err(Broken),
        None => Ok(None),
        Some(end) => {
            let (line, after) = rest.split_at(end);
            *rest = after.get(1..).unwrap_or_default();
            line.strip_suffix(b"\r").map(Some).ok_or(Broken)
        }
    }
}

fn size(line: &[u8]) -> Result<usize, Broken> {
    let digits = line.split(|byte| *byte == b';').next().unwrap_or(line);
    let text = str::from_utf8(digits).map_err(|_| Broken)?;
    usize::from_str_radix(text.trim(), 16).map_err(|_| Broken)
}

#[cfg(test)]
mod tests;
