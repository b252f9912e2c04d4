//! What the end of the upstream's bytes means.

use bytes::Bytes;

use super::{Fate, Phase, Seen, StreamRelay};
use crate::answer;
use crate::stream::UpstreamEnd;
use crate::stream::failure::{Quirk, StreamFailure, StreamFailureKind};

impl StreamRelay {
    pub(super) fn close(&mut self, end: UpstreamEnd) -> Result<(), StreamFailure> {
        let cut = end == UpstreamEnd::Cut;
        match self.phase {
            Phase::Terminal => Ok(()),
            Phase::Failed => Err(self.earlier_failure()),
            Phase::Opening | Phase::Body if cut => Err(StreamFailure::new(StreamFailureKind::Cut)),
            Phase::Opening => Err(StreamFailure::new(StreamFailureKind::Empty)),
            Phase::Body => self.close_body(),
            Phase::Events => self.close_events(end),
        }
    }

    /// Turns a whole answer into the stream that was asked for.
    fn close_body(&mut self) -> Result<(), StreamFailure> {
        let body = self.withheld.split().freeze();
        let facts = answer::judge(
            self.protocol,
            self.options.content_type,
            &body,
            self.options.asked_max_tokens,
        )?;
        let stream = answer::one_shot(self.protocol, &body)
            .ok_or_else(|| StreamFailure::new(StreamFailureKind::Garbage))?;
        self.usage = facts.usage;
        self.finish = facts.finish_reason;
        self.quirks.add(Quirk::WholeAnswer);
        self.data_events = 1;
        self.commit();
        self.output.add(Bytes::from(stream));
        self.phase = Phase::Terminal;
        Ok(())
    }

    fn close_events(&mut self, end: UpstreamEnd) -> Result<(), StreamFailure> {
        if let Some(event) = self.decoder.finish() {
            match self.event(event.completed()) {
                Ok(()) => {}
                // The end of an event that broke off.
                Err(failure) if failure.kind == StreamFailureKind::Garbage => {
                    self.fate = Fate::Nowhere;
                }
                Err(failure) => return Err(failure),
            }
        }
        if self.phase == Phase::Terminal {
            return Ok(());
        }
        if self.dialect.complete() {
            self.refuse_empty(self.dialect.empty_ok())?;
            return self.add_closing(match end {
                UpstreamEnd::Clean => Quirk::MissingTerminalMark,
                UpstreamEnd::Cut => Quirk::CutAfterFinish,
            });
        }
        let lenient = self.options.lenient_end && end == UpstreamEnd::Clean;
        if lenient && self.content && !self.dialect.tool_call_open() {
            return self.add_closing(Quirk::LenientEnd);
        }
        Err(self.unfinished(end))
    }

    fn add_closing(&mut self, quirk: Quirk) -> Result<(), StreamFailure> {
        let Some(closing) = self.dialect.closing() else {
            return Err(StreamFailure::new(StreamFailureKind::Truncated));
        };
        self.quirks.add(quirk);
        self.commit();
        self.release_held();
        self.place(Bytes::from(closing));
        self.phase = Phase::Terminal;
        Ok(())
    }

    /// What to call an end without terminal evidence.
    fn unfinished(&self, end: UpstreamEnd) -> StreamFailure {
        let nothing = !self.content && self.dialect.finish_reason().is_none();
        StreamFailure::new(if end == UpstreamEnd::Cut {
            StreamFailureKind::Cut
        } else if self.seen == Seen::Nothing {
            StreamFailureKind::Garbage
        } else if self.seen == Seen::Comments || (nothing && self.options.lenient_end) {
            StreamFailureKind::Empty
        } else if self.dialect.tool_call_open() {
            StreamFailureKind::TruncatedToolCall
        } else {
            StreamFailureKind::Truncated
        })
    }
}
