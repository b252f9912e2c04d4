//! The order in which a failure's signs are asked for; the first that speaks decides.
//!
//! The order is the rule: what is final for the account goes before what
//! passes, what is told in words before what only the status says, and what
//! may be a relay's tale about somebody else's account is believed last.
//!
//! What single providers say in words of their own, and the operator's rules, are
//! in `quirk`: early enough to win over every general reading but a ban.

use super::pattern::{Family, Signs};
use super::{
    ClassifyRules, UpstreamError, access, account, families, limits, quirk, relay, request, status,
};
use crate::clock::Millis;
use crate::failure::{Blame, Cooldown, ErrorType, Profile, Reason, Terminal};
use crate::hint::document::Document;

use super::facts::Facts;

/// Everything a step may look at.
#[derive(Clone, Copy)]
pub(super) struct Case<'a> {
    /// The status, put right.
    pub status: u16,
    pub error: &'a UpstreamError<'a>,
    pub document: &'a Document,
    pub facts: &'a Facts,
    pub signs: &'a Signs<'a>,
    pub rules: &'a ClassifyRules<'a>,
    /// Whether a rule put the status right.
    pub restated: bool,
    /// Whether a reset is announced.
    pub announced: bool,
    pub now: Millis,
}

impl Case<'_> {
    /// Everything the body says, lowercased.
    pub(super) fn text(&self) -> &str {
        &self.document.text
    }

    /// Whether the text has a pattern of `family`, and speaks for the provider at
    /// all: a web page is the work of a machine in between, and a broken
    /// gateway may quote what others said to others.
    pub(super) fn says(&self, family: Family) -> bool {
        !self.document.html && !self.quotes_others() && self.signs.any(family)
    }

    /// Whether it is a gateway's summary of what its own upstreams said.
    pub(super) fn quotes_others(&self) -> bool {
        self.status >= 500 && self.signs.any(families::QUOTED_STATUS)
    }

    /// Whose limit it is: the model's where quotas are per model, unless a rule
    /// made it a limit of the account.
    pub(super) fn limit_blame(&self) -> Blame {
        if self.error.per_model_quota && !self.restated {
            Blame::Model
        } else {
            Blame::Connection
        }
    }

    /// Whether the connection is a subscription.
    pub(super) fn is_oauth(&self) -> bool {
        self.error.profile == Profile::Oauth
    }
}

/// What a step found.
#[derive(Clone, Debug)]
pub(super) struct Verdict {
    pub rule: &'static str,
    /// Which of the operator's rules it is, from 1.
    pub nth: Option<usize>,
    pub reason: Reason,
    pub blame: Blame,
    pub error_type: Option<ErrorType>,
    pub fallback: bool,
    pub terminal: Option<Terminal>,
    pub cooldown: Cooldown,
    /// Whether the provider's breaker may count it.
    pub breaker: bool,
    /// What an announced time beside it is worth.
    pub announced: Announced,
}

/// What an announced time is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Announced {
    /// More than the rule's own.
    Better,
    /// Less: the rule's own holds.
    Worse,
    /// Nothing.
    Meaningless,
}

impl Verdict {
    /// A failure that goes to another target and charges `blame`, with the ladder.
    pub(super) const fn new(rule: &'static str, reason: Reason, blame: Blame) -> Self {
        Self {
            rule,
            nth: None,
            reason,
            blame,
            error_type: None,
            fallback: true,
            terminal: None,
            cooldown: Cooldown::Ladder,
            breaker: true,
            announced: Announced::Better,
        }
    }

    /// A failure of the request: nobody is charged.
    pub(super) const fn request(rule: &'static str, reason: Reason, fallback: bool) -> Self {
        Self {
            fallback,
            breaker: false,
            ..Self::new(rule, reason, Blame::Request).resting(Cooldown::None)
        }
    }

    /// A failure that ends the connection until someone acts.
    pub(super) const fn end(rule: &'static str, reason: Reason, terminal: Terminal) -> Self {
        Self {
            terminal: Some(terminal),
            ..Self::new(rule, reason, Blame::Connection).resting(Cooldown::None)
        }
    }

    pub(super) const fn typed(mut self, error_type: ErrorType) -> Self {
        self.error_type = Some(error_type);
        self
    }

    pub(super) const fn resting(mut self, cooldown: Cooldown) -> Self {
        self.cooldown = cooldown;
        self
    }

    /// Rests `ms` unless a time is announced.
    pub(super) const fn for_ms(self, ms: u64) -> Self {
        self.resting(Cooldown::Fixed(ms))
    }

    /// Rests `ms`, whatever is announced.
    pub(super) const fn for_exactly_ms(mut self, ms: u64) -> Self {
        self.cooldown = Cooldown::Fixed(ms);
        self.announced = Announced::Worse;
        self
    }

    /// Takes no announcement.
    pub(super) const fn without_hint(mut self) -> Self {
        self.announced = Announced::Meaningless;
        self
    }

    pub(super) const fn off_breaker(mut self) -> Self {
        self.breaker = false;
        self
    }

    /// Whether time heals it, so that an announced reset means something.
    pub(super) fn heals(&self) -> bool {
        self.terminal.is_none() && self.blame != Blame::Request && self.cooldown != Cooldown::None
    }
}

type Step = fn(&Case<'_>) -> Option<Verdict>;

const STEPS: &[Step] = &[
    status::service_not_running,
    request::binding,
    quirk::operator,
    quirk::built_in,
    account::payment,
    account::banned,
    account::edge,
    account::region,
    account::address,
    account::client_refused,
    request::too_large,
    access::retired_or_moved,
    limits::google,
    account::credits,
    limits::quota_window,
    request::policy,
    account::unauthorized,
    account::forbidden,
    access::down,
    access::missing,
    request::bad_request,
    relay::passed_on,
    limits::told,
    limits::too_many,
];

/// Rules that know no more than the status.
const PLAIN: &[&str] = &[
    "status-400",
    "status-402",
    "status-403",
    "status-404",
    "status-429",
    "status-5xx",
    "status-other",
    "unauthorized",
    "relay-pool",
];

/// The verdict on a case. `behind` is what the upstream of a relay said, read
/// as a case of its own: it tells what went wrong, but never with our account.
pub(super) fn decide(case: &Case<'_>, behind: Option<&Case<'_>>) -> Verdict {
    let verdict = first(case);
    let verdict = if relay::quotes(case) {
        relayed(verdict)
    } else {
        verdict
    };
    let Some(behind) = behind else {
        return verdict;
    };
    if !PLAIN.contains(&verdict.rule) {
        return verdict;
    }
    let inner = first(behind);
    // A refused key is news under any status but 401.
    let plain = PLAIN.contains(&inner.rule) && inner.terminal != Some(Terminal::Expired);
    if plain {
        relayed(verdict)
    } else {
        relayed(inner)
    }
}

/// The same failure, of a pool that we share.
fn relayed(verdict: Verdict) -> Verdict {
    match verdict.blame {
        Blame::Connection | Blame::Provider | Blame::EgressIp => {
            let quota = verdict.reason == Reason::QuotaExhausted;
            Verdict {
                terminal: None,
                blame: Blame::Model,
                cooldown: Cooldown::Ladder,
                // Whatever is used up there, to us it is a model without room.
                reason: if quota {
                    Reason::ModelCapacity
                } else {
                    verdict.reason
                },
                error_type: verdict.error_type.filter(|_| !quota),
                ..verdict
            }
        }
        Blame::Request | Blame::ProtocolQuirk | Blame::Model | Blame::Router | Blame::Client => {
            verdict
        }
    }
}

fn first(case: &Case<'_>) -> Verdict {
    STEPS
        .iter()
        .find_map(|step| step(case))
        .unwrap_or_else(|| status::by_status(case))
}
