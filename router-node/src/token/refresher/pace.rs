//! When a refresher does something without being asked.

use std::time::Duration;

use actix::prelude::*;
use shared_proto::clock::Millis;
use shared_proto::token::due_at;

use super::Refresher;
use crate::timer::{Backoff, jittered};

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

impl Refresher {
    pub(super) fn is_terminal(&self) -> bool {
        self.cell.health().terminal.is_some()
    }

    /// Whether a refresh ahead is due, and nothing speaks against it.
    pub(super) fn is_due(&self, now: Millis) -> bool {
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

    pub(super) fn arm(&mut self, now: Millis, ctx: &mut Context<Self>) {
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
}
