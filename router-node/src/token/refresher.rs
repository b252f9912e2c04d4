//! The actor that owns what this node knows of an account's tokens.

mod news;
mod pace;

use std::sync::Arc;

use actix::prelude::*;
use shared_proto::clock::Millis;
use shared_proto::failure::Terminal;
use shared_proto::health::{ConnectionHealth, HealthEvent};
use shared_proto::mirror::record::Revision;
use shared_proto::token::{
    Ask as Question, Cause, Judgement, Line, Place, REFUSED_RULE, SealError, Status, StoredTokens,
    Tokens, judge, refused,
};
use tokio::sync::oneshot;

use super::cell::Bearer;
use super::job::{Done, Ended, Job};
use super::{Setup, Shared};
use crate::actor::owner::{Report, Stored};
use crate::routing::ConnectionCell;

pub(crate) use news::{Ask, NewSetup};

/// Requests that wait for one account's tokens; one more is told at once that
/// there are none.
const MAX_WAITING: usize = 4096;

/// Who refreshes the tokens of one account on this node.
pub(crate) struct Refresher {
    shared: Shared,
    cell: Arc<ConnectionCell>,
    /// `None` while the configuration has no use for it.
    setup: Option<Arc<Setup>>,
    /// The record as last seen.
    stored: Option<(Revision, StoredTokens)>,
    /// The newest line of the configured credential.
    line: Option<Line>,
    /// Why what is stored can't be worked with.
    locked: Option<&'static str>,
    working: bool,
    /// Another node is at it until then.
    busy_until: Option<Millis>,
    /// Tries in a row that the store did not answer.
    away: u32,
    /// The refresh token was refused to this node.
    refused_here: bool,
    waiting: Vec<Waiting>,
    timer: Option<SpawnHandle>,
}

struct Waiting {
    cause: Cause,
    generation: u64,
    reply: oneshot::Sender<Verdict>,
}

/// What a request is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// There are newer tokens.
    Current,
    /// The tokens are so young that new ones would change nothing.
    Fresh,
    /// The endpoint refused the refresh token, with this word.
    Refused(String),
    /// There are none now.
    None,
}

impl Refresher {
    /// Starts from what the store holds of the account, if that is known, and
    /// publishes it at once.
    pub(crate) fn start(
        cell: &Arc<ConnectionCell>,
        setup: Arc<Setup>,
        held: Option<Stored>,
        shared: Shared,
    ) {
        let mut refresher = Self {
            shared,
            cell: Arc::clone(cell),
            setup: Some(setup),
            stored: None,
            line: None,
            locked: None,
            working: false,
            busy_until: None,
            away: 0,
            refused_here: false,
            waiting: Vec::new(),
            timer: None,
        };
        if let Some(held) = held {
            refresher.take_in(held, false);
        }
        refresher.publish();
        cell.token.own(|| refresher.start_actor());
    }

    fn start_actor(self) -> Addr<Self> {
        Actor::start(self)
    }

    /// The tokens' state as it is known here.
    fn status(&self) -> Status {
        let configured = || self.setup.as_ref().map(|setup| setup.status());
        let line = self.line.as_ref().map(|line| line.status.clone());
        line.or_else(configured).unwrap_or_default()
    }

    fn forgiven_at(&self) -> Option<Millis> {
        self.cell.health().forgiven_at()
    }

    fn lock(&mut self, why: &'static str) {
        if self.locked != Some(why)
            && let Some(setup) = &self.setup
        {
            tracing::error!(connection = %setup.connection, "the stored tokens can't be used: {why}; they are not refreshed here");
        }
        self.locked = Some(why);
    }

    /// Publishes what is known.
    fn publish(&mut self) {
        let Some(setup) = self.setup.clone() else {
            self.cell.token.publish(None);
            return;
        };
        let (status, tokens) = match self.opened(&setup) {
            Ok(tokens) => (self.status(), tokens),
            Err(why) => {
                self.lock(match why {
                    SealError::UnknownKey => {
                        "they are encrypted with a key that OMNIROUTE_SECRET_KEY does not list"
                    }
                    SealError::Damaged => "they are damaged",
                });
                // What is configured may still be good; its end tells.
                (setup.status(), setup.configured.clone())
            }
        };
        let mut bearer = Bearer::new(setup.mark, status, tokens);
        if let Some(bearer) = &mut bearer {
            bearer.locked = self.locked.is_some();
        }
        self.cell.token.publish(bearer);
    }

    fn opened(&self, setup: &Setup) -> Result<Tokens, SealError> {
        let Some(line) = &self.line else {
            return Ok(setup.configured.clone());
        };
        let place = Place {
            connection: &setup.connection,
            mark: line.mark,
            generation: line.status.generation,
        };
        let keyring = self.shared.keyring.as_ref();
        keyring
            .ok_or(SealError::UnknownKey)?
            .open(place, &line.sealed)
    }

    /// Begins a refresh, unless one is under way.
    fn work(&mut self, cause: Cause, generation: u64, ctx: &mut Context<Self>) {
        let Some(setup) = self.setup.clone().filter(|_| !self.working) else {
            return;
        };
        self.working = true;
        let job = Job {
            shared: self.shared.clone(),
            setup,
            known: self.line.clone(),
            cause,
            generation,
            forgiven_at: self.forgiven_at(),
        };
        let began = self.shared.mirror.now();
        let under_way = self.shared.jobs.begin();
        let running = async move {
            let done = job.run().await;
            drop(under_way);
            done
        };
        let running = running.into_actor(self);
        ctx.spawn(running.map(move |done, refresher, ctx| {
            refresher.done(done, (cause, began), ctx);
        }));
    }

    fn done(&mut self, done: Done, (cause, began): (Cause, Millis), ctx: &mut Context<Self>) {
        self.working = false;
        self.busy_until = None;
        if let Some((revision, tokens)) = done.stored {
            self.seen(revision, tokens, false);
        }
        if done.end == Ended::Away {
            self.away = self.away.saturating_add(1);
        } else {
            self.away = 0;
        }
        let mut verdict = None;
        match done.end {
            Ended::Judged(Judgement::Busy { until }) => self.busy_until = Some(until),
            Ended::Judged(
                Judgement::Current
                | Judgement::Fresh
                | Judgement::Resting { .. }
                | Judgement::Refused
                | Judgement::Spend,
            )
            | Ended::Failed => {}
            Ended::Refreshed => self.revive(),
            Ended::Refused => {
                self.refused_here = true;
                if cause == Cause::Refused {
                    self.expire(began);
                }
            }
            Ended::Away => verdict = Some(Verdict::None),
            Ended::Locked(why) => {
                self.lock(why);
                verdict = Some(Verdict::None);
            }
        }
        self.publish();
        if let Some(verdict) = verdict {
            self.answer_all(&verdict);
        }
        self.tick(ctx);
    }

    /// Answers who can be answered, works where somebody waits or it is time,
    /// and sets the timer.
    fn tick(&mut self, ctx: &mut Context<Self>) {
        self.answer();
        let now = self.shared.mirror.now();
        let others_work = self.busy_until.is_some_and(|until| until > now);
        let may = !self.working && !others_work && self.locked.is_none() && self.away == 0;
        if may
            && let Some((cause, generation)) = self.waiting.first().map(|w| (w.cause, w.generation))
        {
            self.work(cause, generation, ctx);
        }
        if may && !self.working && !self.is_terminal() && self.is_due(now) {
            self.work(Cause::Ahead, self.status().generation, ctx);
        }
        self.arm(now, ctx);
    }

    /// Tells every waiter what can be told by what is known.
    fn answer(&mut self) {
        let status = self.status();
        let now = self.shared.mirror.now();
        let forgiven_at = self.forgiven_at();
        let holder = Arc::clone(&self.shared.holder);
        let tell = |waiting: &Waiting| {
            let question = Question {
                cause: waiting.cause,
                generation: waiting.generation,
                holder: &holder,
                forgiven_at,
            };
            match judge(&status, None, &question, now) {
                Judgement::Current => Some(Verdict::Current),
                Judgement::Fresh => Some(Verdict::Fresh),
                Judgement::Resting { .. } => Some(Verdict::None),
                Judgement::Refused => {
                    let code = status.trouble.as_ref().map(|t| t.code.clone());
                    Some(Verdict::Refused(code.unwrap_or_default()))
                }
                Judgement::Busy { .. } | Judgement::Spend => None,
            }
        };
        for waiting in std::mem::take(&mut self.waiting) {
            match tell(&waiting) {
                // Who has gone away needs no answer.
                Some(verdict) => drop(waiting.reply.send(verdict)),
                None if waiting.reply.is_closed() => {}
                None => self.waiting.push(waiting),
            }
        }
    }

    fn answer_all(&mut self, verdict: &Verdict) {
        self.answer();
        for waiting in std::mem::take(&mut self.waiting) {
            drop(waiting.reply.send(verdict.clone()));
        }
    }

    fn expire(&self, began: Millis) {
        let status = self.status();
        let code = status.trouble.as_ref().map_or("", |t| t.code.as_str());
        self.tell_health(HealthEvent::Failed {
            started_at: began,
            failure: refused(code),
        });
    }

    /// New tokens end the verdict that the old ones had brought.
    fn revive(&mut self) {
        self.refused_here = false;
        let health = self.cell.health().clone();
        let by_refusal = health
            .last_error
            .as_ref()
            .is_some_and(|error| error.rule == REFUSED_RULE);
        let expired = health.terminal.is_some_and(|t| t.kind == Terminal::Expired);
        if by_refusal && expired {
            self.tell_health(HealthEvent::Reset);
        }
    }

    fn tell_health(&self, event: HealthEvent) {
        if let Some(owner) = self.cell.owner() {
            owner.do_send(Report::<ConnectionHealth>(event));
        }
    }
}

impl Actor for Refresher {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let now = self.shared.mirror.now();
        // The first look is spread too, so that nodes that start together do not
        // refresh together.
        self.arm(now, ctx);
    }
}
