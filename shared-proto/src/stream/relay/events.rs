//! What happens to each event.

use bytes::{Bytes, BytesMut};

use super::{Fate, Phase, Seen, StreamRelay};
use crate::sse::{Event, EventKind};
use crate::stream::dialect::{Action, Meaning, Refused, Verdict};
use crate::stream::failure::{StreamFailure, StreamFailureKind};
use crate::stream::lenient::normalise;
use crate::stream::open::error_of_event;

impl StreamRelay {
    pub(super) fn event(&mut self, event: Event) -> Result<(), StreamFailure> {
        match event.kind() {
            EventKind::LineFeed => self.line_feed(&event),
            EventKind::Comment => {
                self.seen = self.seen.max(Seen::Comments);
                self.pass_if_committed(event);
            }
            EventKind::Unknown => self.pass_if_committed(event),
            EventKind::Fields => {
                self.seen = Seen::Fields;
                return self.fields(event);
            }
        }
        Ok(())
    }

    fn fields(&mut self, event: Event) -> Result<(), StreamFailure> {
        if let Some(body) = error_of_event(&event) {
            return Err(StreamFailure::error_event(body));
        }
        match event.data().map(<[u8]>::trim_ascii) {
            None => self.pass_if_committed(event),
            Some([]) => self.fate = Fate::Nowhere,
            Some(data) => {
                let verdict = self.judge(event.name(), data)?;
                self.apply(event, verdict)?;
            }
        }
        Ok(())
    }

    fn judge(&mut self, name: &[u8], data: &[u8]) -> Result<Verdict, StreamFailure> {
        match self.dialect.on_data(name, data) {
            Ok(verdict) => return Ok(verdict),
            Err(Refused::Failed(failure)) => return Err(failure),
            Err(Refused::Unreadable) => {}
        }
        let Some(mended) = normalise(data) else {
            return Err(StreamFailure::because(
                StreamFailureKind::Garbage,
                "the upstream sent an event that is not JSON",
            ));
        };
        match self.dialect.on_data(name, &mended) {
            Ok(verdict) => Ok(verdict),
            Err(Refused::Failed(failure)) => Err(failure),
            Err(Refused::Unreadable) => Ok(Verdict::forward(Meaning::Quiet)),
        }
    }

    fn apply(&mut self, event: Event, verdict: Verdict) -> Result<(), StreamFailure> {
        let ping = verdict.meaning == Meaning::Ping;
        match verdict.meaning {
            Meaning::Ping if !self.committed => {
                self.fate = Fate::Nowhere;
                return Ok(());
            }
            Meaning::Ping | Meaning::Quiet => {}
            Meaning::Content => {
                self.content = true;
                self.commit();
            }
            Meaning::Terminal { empty_ok } => {
                self.refuse_empty(empty_ok)?;
                self.commit();
            }
        }
        if !ping {
            self.data_events = self.data_events.saturating_add(1);
        }
        if let Some(quirk) = verdict.quirk {
            self.quirks.add(quirk);
        }
        self.act(verdict.action, event, ping);
        if matches!(verdict.meaning, Meaning::Terminal { .. }) {
            self.phase = Phase::Terminal;
        }
        Ok(())
    }

    fn act(&mut self, action: Action, event: Event, ping: bool) {
        match action {
            Action::Forward => {
                if !ping {
                    self.release_held();
                }
                self.place(event.into_raw());
            }
            Action::Replace(events) => {
                self.release_held();
                self.place(events);
                self.fate = Fate::Nowhere;
            }
            Action::Hold => {
                self.held = Some(BytesMut::from(event.into_raw()));
                self.fate = Fate::Held;
            }
            Action::Amend(events) => {
                if let Some(held) = &mut self.held {
                    *held = BytesMut::from(events);
                }
                self.fate = Fate::Nowhere;
            }
            Action::Drop => self.fate = Fate::Nowhere,
        }
    }

    pub(super) fn refuse_empty(&self, empty_ok: bool) -> Result<(), StreamFailure> {
        let asked_for_one = self.options.asked_max_tokens.is_some_and(|max| max <= 1);
        if self.content || empty_ok || asked_for_one {
            return Ok(());
        }
        Err(StreamFailure::new(StreamFailureKind::Empty))
    }

    /// Puts an event behind everything before it.
    pub(super) fn place(&mut self, raw: Bytes) {
        if self.committed {
            self.output.add(raw);
            self.fate = Fate::Sent;
            return;
        }
        self.withheld.extend_from_slice(&raw);
        self.fate = Fate::Withheld;
        if self.withheld.len() > self.options.holdback_bytes {
            self.commit();
        }
    }

    fn line_feed(&mut self, event: &Event) {
        match self.fate {
            Fate::Withheld | Fate::Sent => self.place(event.raw().clone()),
            Fate::Held => {
                if let Some(held) = &mut self.held {
                    held.extend_from_slice(event.raw());
                }
            }
            Fate::Nowhere => {}
        }
    }

    fn pass_if_committed(&mut self, event: Event) {
        if self.committed {
            self.place(event.into_raw());
        } else {
            self.fate = Fate::Nowhere;
        }
    }

    pub(super) fn release_held(&mut self) {
        if let Some(held) = self.held.take() {
            self.place(held.freeze());
        }
    }

    pub(super) fn commit(&mut self) {
        self.committed = true;
        let withheld = self.withheld.split().freeze();
        self.output.add(withheld);
    }
}
