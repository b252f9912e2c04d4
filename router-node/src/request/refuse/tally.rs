//! What keeps the connections of a refused request from serving it, counted.

use shared_proto::breaker::Admission;
use shared_proto::failure::Terminal;
use shared_proto::health::Blocked;

use super::Refusal;

/// The connections that a request could have gone to, by their state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    total: usize,
    banned: usize,
    expired: usize,
    out_of_credits: usize,
    cooling: usize,
    locked: usize,
    behind_breaker: usize,
    /// Whether a combo's targets are counted, which may share connections.
    combo: bool,
}

impl Tally {
    /// Counts them as they are now.
    pub(super) fn of(refusal: &Refusal<'_>) -> Self {
        let key = refusal.request.key.as_deref();
        let mut tally = Self {
            combo: refusal.targets.combo,
            ..Self::default()
        };
        for target in &refusal.targets.list {
            let admission = target.provider.breaker.breaker().admit(refusal.now);
            let shut = matches!(admission, Admission::Reject { .. });
            for slot in target.candidates(key) {
                add(&mut tally.total, true);
                match slot.cell.eligible(refusal.now) {
                    Err(Blocked::Terminal(Terminal::Banned)) => add(&mut tally.banned, true),
                    Err(Blocked::Terminal(Terminal::Expired)) => add(&mut tally.expired, true),
                    Err(Blocked::Terminal(Terminal::CreditsExhausted)) => {
                        add(&mut tally.out_of_credits, true);
                    }
                    Err(Blocked::Cooling { .. }) => add(&mut tally.cooling, true),
                    Ok(()) => {
                        let locked = slot.locked(&target.model, refusal.now).is_some();
                        add(&mut tally.locked, locked);
                        add(&mut tally.behind_breaker, !locked && shut);
                    }
                }
            }
        }
        tally
    }

    /// Whether there are any, and none that time brings back.
    pub(super) const fn is_over(&self) -> bool {
        let terminal = self
            .banned
            .saturating_add(self.expired)
            .saturating_add(self.out_of_credits);
        self.total > 0 && terminal == self.total
    }

    /// Whether there is more than one.
    pub(super) const fn several(&self) -> bool {
        self.total > 1
    }

    /// `2 connections of acme: 1 banned, 1 out of credits`; `None` where there
    /// is none to speak of.
    pub(super) fn words(&self, providers: &str) -> Option<String> {
        let causes = [
            (self.banned, "banned"),
            (self.expired, "expired"),
            (self.out_of_credits, "out of credits"),
            (self.cooling, "cooling down"),
            (self.locked, "with this model locked"),
            (self.behind_breaker, "behind an open circuit breaker"),
        ];
        let known: usize = causes.iter().map(|(count, _)| count).sum();
        let other = self.total.saturating_sub(known);
        let causes = causes.into_iter().chain([(other, "not available")]);
        let named = causes.filter(|(count, _)| *count > 0);
        let named: Vec<String> = named
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        let noun = match (self.combo, self.total) {
            (false, 1) => "connection",
            (false, _) => "connections",
            (true, 1) => "candidate",
            (true, _) => "candidates",
        };
        let causes = named.join(", ");
        (self.total > 0).then(|| format!("{} {noun} of {providers}: {causes}", self.total))
    }
}

fn add(count: &mut usize, holds: bool) {
    *count = count.saturating_add(usize::from(holds));
}
