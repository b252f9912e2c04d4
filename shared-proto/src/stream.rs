//! What an upstream's stream means: the relay of one attempt between two ends
//! that speak the same protocol.
//!
//! ```text
//! Opening -> Peeking -> Committed -> Terminal
//! ```
//!
//! *Opening*: the first bytes decide whether this is an event stream, a JSON
//! body or a web page, whatever was asked for. *Peeking*: handshake events are
//! withheld, so that the attempt can still be replaced and the client never
//! know. *Committed*: from the first content on, events go through byte for
//! byte, and a failure can only be told in-band. *Terminal*: the closing mark
//! went through; nothing after it counts.
//!
//! The relay looks at every event for four things: an error, content, a finish
//! reason, and half a tool call. It mends what a client would stumble over
//! (fragments without an index, a finish told twice, a missing mark) and
//! leaves everything else as it came.

mod arguments;
pub(crate) mod chat;
mod dialect;
pub(crate) mod failure;
pub(crate) mod lenient;
pub(crate) mod messages;
pub(crate) mod open;
mod output;
pub(crate) mod responses;
mod tail;
pub(crate) mod usage;

use bytes::{Bytes, BytesMut};

use self::chat::Chat;
use self::dialect::{Action, Dialect, Meaning, Refused, Verdict};
use self::messages::Messages;
use self::output::Output;
use self::responses::Responses;
use crate::answer;
use crate::protocol::Protocol;
use crate::sse::{Decoder, Event, EventKind, MAX_EVENT_BYTES};

pub(crate) use self::dialect::{frame, may_be_empty, may_cut, typed_frame};
pub use self::failure::{Quirk, Quirks, StreamFailure, StreamFailureKind};
pub use self::open::{BodyShape, ContentType};
pub use self::tail::InBandError;
pub use self::usage::Usage;

/// What is to be known about an attempt before its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayOptions {
    /// What the response's headers promised.
    pub content_type: ContentType,
    /// Whether the provider is known never to send a finish reason, so that a
    /// clean end after content counts as complete. No effect on responses,
    /// which can't be closed without their terminal event.
    pub lenient_end: bool,
    /// Handshake events are withheld up to this many bytes; beyond, the stream
    /// is committed as it is.
    pub holdback_bytes: usize,
    /// Bound of one event, and of a JSON body in place of a stream, in bytes.
    pub event_bytes: usize,
    /// The output limit the client asked for; with 1 an answer may be empty.
    pub asked_max_tokens: Option<u64>,
}

impl Default for RelayOptions {
    fn default() -> Self {
        Self {
            content_type: ContentType::Unknown,
            lenient_end: false,
            holdback_bytes: 64 * 1024,
            event_bytes: MAX_EVENT_BYTES,
            asked_max_tokens: None,
        }
    }
}

/// What a chunk brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Data events in it that are not mere signs of life.
    pub data_events: u32,
    /// The client may be given output from now on, or already was.
    pub committed: bool,
    /// The answer is complete; reading on is of no use.
    pub terminal: bool,
}

/// How the upstream's bytes came to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamEnd {
    /// As the transport defines it.
    Clean,
    /// By a reset, an early end of a chunked body, a broken compression.
    Cut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Opening,
    /// A JSON body instead of a stream.
    Body,
    /// Peeking, or committed.
    Events,
    Terminal,
    Failed,
}

/// Where the last event's bytes went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Nowhere,
    Withheld,
    Held,
    Sent,
}

/// The relay of one upstream attempt. It does no I/O and knows no time.
pub struct StreamRelay {
    protocol: Protocol,
    options: RelayOptions,
    dialect: Box<dyn Dialect>,
    phase: Phase,
    decoder: Decoder,
    output: Output,
    /// Handshake events, until the commit point.
    withheld: BytesMut,
    /// An event that waits for a possible correction.
    held: Option<BytesMut>,
    fate: Fate,
    committed: bool,
    content: bool,
    data_events: u32,
    fields_seen: bool,
    comments_seen: bool,
    quirks: Quirks,
    failure: Option<StreamFailure>,
    /// Of a whole answer that was made a stream.
    usage: Option<Usage>,
    finish: Option<String>,
}

// === impl StreamRelay ===

impl StreamRelay {
    /// The relay of an attempt whose response headers have just come.
    pub fn new(protocol: Protocol, options: RelayOptions) -> Self {
        let dialect: Box<dyn Dialect> = match protocol {
            Protocol::ChatCompletions | Protocol::Embeddings => Box::<Chat>::default(),
            Protocol::Responses => Box::<Responses>::default(),
            Protocol::Messages => Box::<Messages>::default(),
        };
        Self {
            protocol,
            options,
            dialect,
            phase: Phase::Opening,
            decoder: Decoder::new(options.event_bytes),
            output: Output::default(),
            withheld: BytesMut::new(),
            held: None,
            fate: Fate::Nowhere,
            committed: false,
            content: false,
            data_events: 0,
            fields_seen: false,
            comments_seen: false,
            quirks: Quirks::default(),
            failure: None,
            usage: None,
            finish: None,
        }
    }

    /// Takes the upstream's next bytes. After an error the attempt is over, and
    /// every further call gives the same error; what was committed before it is
    /// still there to be taken.
    pub fn push(&mut self, chunk: Bytes) -> Result<Progress, StreamFailure> {
        self.data_events = 0;
        let taken = self.take(chunk);
        self.output.settle();
        self.keep(taken)?;
        Ok(Progress {
            data_events: self.data_events,
            committed: self.committed,
            terminal: self.phase == Phase::Terminal,
        })
    }

    /// Everything that is ready for the client; `None` before the commit point.
    pub fn take_output(&mut self) -> Option<Bytes> {
        self.output.take()
    }

    /// Judges the end of the upstream's bytes. Where the answer counts as
    /// complete, closing marks that are missing are added to the output.
    pub fn end(&mut self, end: UpstreamEnd) -> Result<(), StreamFailure> {
        let closed = self.close(end);
        self.keep(closed)
    }

    /// Ends the client's stream with an error in its protocol's words: what is
    /// left of the output, closings of what is open, the error, and no mark
    /// that would make the answer look complete. Empty once the stream is
    /// closed. Also right for a client that got no event yet but a status of
    /// 200; for every other one an HTTP error is better.
    pub fn error_tail(&mut self, error: &InBandError<'_>) -> Bytes {
        if self.phase != Phase::Terminal {
            self.phase = Phase::Terminal;
            let tail = self.dialect.error_events(error, self.committed);
            self.output.add(Bytes::from(tail));
        }
        self.withheld.clear();
        self.held = None;
        self.fate = Fate::Nowhere;
        self.output.take().unwrap_or_default()
    }

    /// Whether the commit point is behind us: the attempt can't be replaced.
    pub const fn committed(&self) -> bool {
        self.committed
    }

    /// Token counts seen so far, also of a failed attempt.
    pub fn usage(&self) -> Option<Usage> {
        self.usage.or_else(|| self.dialect.usage())
    }

    /// The finish reason in the protocol's words, the first if there were several.
    pub fn finish_reason(&self) -> Option<&str> {
        self.finish
            .as_deref()
            .or_else(|| self.dialect.finish_reason())
    }

    /// What was mended or forgiven.
    pub const fn quirks(&self) -> Quirks {
        self.quirks
    }

    /// Remembers a failure and forgets what the client must not see.
    fn keep(&mut self, result: Result<(), StreamFailure>) -> Result<(), StreamFailure> {
        if let Err(failure) = &result {
            self.phase = Phase::Failed;
            self.failure.get_or_insert_with(|| failure.clone());
            self.withheld.clear();
            self.held = None;
            self.decoder.discard();
        }
        result
    }

    fn earlier_failure(&self) -> StreamFailure {
        let failure = self.failure.clone();
        failure.unwrap_or_else(|| StreamFailure::new(StreamFailureKind::Cut))
    }

    fn take(&mut self, chunk: Bytes) -> Result<(), StreamFailure> {
        match self.phase {
            Phase::Opening => self.open(&chunk),
            Phase::Body => self.take_body(&chunk),
            Phase::Events => self.take_events(chunk),
            Phase::Terminal => self.after_terminal(&chunk),
            Phase::Failed => Err(self.earlier_failure()),
        }
    }

    fn open(&mut self, chunk: &Bytes) -> Result<(), StreamFailure> {
        let (start, shape) = open::opening(self.options.content_type, chunk);
        let chunk = chunk.slice(start..);
        match shape {
            BodyShape::Blank => Ok(()),
            BodyShape::Html => Err(StreamFailure::because(
                StreamFailureKind::Garbage,
                "the upstream sent a web page in place of a stream",
            )),
            BodyShape::Json => {
                self.phase = Phase::Body;
                self.take_body(&chunk)
            }
            BodyShape::Events => {
                self.phase = Phase::Events;
                self.take_events(chunk)
            }
        }
    }

    fn take_body(&mut self, chunk: &Bytes) -> Result<(), StreamFailure> {
        if self.withheld.len().saturating_add(chunk.len()) > self.options.event_bytes {
            return Err(StreamFailure::new(StreamFailureKind::EventTooLarge));
        }
        self.withheld.extend_from_slice(chunk);
        Ok(())
    }

    fn take_events(&mut self, chunk: Bytes) -> Result<(), StreamFailure> {
        self.output.open(chunk.clone());
        self.decoder.push(chunk);
        while let Some(event) = self
            .decoder
            .next()
            .map_err(|_| StreamFailure::new(StreamFailureKind::EventTooLarge))?
        {
            self.event(event)?;
            if self.phase == Phase::Terminal {
                self.decoder.discard();
                break;
            }
        }
        Ok(())
    }

    /// Nothing counts any more but the rest of a line end that was split.
    fn after_terminal(&mut self, chunk: &Bytes) -> Result<(), StreamFailure> {
        self.decoder.push(chunk.slice(..chunk.len().min(1)));
        if let Ok(Some(event)) = self.decoder.next()
            && event.kind() == EventKind::LineFeed
        {
            self.event(event)?;
        }
        self.decoder.discard();
        Ok(())
    }

    fn event(&mut self, event: Event) -> Result<(), StreamFailure> {
        match event.kind() {
            EventKind::LineFeed => self.line_feed(&event),
            EventKind::Comment => {
                self.comments_seen = true;
                self.pass_if_committed(event);
            }
            EventKind::Unknown => self.pass_if_committed(event),
            EventKind::Fields => {
                self.fields_seen = true;
                return self.fields(event);
            }
        }
        Ok(())
    }

    fn fields(&mut self, event: Event) -> Result<(), StreamFailure> {
        if let Some(body) = open::error_of_event(&event) {
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
        let Some(mended) = lenient::normalise(data) else {
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

    fn refuse_empty(&self, empty_ok: bool) -> Result<(), StreamFailure> {
        let asked_for_one = self.options.asked_max_tokens.is_some_and(|max| max <= 1);
        if self.content || empty_ok || asked_for_one {
            return Ok(());
        }
        Err(StreamFailure::new(StreamFailureKind::Empty))
    }

    /// Puts an event behind everything before it.
    fn place(&mut self, raw: Bytes) {
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

    fn release_held(&mut self) {
        if let Some(held) = self.held.take() {
            self.place(held.freeze());
        }
    }

    fn commit(&mut self) {
        self.committed = true;
        let withheld = self.withheld.split().freeze();
        self.output.add(withheld);
    }

    fn close(&mut self, end: UpstreamEnd) -> Result<(), StreamFailure> {
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
        } else if !self.fields_seen && !self.comments_seen {
            StreamFailureKind::Garbage
        } else if !self.fields_seen || (nothing && self.options.lenient_end) {
            StreamFailureKind::Empty
        } else if self.dialect.tool_call_open() {
            StreamFailureKind::TruncatedToolCall
        } else {
            StreamFailureKind::Truncated
        })
    }
}

#[cfg(test)]
mod tests;
