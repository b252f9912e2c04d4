//! A stream under way: the upstream's body, its relay and its timers.

use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use shared_proto::classify::TransportFailure;
use shared_proto::config::Provider;
use shared_proto::protocol::Protocol;
use shared_proto::stream::{RelayOptions, StreamFailure, StreamRelay, UpstreamEnd};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::timer::{after, limit};
use crate::upstream::answer::{Answer, AnswerBody};

/// How long the rest of a finished stream is read so that its connection can
/// be used again.
const DRAIN: Duration = Duration::from_secs(1);

/// Why a stream ended badly.
#[derive(Debug)]
pub(crate) enum LiveEnd {
    /// The wire or a timer.
    Transport(TransportFailure),
    /// What it said.
    Stream(StreamFailure),
}

/// What one step of reading brought.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Bytes came; there may be output.
    More,
    /// The stream is complete.
    Ended,
}

/// One upstream stream.
pub(crate) struct Live {
    answer: Answer,
    relay: StreamRelay,
    ended: bool,
    first_content: Duration,
    byte_idle: Duration,
    progress_idle: Duration,
    opened: Instant,
    last_byte: Instant,
    last_progress: Instant,
    timer: Pin<Box<Sleep>>,
}

impl Live {
    /// Begins to read `answer`.
    pub(crate) fn new(
        protocol: Protocol,
        answer: Answer,
        asked_max_tokens: Option<u64>,
        provider: &Provider,
    ) -> Self {
        let options = RelayOptions {
            content_type: answer.content_type(),
            lenient_end: provider.lenient_stream_end,
            asked_max_tokens,
            ..RelayOptions::default()
        };
        let now = Instant::now();
        let mut live = Self {
            answer,
            relay: StreamRelay::new(protocol, options),
            ended: false,
            first_content: limit(provider.timeouts.first_content_ms),
            byte_idle: limit(provider.timeouts.byte_idle_ms),
            progress_idle: limit(provider.timeouts.progress_idle_ms),
            opened: now,
            last_byte: now,
            last_progress: now,
            timer: Box::pin(sleep_until(now)),
        };
        let deadline = live.deadline().0;
        live.timer.as_mut().reset(deadline);
        live
    }

    /// The answer's head.
    pub(crate) fn answer(&self) -> &Answer {
        &self.answer
    }

    /// The relay, for its output and what it learnt.
    pub(crate) fn relay(&mut self) -> &mut StreamRelay {
        &mut self.relay
    }

    /// Reads until content can go to the client or the stream is complete.
    pub(crate) async fn until_committed(&mut self) -> Result<(), LiveEnd> {
        loop {
            let step = std::future::poll_fn(|cx| self.poll_step(cx)).await?;
            if step == Step::Ended || self.relay.committed() {
                return Ok(());
            }
        }
    }

    /// Reads one chunk.
    pub(crate) fn poll_step(&mut self, cx: &mut Context<'_>) -> Poll<Result<Step, LiveEnd>> {
        if self.ended {
            return Poll::Ready(Ok(Step::Ended));
        }
        match self.answer.body.poll_chunk(cx) {
            Poll::Ready(Some(Ok(chunk))) => Poll::Ready(self.take(chunk)),
            Poll::Ready(Some(Err(_))) => Poll::Ready(self.end(UpstreamEnd::Cut)),
            Poll::Ready(None) => Poll::Ready(self.end(UpstreamEnd::Clean)),
            Poll::Pending => self.poll_timers(cx),
        }
    }

    fn take(&mut self, chunk: Bytes) -> Result<Step, LiveEnd> {
        let now = Instant::now();
        self.last_byte = now;
        let was_committed = self.relay.committed();
        let progress = self.relay.push(chunk).map_err(LiveEnd::Stream)?;
        if progress.data_events > 0 {
            self.last_progress = now;
        }
        if self.relay.committed() && !was_committed {
            // From here on another limit counts, which may be the shorter one.
            let (deadline, _) = self.deadline();
            self.timer.as_mut().reset(deadline);
        }
        if progress.terminal {
            self.relay
                .end(UpstreamEnd::Clean)
                .map_err(LiveEnd::Stream)?;
            self.ended = true;
            self.drain();
            return Ok(Step::Ended);
        }
        Ok(Step::More)
    }

    fn end(&mut self, end: UpstreamEnd) -> Result<Step, LiveEnd> {
        self.ended = true;
        self.relay.end(end).map_err(LiveEnd::Stream)?;
        Ok(Step::Ended)
    }

    /// Reads what follows the terminal mark (nothing, as a rule) beside the
    /// client's answer, so that neither waits for the other.
    fn drain(&mut self) {
        let mut rest = std::mem::replace(&mut self.answer.body, AnswerBody::Spent);
        if matches!(rest, AnswerBody::Plain(..)) {
            drop(tokio::task::spawn_local(async move {
                let reading = async { while let Some(Ok(_)) = rest.chunk().await {} };
                // Past the limit the connection is closed instead.
                tokio::time::timeout(DRAIN, reading).await.ok();
            }));
        }
    }

    /// The earliest deadline, and what passing it means.
    fn deadline(&self) -> (Instant, TransportFailure) {
        let idle = (
            after(self.last_byte, self.byte_idle),
            TransportFailure::ByteIdle,
        );
        let progress = if self.relay.committed() {
            let at = after(self.last_progress, self.progress_idle);
            (at, TransportFailure::ProgressIdle)
        } else {
            let at = after(self.opened, self.first_content);
            (at, TransportFailure::FirstContentTimeout)
        };
        if progress.0 <= idle.0 { progress } else { idle }
    }

    fn poll_timers(&mut self, cx: &mut Context<'_>) -> Poll<Result<Step, LiveEnd>> {
        // The timer is armed once and only moved when it fires: activity since
        // then just means that it goes to sleep again.
        while self.timer.as_mut().poll(cx).is_ready() {
            let (deadline, failure) = self.deadline();
            if deadline <= Instant::now() {
                self.ended = true;
                // A stream that had finished but for its end mark is complete.
                let complete = self.relay.end(UpstreamEnd::Cut).is_ok();
                let failed = Err(LiveEnd::Transport(failure));
                return Poll::Ready(if complete { Ok(Step::Ended) } else { failed });
            }
            self.timer.as_mut().reset(deadline);
        }
        Poll::Pending
    }
}
