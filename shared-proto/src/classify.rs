//! What a failure means: whose fault it is, whether another target may try,
//! and how long who is to be left alone.
//!
//! [`classify`] reads an upstream's refusal, [`transport_failure`] and
//! [`stream_failure`] name the failures that have no answer to read. All three
//! are pure and total: any bytes give a [`Failure`].
//!
//! The order of a refusal's reading:
//! 1. an error told inside a 200 gets the status it stands for (`status`);
//! 2. the status is put right ([`crate::restate`]);
//! 3. the first step of `decide` that knows the failure gives the verdict;
//! 4. the announced reset is fitted to it ([`crate::hint`]).

use crate::asked::Asked;
use crate::clock::Millis;
use crate::config::{DailyReset, ErrorRule, HintBounds, Reading};
use crate::failure::{Cooldown, Failure, Profile, ResetHint};
use crate::hint::document::Document;
use crate::hint::{self, Answer};
use crate::restate::{self, RestateRule};

mod access;
mod account;
mod decide;
mod echo;
mod facts;
mod families;
mod limits;
mod message;
mod pattern;
mod quirk;
mod relay;
mod request;
mod spans;
mod status;
mod transport;

use decide::{Announced, Case, Verdict};
use echo::Echo;
use facts::Facts;
use pattern::Signs;

pub use transport::{BadAnswer, TransportFailure, stream_failure, transport_failure};

/// A refusal and what is known about where it came from.
#[derive(Clone, Copy, Debug)]
pub struct UpstreamError<'a> {
    /// What came in.
    pub answer: Answer<'a>,
    /// Which numbers apply to the connection.
    pub profile: Profile,
    /// Whether the provider's quotas are per model rather than per account.
    pub per_model_quota: bool,
    /// What else the catalogue knows of its refusals.
    pub reading: Reading,
    /// When a day's quota begins anew; `None` is midnight in UTC.
    pub daily_reset: Option<&'a DailyReset>,
    /// The model that was asked for, if any.
    pub model: Option<&'a str>,
    /// Whether the error came inside a stream that had begun well.
    pub in_stream: bool,
    /// What the client sent, which is no evidence; `None` where no client did.
    pub asked: Option<&'a Asked<'a>>,
}

/// What an operator can say about classification.
#[derive(Clone, Copy, Debug)]
pub struct ClassifyRules<'a> {
    /// Bounds of announced resets.
    pub hint_bounds: &'a HintBounds,
    /// Extra texts that mean a ban, lowercased.
    pub custom_banned_signals: &'a [String],
    /// The operator's rules of this provider.
    pub provider_rules: &'a [ErrorRule],
    /// Rules that put statuses right, operators' first.
    pub restate: &'a [RestateRule],
}

/// Reads a refusal.
pub fn classify(error: &UpstreamError<'_>, rules: &ClassifyRules<'_>, now: Millis) -> Failure {
    let says = |phrase: &str| error.asked.is_some_and(|asked| asked.says(phrase));
    let document = match error.asked {
        Some(_) => Document::read_apart(&error.answer, &says),
        None => Document::read(&error.answer),
    };
    let facts = Facts::read(&document);
    let signs = Signs::of(&document.text);
    let request = (error.asked, error.model);
    let echo = Echo::new(&document.text, request, &facts);
    let told = error.answer.status;
    // A redirect or an upgrade is no error told inside a success.
    let sent = if error.in_stream || (200..300).contains(&told) {
        status::stands_for(&signs, &facts, &echo)
    } else {
        told
    };
    let restated = restate::restate_heard(
        rules.restate,
        (error.answer.provider, sent),
        |marker| echo.hears(marker),
        None,
    );
    let status = restated.as_ref().map_or(sent, |r| r.status);

    // Headers of a 200 are gauges, so an error inside one keeps that status for them.
    let answer = Answer {
        status: if told < 400 { told } else { status },
        ..error.answer
    };
    let announced = hint::announcement(&answer, &document, now);
    let case = Case {
        status,
        error,
        document: &document,
        facts: &facts,
        signs: &signs,
        echo: &echo,
        rules,
        restated: restated.is_some(),
        announced: announced.is_some(),
        now,
    };
    let raw = document.raw.as_deref().map(Document::of_text);
    let behind = raw
        .as_ref()
        .map(|raw| (raw, Facts::read(raw), Signs::of(&raw.text)));
    let behind_echo = behind
        .as_ref()
        .map(|(document, facts, _)| Echo::new(&document.text, request, facts));
    let behind_case = behind.as_ref().zip(behind_echo.as_ref());
    let behind_case = behind_case.map(|((document, facts, signs), echo)| Case {
        document,
        facts,
        signs,
        echo,
        ..case
    });
    let verdict = decide::decide(&case, behind_case.as_ref());
    let inner = behind
        .as_ref()
        .map(|(document, facts, _)| (*document, facts));
    let message = message(&case, inner, verdict.rule);
    let failure = failure(&case, &verdict, announced, message);
    Failure {
        client_retry_after_ms: failure
            .client_retry_after_ms
            .or_else(|| restated.as_ref()?.retry_after_ms),
        restated: restated.map(|r| (r.rule.to_owned(), r.from_status)),
        ..failure
    }
}

/// The refusal in words, which a relay's upstream may have said.
fn message(case: &Case<'_>, behind: Option<(&Document, &Facts)>, rule: &str) -> String {
    let to = hint::headers::get(case.error.answer.headers, "location");
    let told = behind.filter(|(_, facts)| facts.message.is_some());
    let (document, facts) = told.unwrap_or((case.document, case.facts));
    let message = message::compose(case.status, document, facts, to);
    if rule == account::EDGE_REFUSAL && message == message::unexplained(case.status) {
        message::blocked(case.status)
    } else {
        message
    }
}

/// Whether `rule` says itself what a refusal is charged to: an operator's, or
/// a provider's where `reading` honours it.
pub fn names_scope(rule: &str, reading: Reading) -> bool {
    is_operators(rule) || reading.honours_rule_scope && quirk::is_own(rule)
}

/// Whether `rule` is one that an operator wrote.
pub fn is_operators(rule: &str) -> bool {
    rule.starts_with(quirk::OPERATOR_RULE)
}

/// Whether a failure ends a connection for what a sentence says, under a status
/// that speaks of the request; its code, if there is one, does not say so.
pub fn ends_by_text(failure: &Failure) -> bool {
    let code = failure.upstream_code.as_deref().map(str::to_lowercase);
    let coded = code.as_deref().is_some_and(|code| {
        let mut lists = families::ENDING_WORDS.iter();
        lists.any(|words| words.contains(&code))
    });
    failure.terminal.is_some() && matches!(failure.status, 400 | 404 | 413 | 422) && !coded
}

/// The verdict, with the announcement as far as it means something.
fn failure(
    case: &Case<'_>,
    verdict: &Verdict,
    announced: Option<ResetHint>,
    message: String,
) -> Failure {
    let hint = announced
        .filter(|_| verdict.heals() && verdict.announced != Announced::Meaningless)
        .and_then(|hint| hint::bounded(hint, verdict.reason, case.rules.hint_bounds));
    let better = hint.is_some() && verdict.announced == Announced::Better;
    let cooldown = match verdict.cooldown {
        // The announced time is better than a guess, and the ladder is what it may replace.
        Cooldown::Fixed(_) if better => Cooldown::Ladder,
        other @ (Cooldown::None | Cooldown::Ladder | Cooldown::Fixed(_) | Cooldown::Streak) => {
            other
        }
    };
    Failure {
        status: case.status,
        reason: verdict.reason,
        blame: verdict.blame,
        error_type: verdict.error_type,
        fallback: verdict.fallback,
        terminal: verdict.terminal,
        cooldown,
        client_retry_after_ms: hint.as_ref().map(|hint| hint.wait_ms),
        counts_for_breaker: counts_for_breaker(case, verdict),
        rule: verdict.nth.map_or_else(
            || verdict.rule.to_owned(),
            |nth| format!("{}-{nth}", verdict.rule),
        ),
        restated: None,
        upstream_code: case.facts.upstream_code(),
        message,
        hint,
    }
}

fn counts_for_breaker(case: &Case<'_>, verdict: &Verdict) -> bool {
    status::COUNTED.contains(&case.status)
        && verdict.breaker
        // An account that is out of use says nothing of its provider.
        && verdict.terminal.is_none()
        && !case.facts.is_any(families::NOT_BREAKER_WORDS)
        && !case.signs.any(families::LOCAL_LIFECYCLE)
}

#[cfg(test)]
mod tests;
