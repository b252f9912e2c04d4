//! One attempt's state, and the ways in and out of it.

mod close;
mod events;

use bytes::{Bytes, BytesMut};

use super::chat::Chat;
use super::dialect::Dialect;
use super::failure::{Quirks, StreamFailure, StreamFailureKind};
use super::messages::Messages;
use super::open::{BodyShape, opening};
use super::output::Output;
use super::responses::Responses;
use super::tail::InBandError;
use super::usage::Usage;
use super::{Progress, RelayOptions, UpstreamEnd};
use crate::protocol::Protocol;
use crate::sse::{Decoder, EventKind};

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

/// How far the bytes looked like an event stream at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Seen {
    Nothing,
    Comments,
    Fields,
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
    /// Of the chunk at hand.
    data_events: u32,
    /// The most that any block amounted to.
    seen: Seen,
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
            seen: Seen::Nothing,
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
        let (start, shape) = opening(self.options.content_type, chunk);
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
}
