//! Locks of models: the vectors MLK-*, what is news, and what always holds.

mod news;
mod preflight;
mod vectors;

use super::{LockoutEvent, LockoutRules, ModelLockouts, Outcome};
use crate::clock::Millis;
use crate::config::{ModelFamily, Settings};
use crate::failure::{Blame, Cooldown, Failure, HintSource, Reason, ResetHint};
use crate::hint::tests::T0;

/// A failure of a model with `status`.
fn failure(status: u16) -> Failure {
    Failure {
        status,
        reason: match status {
            404 => Reason::NotFound,
            429 => Reason::RateLimitExceeded,
            _ => Reason::ServerError,
        },
        blame: Blame::Model,
        error_type: None,
        fallback: true,
        terminal: None,
        cooldown: Cooldown::Ladder,
        hint: None,
        client_retry_after_ms: None,
        counts_for_breaker: false,
        rule: "test".to_owned(),
        restated: None,
        upstream_code: None,
        message: String::new(),
    }
}

fn hinted(status: u16, wait_ms: u64, source: HintSource) -> Failure {
    Failure {
        hint: Some(ResetHint {
            wait_ms,
            source,
            field: "x".to_owned(),
        }),
        ..failure(status)
    }
}

fn family(name: &str, models: &[&str]) -> ModelFamily {
    ModelFamily {
        name: name.to_owned(),
        models: models.iter().map(|&model| model.to_owned()).collect(),
    }
}

/// The rules of `provider`'s connections, locks switched on or not.
fn rules(provider: &str, enabled: bool) -> LockoutRules {
    let mut settings = Settings::default();
    settings.model_lockout.enabled = enabled;
    let provider = crate::catalogue::entry(provider).unwrap();
    LockoutRules::new(&settings, &provider.provider)
}

/// A connection's locks under test.
struct Desk {
    state: ModelLockouts,
    rules: LockoutRules,
}

impl Desk {
    fn new(rules: LockoutRules) -> Self {
        Self {
            state: ModelLockouts::default(),
            rules,
        }
    }

    fn tell(&mut self, event: &LockoutEvent, now: Millis) -> Outcome {
        let step = self.state.step(event, now, &self.rules);
        assert_eq!(step.changed, step.state != self.state, "{event:?}");
        self.state = step.state;
        step.outcome
    }

    /// A failure that is met at `now`, of an attempt that began there.
    fn fail(&mut self, model: &str, failure: Failure, now: Millis) -> Outcome {
        self.fail_from(model, failure, (now, now))
    }

    fn fail_from(
        &mut self,
        model: &str,
        failure: Failure,
        (started_at, now): (Millis, Millis),
    ) -> Outcome {
        let event = LockoutEvent::Failed {
            started_at,
            model: model.to_owned(),
            failure,
            after_output: false,
        };
        self.tell(&event, now)
    }

    fn succeed(&mut self, model: &str, halve: bool, now: Millis) -> Outcome {
        let event = LockoutEvent::Succeeded {
            started_at: now,
            model: model.to_owned(),
            halve,
        };
        self.tell(&event, now)
    }

    fn left(&self, model: &str, now: Millis) -> Option<u64> {
        let locked = self.state.locked(model, &self.rules, now);
        locked.map(|lockout| lockout.until.since(now))
    }

    fn only(&self) -> (&str, &super::Lockout) {
        let mut entries = self.state.entries.iter();
        let (key, lockout) = entries.next().unwrap();
        assert!(entries.next().is_none(), "{:?}", self.state);
        (key, lockout)
    }
}
