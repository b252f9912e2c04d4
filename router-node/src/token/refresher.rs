//! The actor that owns what this node knows of an account's tokens.

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use shared_proto::clock::Millis;
use shared_proto::failure::Terminal;
use shared_proto::health::{ConnectionHealth, HealthEvent};
use shared_proto::mirror::commit::Expected;
use shared_proto::mirror::record::Revision;
use shared_proto::token::{
    Ask as Question, Cause, Judgement, Line, Place, REFUSED_RULE, Read, SealError, Status,
    StoredTokens, Tokens, due_at, judge, refused,
};
use tokio::sync::oneshot;

use super::cell::Bearer;
use super::job::{Done, Ended, Job};
use super::{Setup, Shared};
use crate::actor::owner::{Heard, Report, StoreIsBack, Stored};
use crate::routing::ConnectionCell;
use crate::timer::{Backoff, jittered};

/// Requests that wait for one account's tokens; one more is told at once that
/// there are none.
const MAX_WAITING: usize = 4096;
/// How long after a failed try, while the store is away.
const AWAY: Backoff = Backoff::between(Duration::from_secs(1), Duration::from_secs(8));
/// How often an account that is out of use for good is looked at.
const TERMINAL_LOOK: Duration = Duration::from_mins(1);
/// Nodes do not come all at once: one begins, and the others hear of it. At most
/// this long, and at most a tenth of what is left of the access token.
const SPREAD_MS: u64 = 15_000;
/// With its refresh token refused, an account is out of use when its access
/// token has less than this left, in ms.
const LAST_MS: u64 = 60_000;
/// Longest sleep; a timer may not know a year.
const LONGEST: Duration = Duration::from_hours(24);

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
        cell: Arc<ConnectionCell>,
        setup: Arc<Setup>,
        held: Option<Stored>,
        shared: Shared,
    ) {
        let mut refresher = Self {
            shared,
            cell: Arc::clone(&cell),
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
        self.cell.health().renewed_at
    }

    /// Takes in what the store holds. Whether it holds less than is known here.
    fn take_in(&mut self, stored: Stored, from_snapshot: bool) -> bool {
        let record = match stored {
            Stored::Record(record) => record,
            // Corrupt: a refresh replaces it.
            Stored::Unreadable(Expected::Corrupt) | Stored::Nothing(_) => {
                self.locked = None;
                self.stored = None;
                return self.line.as_ref().is_some_and(|l| l.status.generation > 0);
            }
            Stored::Unreadable(Expected::Absent | Expected::Revision(_)) => {
                self.lock("a newer version of this program wrote them");
                return false;
            }
        };
        match Read::<StoredTokens>::of(&record) {
            Ok(read) => {
                let tokens = read.state.unwrap_or_default();
                self.seen(record.revision, tokens, from_snapshot)
            }
            Err(_) => {
                self.lock("a newer version of this program wrote them");
                false
            }
        }
    }

    /// The same for a record that was read.
    fn seen(&mut self, revision: Revision, tokens: StoredTokens, from_snapshot: bool) -> bool {
        let older = self.stored.as_ref().is_some_and(|(r, _)| *r >= revision);
        if older && !from_snapshot {
            return false;
        }
        let line = self.setup.as_ref().and_then(|s| tokens.line(s.mark));
        let generation = |line: Option<&Line>| line.map_or(0, |line| line.status.generation);
        let less = generation(line) < generation(self.line.as_ref());
        if !less {
            self.line = line.cloned();
        }
        self.locked = None;
        self.stored = Some((revision, tokens));
        less
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

    fn is_terminal(&self) -> bool {
        self.cell.health().terminal.is_some()
    }

    /// Whether a refresh ahead is due, and nothing speaks against it.
    fn is_due(&self, now: Millis) -> bool {
        self.setup.is_some() && self.next_at().is_some_and(|at| at <= now)
    }

    /// When a refresh ahead may begin.
    fn next_at(&self) -> Option<Millis> {
        let status = self.status();
        if status.is_refused(self.forgiven_at()) {
            return None;
        }
        let due = due_at(&status)?;
        let rest = status.trouble.as_ref().and_then(|trouble| trouble.until);
        Some(rest.map_or(due, |rest| rest.max(due)))
    }

    fn arm(&mut self, now: Millis, ctx: &mut Context<Self>) {
        if let Some(timer) = self.timer.take() {
            ctx.cancel_future(timer);
        }
        let Some(wait) = self.wait(now) else { return };
        self.timer = Some(ctx.run_later(wait.min(LONGEST), |refresher, ctx| {
            refresher.timer = None;
            refresher.away = 0;
            refresher.expire_if_over();
            refresher.tick(ctx);
        }));
    }

    /// How long until something is to be done without being asked.
    fn wait(&self, now: Millis) -> Option<Duration> {
        if self.setup.is_none() || self.working || self.locked.is_some() {
            return None;
        }
        let until = |at: Millis| Duration::from_millis(at.since(now).saturating_add(1));
        if self.away > 0 {
            return Some(jittered(AWAY.after(self.away.saturating_sub(1))));
        }
        if let Some(busy) = self.busy_until.filter(|busy| *busy > now) {
            return Some(until(busy));
        }
        if self.is_terminal() {
            return Some(TERMINAL_LOOK);
        }
        let status = self.status();
        if status.is_refused(self.forgiven_at()) {
            let over = status.expires_at.filter(|_| self.refused_here)?;
            return Some(until(over.minus(LAST_MS)));
        }
        let at = self.next_at()?;
        let left = status.expires_at.map_or(0, |ends| ends.since(now.max(at)));
        let spread = SPREAD_MS.min(left.checked_div(10).unwrap_or(0));
        let (random, _) = uuid::Uuid::new_v4().as_u64_pair();
        let part = random.checked_rem(spread.saturating_add(1)).unwrap_or(0);
        Some(until(at.plus(part)))
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

    /// The refused account is out of use once its access token is as good as over.
    fn expire_if_over(&self) {
        let status = self.status();
        let now = self.shared.mirror.now();
        let over = !status.is_valid(now.plus(LAST_MS));
        if self.refused_here && over && status.is_refused(self.forgiven_at()) && !self.is_terminal()
        {
            self.expire(now);
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

/// A request needs other tokens than those in hand.
#[derive(Message)]
#[rtype(result = "oneshot::Receiver<Verdict>")]
pub(crate) struct Ask {
    pub(crate) cause: Cause,
    /// The generation in hand.
    pub(crate) generation: u64,
}

impl Handler<Ask> for Refresher {
    type Result = MessageResult<Ask>;

    fn handle(&mut self, ask: Ask, ctx: &mut Context<Self>) -> Self::Result {
        let (reply, verdict) = oneshot::channel();
        let hopeless = self.setup.is_none() || self.locked.is_some() || self.away > 0;
        if hopeless || self.waiting.len() >= MAX_WAITING {
            drop(reply.send(Verdict::None));
        } else {
            self.waiting.push(Waiting {
                cause: ask.cause,
                generation: ask.generation,
                reply,
            });
            self.tick(ctx);
        }
        MessageResult(verdict)
    }
}

impl Handler<Heard> for Refresher {
    type Result = ();

    fn handle(&mut self, Heard { stored, reading }: Heard, ctx: &mut Context<Self>) {
        let lost = self.take_in(stored, reading.is_some());
        self.publish();
        self.busy_until = None;
        if lost {
            // Perhaps only this news is old; the refresh looks itself.
            let generation = self.status().generation;
            self.work(Cause::Ahead, generation, ctx);
        }
        self.tick(ctx);
    }
}

impl Handler<StoreIsBack> for Refresher {
    type Result = ();

    fn handle(&mut self, _: StoreIsBack, ctx: &mut Context<Self>) {
        self.away = 0;
        self.tick(ctx);
    }
}

/// How the account is configured now; `None` when it has no tokens to refresh.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct NewSetup(pub(crate) Option<Arc<Setup>>);

impl Handler<NewSetup> for Refresher {
    type Result = ();

    fn handle(&mut self, NewSetup(setup): NewSetup, ctx: &mut Context<Self>) {
        let mark = |setup: &Option<Arc<Setup>>| setup.as_ref().map(|setup| setup.mark);
        if mark(&setup) != mark(&self.setup) {
            self.line = setup.as_ref().and_then(|setup| {
                let (_, tokens) = self.stored.as_ref()?;
                tokens.line(setup.mark).cloned()
            });
            self.refused_here = false;
            self.busy_until = None;
            self.locked = None;
        }
        self.setup = setup;
        self.publish();
        self.tick(ctx);
    }
}
