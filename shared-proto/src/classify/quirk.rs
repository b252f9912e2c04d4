//! Peculiarities of single providers, and the operator's rules.
//!
//! This is the one place where a provider's own sentences, codes and headers
//! are told from everybody's. To add one, write a row of [`QUIRKS`] (and a test
//! of it); where it is about how a prompt is refused without a word, or about
//! quotas that models share, write a flag of `catalogue/providers.yaml`. What
//! several providers say belongs in `families/` instead.
//!
//! A row is about refusals with one of its statuses that show all its signs.
//! Texts are looked for in the code and type only, unless the catalogue's
//! `ownRules: [fullText]` opens the whole text to the provider's rows. The reason
//! and the rest hold; what is charged holds only with `honoursScope` there.

use super::decide::{Case, Verdict};
use super::families;
use crate::config::ErrorRule;
use crate::failure::{Blame, Cooldown, ErrorType, Reason, RuleScope};
use crate::hint::headers;
use crate::hint::text;

/// A peculiarity.
#[derive(Debug)]
pub(super) struct Quirk {
    pub id: &'static str,
    /// Entries of the catalogue.
    pub providers: &'static [&'static str],
    pub statuses: &'static [u16],
    pub signs: &'static [Sign],
    pub reason: Reason,
    pub scope: RuleScope,
    pub rest: Rest,
}

/// Something that a refusal shows.
#[derive(Debug)]
pub(super) enum Sign {
    /// One of these texts, lowercased.
    Text(&'static [&'static str]),
    /// One of these codes or types, whole.
    Code(&'static [&'static str]),
    /// A time until the reset, spelled out.
    Countdown,
    /// One of these headers is `0`.
    Zero(&'static [&'static str]),
    /// This header lists `name=count`, and one count is 0.
    ListedZero(&'static str),
}

/// How long what is charged rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rest {
    /// The ladder, or what is announced.
    Ladder,
    /// So many ms.
    Ms(u64),
    /// As long as the countdown says.
    Countdown,
    /// Not at all.
    None,
}

/// How the ids of an operator's rules begin; the place in the provider's list follows.
pub(super) const OPERATOR_RULE: &str = "operator-rule";

const OPENCODE: &[&str] = &["opencode", "opencode-go", "opencode-cli", "opencode-zen"];

pub(super) const QUIRKS: &[Quirk] = &[
    Quirk {
        id: "opencode-endpoint-unavailable",
        providers: OPENCODE,
        statuses: &[400, 429],
        signs: &[Sign::Text(&["endpoint is unavailable"])],
        reason: Reason::ModelCapacity,
        scope: RuleScope::Model,
        rest: Rest::Ms(300_000),
    },
    Quirk {
        id: "opencode-monthly-quota-resets-in",
        providers: OPENCODE,
        statuses: &[429],
        signs: &[
            Sign::Text(&["monthly usage limit reached"]),
            Sign::Countdown,
        ],
        reason: Reason::QuotaExhausted,
        scope: RuleScope::Connection,
        rest: Rest::Countdown,
    },
    Quirk {
        id: "opencode-quota-exhausted-headers",
        providers: OPENCODE,
        statuses: &[429],
        signs: &[Sign::Zero(&[
            "x-ratelimit-remaining-requests",
            "x-ratelimit-remaining-tokens",
        ])],
        reason: Reason::QuotaExhausted,
        scope: RuleScope::Connection,
        rest: Rest::Ladder,
    },
    Quirk {
        id: "opencode-quota-exhausted-body",
        providers: OPENCODE,
        statuses: &[429],
        signs: &[Sign::Text(&[
            "organization_quota_exceeded",
            "account_quota_exceeded",
            "plan_limit_reached",
        ])],
        reason: Reason::QuotaExhausted,
        scope: RuleScope::Connection,
        rest: Rest::Ladder,
    },
    Quirk {
        id: "opencode-free-usage-limit",
        providers: OPENCODE,
        statuses: &[429],
        signs: &[Sign::Code(&["freeusagelimiterror"])],
        reason: Reason::QuotaExhausted,
        scope: RuleScope::Model,
        rest: Rest::Ladder,
    },
    Quirk {
        id: "opencode-400-model-unavailable",
        providers: OPENCODE,
        statuses: &[400],
        signs: &[Sign::Text(&[
            "upstream request failed: model is unavailable.",
        ])],
        reason: Reason::ModelCapacity,
        scope: RuleScope::Model,
        rest: Rest::Ms(3_600_000),
    },
    Quirk {
        id: "minimax-per-model-quota",
        providers: &["minimax"],
        statuses: &[429],
        signs: &[Sign::ListedZero("x-model-quota-remaining")],
        reason: Reason::QuotaExhausted,
        scope: RuleScope::Model,
        rest: Rest::Ladder,
    },
    Quirk {
        id: "cloudflare-ai-daily-neuron-allocation",
        providers: &["cloudflare-ai"],
        statuses: &[429],
        signs: &[Sign::Text(&["daily free allocation"])],
        reason: Reason::QuotaExhausted,
        scope: RuleScope::Connection,
        rest: Rest::Ladder,
    },
    Quirk {
        id: "openrouter-credit-exhausted-402",
        providers: &["openrouter"],
        statuses: &[402],
        signs: &[],
        reason: Reason::QuotaExhausted,
        scope: RuleScope::Connection,
        rest: Rest::Ms(120_000),
    },
    Quirk {
        id: "agentrouter-user-quota-exhausted",
        providers: &["agentrouter"],
        statuses: &[400, 403, 429],
        signs: &[Sign::Text(&["额度不足"])],
        reason: Reason::QuotaExhausted,
        scope: RuleScope::Connection,
        rest: Rest::Ladder,
    },
    Quirk {
        id: "agentrouter-model-access-denied",
        providers: &["agentrouter"],
        statuses: &[403],
        signs: &[Sign::Text(&["无权访问模型"])],
        reason: Reason::AuthError,
        scope: RuleScope::Model,
        rest: Rest::Ms(21_600_000),
    },
    // A firewall in front of the relay that dislikes bursts: the same request
    // passes a moment later, or elsewhere.
    Quirk {
        id: "agentrouter-content-blocked",
        providers: &["agentrouter"],
        statuses: &[400, 403],
        signs: &[Sign::Text(&["content-blocked"])],
        reason: Reason::Unknown,
        scope: RuleScope::Request,
        rest: Rest::None,
    },
    // Its `insufficient_quota` is the minute's tokens of a model, not money.
    Quirk {
        id: "dashscope-plan-window",
        providers: &["dashscope"],
        statuses: &[403, 429],
        signs: &[Sign::Text(&[
            "hour allocated quota",
            "week allocated quota",
            "month allocated quota",
        ])],
        reason: Reason::QuotaExhausted,
        scope: RuleScope::Connection,
        rest: Rest::Ms(3_600_000),
    },
    Quirk {
        id: "dashscope-free-quota",
        providers: &["dashscope"],
        statuses: &[403, 429],
        signs: &[Sign::Text(&["free allocated quota exceeded"])],
        reason: Reason::QuotaExhausted,
        scope: RuleScope::Model,
        rest: Rest::Ms(86_400_000),
    },
    Quirk {
        id: "dashscope-throttled",
        providers: &["dashscope"],
        statuses: &[429],
        signs: &[Sign::Code(&[
            "insufficient_quota",
            "limit_requests",
            "limit_burst_rate",
            "throttling",
            "throttling.allocationquota",
            "throttling.ratequota",
            "throttling.burstrate",
        ])],
        reason: Reason::RateLimitExceeded,
        scope: RuleScope::Model,
        rest: Rest::Ladder,
    },
    // Quotas of models exist, but these speak of the subscription.
    Quirk {
        id: "github-account-rate-limit",
        providers: &["github"],
        statuses: &[429],
        signs: &[Sign::Code(&[
            "rate_limited",
            "user_global_rate_limited",
            "user_weekly_rate_limited",
        ])],
        reason: Reason::RateLimitExceeded,
        scope: RuleScope::Connection,
        rest: Rest::Ladder,
    },
    Quirk {
        id: "github-quota",
        providers: &["github"],
        statuses: &[402, 403, 429],
        signs: &[Sign::Text(&[
            "quota_exceeded",
            "quota exceeded",
            "premium request allowance",
        ])],
        reason: Reason::QuotaExhausted,
        scope: RuleScope::Connection,
        rest: Rest::Ms(3_600_000),
    },
];

/// Whether `rule` is one of [`QUIRKS`].
pub(super) fn is_own(rule: &str) -> bool {
    QUIRKS.iter().any(|quirk| quirk.id == rule)
}

/// The first of [`QUIRKS`] that fits. `full_text` opens the whole text to them.
pub(super) fn matching(case: &Case<'_>, full_text: bool) -> Option<&'static Quirk> {
    let provider = case.error.answer.provider;
    QUIRKS.iter().find(|quirk| {
        quirk.statuses.contains(&case.status)
            && quirk
                .providers
                .iter()
                .any(|id| id.eq_ignore_ascii_case(provider))
            && quirk.signs.iter().all(|sign| shows(case, sign, full_text))
    })
}

fn shows(case: &Case<'_>, sign: &Sign, full_text: bool) -> bool {
    let header = |name: &str| headers::get(case.error.answer.headers, name);
    match sign {
        Sign::Text(texts) => texts.iter().any(|text| {
            full_text && case.text().contains(text)
                || case.facts.words().any(|word| word.contains(text))
        }),
        Sign::Code(codes) => case.facts.words().any(|word| {
            // Some add which plan it was: `code:pro`.
            let code = word.split(':').next().unwrap_or(word);
            codes.contains(&code)
        }),
        Sign::Countdown => countdown(case).is_some(),
        Sign::Zero(names) => names.iter().any(|name| header(name) == Some("0")),
        Sign::ListedZero(name) => header(name).is_some_and(|list| {
            let mut counts = list.split(',').filter_map(|entry| entry.split_once('='));
            counts.any(|(_, count)| count.trim() == "0")
        }),
    }
}

fn countdown(case: &Case<'_>) -> Option<u64> {
    text::countdown(case.text())
}

/// What a row says of the case. A row without signs says no more than the
/// status, which is read with everybody's.
pub(super) fn built_in(case: &Case<'_>) -> Option<Verdict> {
    let reading = case.error.reading;
    let quirk = matching(case, reading.full_text_rules)?;
    let closed = case.status == 403 && !reading.honours_rule_scope;
    if closed || quirk.signs.is_empty() || is_banned(case) {
        return None;
    }
    let honoured = reading.honours_rule_scope;
    let blame = if honoured {
        quirk.scope.blame()
    } else {
        case.limit_blame()
    };
    let cooldown = match quirk.rest {
        Rest::Ladder => Cooldown::Ladder,
        Rest::Ms(ms) => Cooldown::Fixed(ms),
        Rest::Countdown => countdown(case).map_or(Cooldown::Ladder, Cooldown::Fixed),
        Rest::None => Cooldown::None,
    };
    let verdict = if blame == Blame::Request {
        Verdict::request(quirk.id, quirk.reason, true)
    } else {
        Verdict::new(quirk.id, quirk.reason, blame).resting(cooldown)
    };
    Some(with_type(verdict).off_breaker())
}

/// The operator's word goes before every built-in one but a ban.
pub(super) fn operator(case: &Case<'_>) -> Option<Verdict> {
    let fits = |(_, rule): &(usize, &ErrorRule)| {
        rule.status == case.status && !rule.text.is_empty() && case.text().contains(&rule.text)
    };
    let mut rules = case.rules.provider_rules.iter().enumerate();
    let (at, rule) = rules.find(fits)?;
    if is_banned(case) {
        return None;
    }
    let verdict = Verdict {
        nth: Some(at.saturating_add(1)),
        ..Verdict::new(OPERATOR_RULE, rule.reason, rule.scope.blame())
    };
    let verdict = match rule.cooldown_ms {
        Some(ms) => verdict.for_exactly_ms(ms),
        None => verdict,
    };
    Some(with_type(verdict).off_breaker())
}

fn is_banned(case: &Case<'_>) -> bool {
    case.says(families::BANNED) || case.facts.is_any(families::BANNED_WORDS)
}

/// The second classifier's word for a rule's reason; none that is final.
fn with_type(verdict: Verdict) -> Verdict {
    match verdict.reason {
        Reason::QuotaExhausted => verdict.typed(ErrorType::QuotaExhausted),
        Reason::RateLimitExceeded => verdict.typed(ErrorType::RateLimited),
        Reason::ServerError => verdict.typed(ErrorType::ServerError),
        Reason::ModelCapacity
        | Reason::AuthError
        | Reason::NotFound
        | Reason::ServiceNotRunning
        | Reason::Unknown => verdict,
    }
}
