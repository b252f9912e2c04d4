//! The one connection that all calls share, and what is known of its state.
//!
//! After a failure of the connection every call fails at once, while the
//! [supervisor](super::supervise) looks for a server: nobody waits for a
//! connection but those who come before the first attempt has ended. A server
//! that answers but takes no writes keeps its connection, and loads go on.

use std::sync::Arc;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{Cmd, RedisError, RedisResult, Value};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, SemaphorePermit, mpsc, watch};
use tokio::time::{Instant, timeout_at};

use super::dial::Dial;
use super::fault::{Cure, Fault};
use super::replicas::Confirmed;
use super::reply::Answer;
use super::scripts::{Lua, Scripts};
use super::time::StoreTime;
use super::{Health, Options, Unreachable};
use crate::clock::Millis;
use crate::config::RedisHost;
use crate::mirror::key::Keyspace;

/// Calls under way at most; more wait for a place.
pub(super) const MAX_CALLS: u32 = 4096;

/// A connection to the master.
pub(super) struct Link {
    pub(super) connection: MultiplexedConnection,
    pub(super) host: RedisHost,
    /// Rises with each connection.
    pub(super) generation: u64,
}

/// How things stand.
#[derive(Clone)]
pub(super) enum Phase {
    /// Nothing has been heard yet.
    Starting,
    Up(Arc<Link>),
    Down,
    Closed,
}

#[derive(Clone)]
pub(super) struct State {
    pub(super) phase: Phase,
    pub(super) health: Health,
}

/// What calls, readers and the supervisor share.
pub(super) struct Shared {
    pub(super) options: Options,
    pub(super) keys: Keyspace,
    /// The keys that are no records: meta, log, index.
    pub(super) meta: String,
    pub(super) log: String,
    pub(super) index: String,
    pub(super) scripts: Scripts,
    pub(super) time: StoreTime,
    pub(super) state: watch::Sender<State>,
    pub(super) places: Semaphore,
    /// Someone has reason to doubt the connection.
    pub(super) doubt: Notify,
    /// Where connections live.
    pub(super) runtime: Handle,
    pub(super) dial: Arc<Dial>,
    /// Transactions that have to reach replicas.
    pub(super) confirmed: mpsc::Sender<Confirmed>,
    /// The connection under which the log was last read, to tell a log that
    /// was trimmed from another server's.
    pub(super) read_under: watch::Sender<u64>,
}

/// A script and what it is given.
pub(super) struct Call<'a> {
    pub(super) lua: &'a Lua,
    pub(super) keys: Vec<String>,
    pub(super) args: Vec<Vec<u8>>,
    /// Whether its success shows that the server takes writes.
    pub(super) writes: bool,
}

impl Call<'_> {
    /// By its hash; in full where the server has forgotten the script, since
    /// one that is loaded again can be forgotten again before it is called.
    pub(super) async fn send(&self, connection: &mut MultiplexedConnection) -> RedisResult<Value> {
        let hash = self.command("EVALSHA", self.lua.script.get_hash());
        let answer = hash.query_async(connection).await;
        if answer.as_ref().err().and_then(RedisError::code) != Some("NOSCRIPT") {
            return answer;
        }
        let text = self.command("EVAL", &self.lua.text);
        text.query_async(connection).await
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let mut command = ::redis::cmd(name);
        command.arg(script).arg(self.keys.len()).arg(&self.keys);
        for arg in &self.args {
            command.arg(arg.as_slice());
        }
        command
    }
}

impl Shared {
    /// Runs a script; what it answers, and the store's time when it ran.
    pub(super) async fn call(&self, call: &Call<'_>) -> Result<(Answer, Millis), Unreachable> {
        let asked = Instant::now();
        let (value, generation) = self
            .run(asked, async |mut connection| {
                call.send(&mut connection).await
            })
            .await?;
        let answer = self.answered(value, asked);
        let answer = answer.map_err(|fault| self.failed(generation, fault))?;
        if call.writes {
            self.accepted(generation);
        }
        Ok(answer)
    }

    /// Reads the time that a script's answer begins with.
    pub(super) fn answered(&self, value: Value, asked: Instant) -> Result<(Answer, Millis), Fault> {
        let mut answer = Answer::of(value)?;
        let us = answer.number()?;
        self.time.heard(us, asked);
        Ok((answer, Millis::from_epoch_ms(us / 1_000)))
    }

    /// Runs a command.
    pub(super) async fn command(&self, command: &Cmd) -> Result<Value, Unreachable> {
        let (value, _) = self
            .run(Instant::now(), async |mut connection| {
                command.query_async(&mut connection).await
            })
            .await?;
        Ok(value)
    }

    async fn run(
        &self,
        now: Instant,
        ask: impl AsyncFnOnce(MultiplexedConnection) -> RedisResult<Value>,
    ) -> Result<(Value, u64), Unreachable> {
        let end = self.end(now);
        let _place = self.place(end).await?;
        let link = self.link(end).await?;
        let fault = match timeout_at(end, ask(link.connection.clone())).await {
            Ok(Ok(value)) => return Ok((value, link.generation)),
            Ok(Err(error)) => Fault::of(&error),
            Err(_) => self.late(),
        };
        Err(self.failed(link.generation, fault))
    }

    pub(super) fn late(&self) -> Fault {
        let ms = self.options.deadline.as_millis();
        Fault::new(Cure::Reconnect, format!("no answer within {ms} ms"))
    }

    pub(super) fn end(&self, now: Instant) -> Instant {
        now.checked_add(self.options.deadline).unwrap_or(now)
    }

    pub(super) async fn place(&self, end: Instant) -> Result<SemaphorePermit<'_>, Unreachable> {
        match timeout_at(end, self.places.acquire()).await {
            Ok(Ok(place)) => Ok(place),
            Ok(Err(_)) => Err(closed()),
            Err(_) => Err(Unreachable("too many calls wait for it".into())),
        }
    }

    /// The connection, or why there is none.
    pub(super) async fn link(&self, end: Instant) -> Result<Arc<Link>, Unreachable> {
        if let Phase::Up(link) = &self.state.borrow().phase {
            return Ok(Arc::clone(link));
        }
        let mut state = self.state.subscribe();
        let begun = state.wait_for(|state| !matches!(state.phase, Phase::Starting));
        let state = match timeout_at(end, begun).await {
            Ok(Ok(state)) => state,
            Ok(Err(_)) => return Err(closed()),
            Err(_) => return Err(Unreachable("there was no contact yet".into())),
        };
        match (&state.phase, &state.health) {
            (Phase::Up(link), _) => Ok(Arc::clone(link)),
            (Phase::Closed, _) | (_, Health::Up) => Err(closed()),
            (_, Health::Degraded { why, .. }) => Err(Unreachable(Arc::clone(why))),
        }
    }

    /// Which connection is in use; 0 when none is.
    pub(super) fn generation(&self) -> u64 {
        match &self.state.borrow().phase {
            Phase::Up(link) => link.generation,
            Phase::Starting | Phase::Down | Phase::Closed => 0,
        }
    }

    /// Draws the consequences of a fault met under a connection.
    pub(super) fn failed(&self, generation: u64, fault: Fault) -> Unreachable {
        if fault.cure != Cure::Nothing {
            let now = self.time.now();
            self.state.send_if_modified(|state| {
                let current = matches!(&state.phase, Phase::Up(l) if l.generation == generation);
                if current {
                    if fault.cure == Cure::Reconnect {
                        state.phase = Phase::Down;
                    }
                    degrade(&mut state.health, now, &fault.why);
                }
                current
            });
        }
        fault.into()
    }

    /// A write got through.
    pub(super) fn accepted(&self, generation: u64) {
        if self.state.borrow().health == Health::Up {
            return;
        }
        self.state.send_if_modified(|state| {
            let current = matches!(&state.phase, Phase::Up(l) if l.generation == generation);
            if current {
                state.health = Health::Up;
            }
            current
        });
    }

    /// Resolves once that connection is no longer the one in use.
    pub(super) async fn replaced(&self, generation: u64) {
        let mut state = self.state.subscribe();
        let gone = |state: &State| match &state.phase {
            Phase::Up(link) => link.generation != generation,
            Phase::Starting | Phase::Down | Phase::Closed => true,
        };
        // The sender is `self`.
        state.wait_for(gone).await.ok();
    }
}

/// Keeps since when it is.
pub(super) fn degrade(health: &mut Health, now: Millis, why: &Arc<str>) {
    let since = match health {
        Health::Up => now,
        Health::Degraded { since, .. } => *since,
    };
    *health = Health::Degraded {
        since,
        why: Arc::clone(why),
    };
}

pub(super) fn closed() -> Unreachable {
    Unreachable("it is closed".into())
}

/// A time limit that leaves room for a connection and its login.
pub(super) fn connect_limit(deadline: Duration) -> Duration {
    deadline.saturating_mul(2).max(Duration::from_millis(500))
}
