//! What is ready for the client, merged with as few copies as can be.

use std::ops::Range;

use bytes::{Bytes, BytesMut};

/// Collects bytes for the client. Neighbouring slices of one upstream chunk
/// become one slice of it again.
#[derive(Default)]
pub(crate) struct Output {
    parts: Vec<Bytes>,
    /// The upstream chunk at hand.
    chunk: Bytes,
    /// The part of it that is going out.
    run: Range<usize>,
}

impl Output {
    /// From now on slices may come from `chunk`.
    pub(crate) fn open(&mut self, chunk: Bytes) {
        self.settle();
        self.chunk = chunk;
    }

    /// The chunk is done with.
    pub(crate) fn settle(&mut self) {
        self.end_run();
        self.chunk = Bytes::new();
    }

    /// Adds `bytes` behind everything else.
    pub(crate) fn add(&mut self, bytes: Bytes) {
        if bytes.is_empty() {
            return;
        }
        // Addresses are compared only; a slice inside the chunk has offsets inside it.
        let start = (bytes.as_ptr() as usize).wrapping_sub(self.chunk.as_ptr() as usize);
        let end = start.wrapping_add(bytes.len());
        if start < self.chunk.len() && end <= self.chunk.len() {
            if self.run.end != start || self.run.is_empty() {
                self.end_run();
                self.run.start = start;
            }
            self.run.end = end;
        } else {
            self.end_run();
            self.parts.push(bytes);
        }
    }

    /// Everything so far, as one piece.
    pub(crate) fn take(&mut self) -> Option<Bytes> {
        self.end_run();
        if self.parts.len() <= 1 {
            return self.parts.pop();
        }
        let len = self
            .parts
            .iter()
            .fold(0_usize, |sum, part| sum.saturating_add(part.len()));
        let mut whole = BytesMut::with_capacity(len);
        for part in self.parts.drain(..) {
            whole.extend_from_slice(&part);
        }
        Some(whole.freeze())
    }

    fn end_run(&mut self) {
        if !self.run.is_empty() {
            self.parts.push(self.chunk.slice(self.run.clone()));
        }
        self.run = 0..0;
    }
}
