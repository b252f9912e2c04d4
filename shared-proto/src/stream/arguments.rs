//! Following text that arrives in fragments, without keeping it.

/// Whether the JSON of a tool call's arguments, fed piece by piece, is closed.
/// It looks at nesting and strings only: broken JSON is the model's business,
/// half a call is ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Balance {
    depth: u32,
    in_string: bool,
    escaped: bool,
    begun: bool,
}

impl Balance {
    /// Takes the next fragment.
    pub(crate) fn feed(&mut self, fragment: &str) {
        for byte in fragment.bytes() {
            self.begun |= !byte.is_ascii_whitespace();
            if self.in_string {
                self.in_string = self.escaped || byte != b'"';
                self.escaped = !self.escaped && byte == b'\\';
                continue;
            }
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth = self.depth.saturating_add(1),
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
    }

    /// Nothing is left open. No text at all stands for `{}`.
    pub(crate) const fn closed(self) -> bool {
        self.depth == 0 && !self.in_string
    }

    /// A value was begun, and nothing of it is left open.
    pub(crate) const fn whole(self) -> bool {
        self.begun && self.closed()
    }
}

/// Length and fingerprint (FNV-1a) of a text that was streamed, to tell what a
/// closing event adds to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Print {
    len: usize,
    hash: u64,
}

impl Default for Print {
    fn default() -> Self {
        Self {
            len: 0,
            hash: 0xcbf2_9ce4_8422_2325,
        }
    }
}

impl Print {
    /// Takes the next fragment.
    pub(crate) fn feed(&mut self, fragment: &str) {
        self.len = self.len.saturating_add(fragment.len());
        for byte in fragment.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// What `whole` adds behind the text streamed so far; `None` if it adds
    /// nothing or is another text.
    pub(crate) fn missing<'a>(&self, whole: &'a str) -> Option<&'a str> {
        let (streamed, tail) = whole.split_at_checked(self.len)?;
        let mut print = Self::default();
        print.feed(streamed);
        (print == *self && !tail.is_empty()).then_some(tail)
    }
}
