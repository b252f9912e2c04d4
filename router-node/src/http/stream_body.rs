//! The body of a streamed answer: what the upstream sends as it comes, merged
//! where several events are ready at once, with comments while it is silent.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use actix_web::body::{BodySize, MessageBody};
use bytes::{Bytes, BytesMut};
use shared_proto::protocol::Protocol;
use shared_proto::stream::{InBandError, RelayOptions, StreamRelay};
use tokio::time::{Instant, Sleep, sleep_until};

use super::reply::{ClientError, Shape};
use crate::request::Served;
use crate::request::after::{After, Telling};
use crate::request::live::{Live, Step};
use crate::timer::after;

/// A comment every client ignores.
const COMMENT: Bytes = Bytes::from_static(b": keep-alive\n\n");
/// Output is handed on at this size even if more is ready, bytes.
const FLUSH_AT: usize = 32 * 1024;

/// A streamed answer.
pub(super) struct StreamBody {
    state: State,
    protocol: Protocol,
    request_id: Arc<str>,
    keep_alive: Option<KeepAlive>,
    /// Taken from the relay, not yet handed on.
    ready: Merged,
    /// Whether the upstream's task had a turn since the last bytes came.
    yielded: bool,
}

enum State {
    /// Nobody has answered yet; the head is out.
    Waiting(Pin<Box<dyn Future<Output = Served>>>),
    Live(Box<Live>, Box<After>, Cut),
    /// The owners hear how it ended before the client does.
    Ending(Telling, Bytes),
    Done,
}

/// Resolves when the stream has to end, with what its client is told.
type Cut = Pin<Box<dyn Future<Output = ClientError>>>;

struct KeepAlive {
    every: Duration,
    timer: Pin<Box<Sleep>>,
}

impl State {
    fn live(live: Box<Live>, obligations: After) -> Self {
        let cut = Box::pin(obligations.cut());
        Self::Live(live, Box::new(obligations), cut)
    }
}

impl StreamBody {
    /// A body whose head went out before anybody answered.
    pub(super) fn waiting(
        plan: Pin<Box<dyn Future<Output = Served>>>,
        protocol: Protocol,
        request_id: Arc<str>,
        every: Duration,
    ) -> Self {
        let mut body = Self::new(State::Waiting(plan), protocol, request_id, every);
        // The first comment goes with the head: it was due just now.
        body.ready.push(COMMENT);
        body
    }

    /// The body of a committed stream.
    pub(super) fn live(
        live: Box<Live>,
        obligations: After,
        protocol: Protocol,
        request_id: Arc<str>,
        every: Duration,
    ) -> Self {
        let state = State::live(live, obligations);
        let mut body = Self::new(state, protocol, request_id, every);
        body.take_output();
        body
    }

    fn new(state: State, protocol: Protocol, request_id: Arc<str>, every: Duration) -> Self {
        let keep_alive = (!every.is_zero()).then(|| KeepAlive {
            every,
            timer: Box::pin(sleep_until(after(Instant::now(), every))),
        });
        Self {
            state,
            protocol,
            request_id,
            keep_alive,
            ready: Merged::default(),
            yielded: false,
        }
    }

    fn take_output(&mut self) {
        if let State::Live(live, ..) = &mut self.state
            && let Some(bytes) = live.relay().take_output()
        {
            self.ready.push(bytes);
        }
    }

    /// Hands on what is ready.
    fn flush(&mut self) -> Option<Bytes> {
        self.yielded = false;
        let bytes = self.ready.take()?;
        if let Some(keep_alive) = &mut self.keep_alive {
            let next = after(Instant::now(), keep_alive.every);
            keep_alive.timer.as_mut().reset(next);
        }
        Some(bytes)
    }

    fn poll_plan(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let State::Waiting(plan) = &mut self.state else {
            return Poll::Ready(());
        };
        match std::task::ready!(plan.as_mut().poll(cx)) {
            Served::Live(live, after) => {
                self.state = State::live(live, after);
                self.take_output();
            }
            // A plan for a stream ends in one, or refuses.
            Served::Whole(whole, _) => {
                self.ready.push(whole.body);
                self.state = State::Done;
            }
            Served::Refused(error) => {
                let mut relay = StreamRelay::new(self.protocol, RelayOptions::default());
                self.ready
                    .push(in_band(&mut relay, &error, self.protocol, &self.request_id));
                self.state = State::Done;
            }
        }
        Poll::Ready(())
    }

    fn poll_live(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let State::Live(live, after, cut) = &mut self.state
            && let Poll::Ready(error) = cut.as_mut().poll(cx)
        {
            after.stream_cut(&error);
            let tail = in_band(live.relay(), &error, self.protocol, &self.request_id);
            self.end(None, tail);
        }
        while let State::Live(live, after, _) = &mut self.state {
            match live.poll_step(cx) {
                Poll::Ready(Ok(Step::More)) => {
                    self.yielded = false;
                    self.take_output();
                    if self.ready.len() >= FLUSH_AT {
                        return Poll::Ready(());
                    }
                }
                Poll::Ready(Ok(Step::Ended)) => {
                    let telling = after.stream_ended(live);
                    let last = live.relay().take_output().unwrap_or_default();
                    self.end(telling, last);
                }
                Poll::Ready(Err(end)) => {
                    let (error, telling) = after.stream_failed(live, &end);
                    let tail = in_band(live.relay(), &error, self.protocol, &self.request_id);
                    self.end(Some(telling), tail);
                }
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(())
    }

    /// Goes on to the end: what is `last` follows once the owners were told.
    fn end(&mut self, telling: Option<Telling>, last: Bytes) {
        if let Some(telling) = telling {
            self.state = State::Ending(telling, last);
        } else {
            self.ready.push(last);
            self.state = State::Done;
        }
    }

    fn poll_ending(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let State::Ending(telling, last) = &mut self.state {
            std::task::ready!(telling.as_mut().poll(cx));
            let last = std::mem::take(last);
            self.ready.push(last);
            self.state = State::Done;
        }
        Poll::Ready(())
    }

    fn poll_keep_alive(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.keep_alive {
            Some(keep_alive) => keep_alive.timer.as_mut().poll(cx),
            None => Poll::Pending,
        }
    }
}

fn in_band(
    relay: &mut StreamRelay,
    error: &ClientError,
    protocol: Protocol,
    request_id: &str,
) -> Bytes {
    relay.error_tail(&InBandError {
        kind: error.kind(Shape::from(protocol)),
        code: Some(&error.code),
        message: &error.message,
        request_id: Some(request_id),
    })
}

impl MessageBody for StreamBody {
    type Error = std::convert::Infallible;

    fn size(&self) -> BodySize {
        BodySize::Stream
    }

    fn poll_next(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Self::Error>>> {
        let this = self.get_mut();
        let polled = match &this.state {
            State::Waiting(_) if this.ready.len() > 0 => Poll::Ready(()),
            State::Waiting(_) => this.poll_plan(cx),
            State::Live(..) => match this.poll_live(cx) {
                Poll::Ready(()) => this.poll_ending(cx),
                Poll::Pending => Poll::Pending,
            },
            State::Ending(..) => this.poll_ending(cx),
            State::Done => Poll::Ready(()),
        };
        if polled.is_pending() {
            if this.ready.len() > 0 && !this.yielded {
                // The task that reads the upstream may hold more events of the
                // same packet: one turn of the scheduler merges them into one write.
                this.yielded = true;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if this.ready.len() == 0 {
                std::task::ready!(this.poll_keep_alive(cx));
                this.ready.push(COMMENT);
            }
        }
        match this.flush() {
            Some(bytes) => Poll::Ready(Some(Ok(bytes))),
            None if matches!(this.state, State::Done) => Poll::Ready(None),
            None => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }
}

/// Pieces of output joined into one; a single piece is passed on as it is.
#[derive(Default)]
struct Merged {
    first: Bytes,
    rest: BytesMut,
}

impl Merged {
    fn len(&self) -> usize {
        self.first.len().saturating_add(self.rest.len())
    }

    fn push(&mut self, bytes: Bytes) {
        if self.first.is_empty() && self.rest.is_empty() {
            self.first = bytes;
            return;
        }
        if self.rest.is_empty() {
            self.rest
                .extend_from_slice(&std::mem::take(&mut self.first));
        }
        self.rest.extend_from_slice(&bytes);
    }

    fn take(&mut self) -> Option<Bytes> {
        if self.rest.is_empty() {
            return (!self.first.is_empty()).then(|| std::mem::take(&mut self.first));
        }
        Some(self.rest.split().freeze())
    }
}
