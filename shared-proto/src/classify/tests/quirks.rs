//! The vectors PER-* and RST-*: rules of single providers, the operator's rules.

use super::super::decide::Case;
use super::super::facts::Facts;
use super::super::pattern::Signs;
use super::super::quirk::{self, Rest};
use super::super::{ClassifyRules, UpstreamError};
use super::{Refusal, message, refused};
use crate::config::ErrorRule;
use crate::failure::{Blame, Cooldown, Reason, RuleScope, Terminal};
use crate::hint::document::Document;
use crate::hint::tests::BOUNDS;

/// The row that fits, with the whole text open to it.
fn row(refusal: &Refusal) -> Option<&'static quirk::Quirk> {
    let rules = ClassifyRules {
        hint_bounds: &BOUNDS,
        custom_banned_signals: &[],
        provider_rules: &[],
        restate: &[],
    };
    let error: UpstreamError<'_> = refusal.error(None);
    let document = Document::read(&error.answer);
    let facts = Facts::read(&document);
    let signs = Signs::of(&document.text);
    let echo = super::super::echo::Echo::new(&document.text, (None, None), &facts);
    let case = Case {
        echo: &echo,
        status: refusal.status,
        error: &error,
        document: &document,
        facts: &facts,
        signs: &signs,
        rules: &rules,
        restated: false,
        announced: false,
        now: refusal.now,
    };
    quirk::matching(&case, true)
}

#[test]
fn per_05_a_month_that_counts_down() {
    let text = "Monthly usage limit reached. Resets in 13 days.";
    let refusal = refused(429, text).from("opencode");
    let found = row(&refusal).unwrap();
    assert_eq!(found.id, "opencode-monthly-quota-resets-in");
    assert_eq!(
        (found.reason, found.scope, found.rest),
        (
            Reason::QuotaExhausted,
            RuleScope::Connection,
            Rest::Countdown
        )
    );
    assert_eq!(
        crate::hint::text::countdown(&text.to_lowercase()),
        Some(1_123_200_000)
    );
    for text in ["monthly usage limit reached", "resets in 13 days"] {
        assert!(row(&refused(429, text).from("opencode")).is_none());
    }
}

#[test]
fn per_06_07_quotas_by_model() {
    let listed = |list: &str| {
        row(&refused(429, "")
            .from("minimax")
            .header("x-model-quota-remaining", list))
    };
    let found = listed("haiku=0,sonnet=42").unwrap();
    assert_eq!(
        (found.reason, found.scope),
        (Reason::QuotaExhausted, RuleScope::Model)
    );
    assert!(listed("haiku=7,sonnet=42").is_none());
    assert!(listed("haiku=10, sonnet= 0").is_some());
    assert!(listed("").is_none());
}

#[test]
fn per_09_openrouter_402() {
    let found = row(&refused(402, "").from("openrouter")).unwrap();
    assert_eq!(
        (found.reason, found.scope, found.rest),
        (
            Reason::QuotaExhausted,
            RuleScope::Connection,
            Rest::Ms(120_000)
        )
    );
    assert!(row(&refused(402, "").from("groq")).is_none());
}

#[test]
fn per_01_02_a_renewing_quota_of_the_account() {
    for status in [400, 403, 429] {
        let got = refused(status, &message("用户额度不足"))
            .from("agentrouter")
            .per_model()
            .failure();
        assert_eq!(
            (got.reason, got.blame, got.cooldown, got.terminal),
            (
                Reason::QuotaExhausted,
                Blame::Connection,
                Cooldown::Ladder,
                None
            ),
            "{status}"
        );
        assert_eq!(got.rule, "agentrouter-user-quota-exhausted");
    }
}

#[test]
fn per_03_a_model_that_the_account_may_not_use() {
    let got = refused(403, &message("无权访问模型 x"))
        .from("agentrouter")
        .per_model()
        .failure();
    assert_eq!(
        (got.reason, got.blame, got.cooldown),
        (Reason::AuthError, Blame::Model, Cooldown::Fixed(21_600_000))
    );
    // RST-03: not restated, since the model is what is refused.
    let got = refused(403, &message("额度不足 无权访问模型"))
        .from("agentrouter")
        .failure();
    assert_eq!((got.status, got.restated), (403, None));
}

fn rule(status: u16, text: &str, scope: RuleScope, cooldown_ms: Option<u64>) -> ErrorRule {
    ErrorRule {
        status,
        text: text.to_owned(),
        scope,
        reason: Reason::QuotaExhausted,
        cooldown_ms,
    }
}

impl Refusal {
    fn ruled(mut self, rule: ErrorRule) -> Self {
        self.rules.push(rule);
        self
    }
}

#[test]
fn per_10_11_13_the_operators_word_goes_first() {
    let withdrawn = || rule(404, "model withdrawn", RuleScope::Model, None);
    let got = refused(404, "Error: Model Withdrawn upstream")
        .ruled(withdrawn())
        .failure();
    assert_eq!(
        (got.rule.as_str(), got.blame, got.reason),
        ("operator-rule-1", Blame::Model, Reason::QuotaExhausted),
        "PER-10"
    );
    let got = refused(500, "Error: Model Withdrawn upstream")
        .ruled(withdrawn())
        .failure();
    assert!(!got.rule.starts_with("operator-rule"), "PER-13");
    let got = refused(402, "credits gone")
        .from("openrouter")
        .ruled(rule(402, "credits", RuleScope::Model, None))
        .failure();
    assert_eq!(
        (got.rule.as_str(), got.blame, got.terminal),
        ("operator-rule-1", Blame::Model, None),
        "PER-11"
    );
}

#[test]
fn per_17_18_operators_rules_reach_a_400_and_a_422() {
    for status in [400, 422] {
        let got = refused(status, "Requested model x is not supported")
            .ruled(rule(
                status,
                "not supported",
                RuleScope::Provider,
                Some(21_600_000),
            ))
            .failure();
        assert_eq!(
            (got.fallback, got.reason, got.blame, got.cooldown),
            (
                true,
                Reason::QuotaExhausted,
                Blame::Provider,
                Cooldown::Fixed(21_600_000)
            ),
            "PER-17"
        );
        let got = refused(status, "rate limit: burst")
            .ruled(rule(status, "burst", RuleScope::Connection, None))
            .failure();
        assert_eq!(got.rule, "operator-rule-1", "PER-18");
    }
}

#[test]
fn an_operators_time_holds_whatever_is_announced() {
    let told = |cooldown_ms| {
        refused(429, "burst")
            .header("retry-after", "5")
            .ruled(rule(429, "burst", RuleScope::Connection, cooldown_ms))
            .failure()
            .cooldown
    };
    assert_eq!(told(Some(9_000)), Cooldown::Fixed(9_000));
    assert_eq!(told(None), Cooldown::Ladder);
}

/// What a provider's row says gives way to what is final; an operator's rule is
/// the remedy for what is wrongly taken for final.
#[test]
fn per_22_what_is_final_is_never_a_rows() {
    let got = refused(429, &message("额度不足. account has been disabled"))
        .from("agentrouter")
        .failure();
    assert_eq!(got.terminal, Some(Terminal::Banned));
    let suspended = refused(429, "your account has been suspended: burst");
    assert_eq!(suspended.failure().terminal, Some(Terminal::Banned));
    let got = suspended
        .ruled(rule(429, "burst", RuleScope::Connection, Some(1)))
        .failure();
    assert_eq!((got.terminal, got.rule.as_str()), (None, "operator-rule-1"));
}

/// Rows see the code and type of providers whose text is closed to them.
#[test]
fn a_closed_text_hides_sentences_not_codes() {
    let coded = r#"{"error":{"code":"plan_limit_reached","message":"no"}}"#;
    let got = refused(429, coded).from("opencode").per_model().failure();
    assert_eq!(got.rule, "opencode-quota-exhausted-body");
    assert_eq!(got.blame, Blame::Model, "its scope is not honoured");
    let told = refused(429, &message("plan_limit_reached"))
        .from("opencode")
        .failure();
    assert_ne!(told.rule, "opencode-quota-exhausted-body");
    let zero = refused(429, "")
        .from("opencode-go")
        .header("x-ratelimit-remaining-requests", "0")
        .failure();
    assert_eq!(zero.reason, Reason::QuotaExhausted);
}

#[test]
fn a_subscriptions_limit_is_the_accounts_where_models_have_their_own() {
    let told = |code: &str| {
        let body = serde_json::json!({"error": {"message": "rate limit exceeded", "code": code}});
        let got = refused(429, &body.to_string())
            .from("github")
            .per_model()
            .failure();
        got.blame
    };
    assert_eq!(told("rate_limited"), Blame::Connection);
    assert_eq!(told("user_global_rate_limited:pro"), Blame::Connection);
    assert_eq!(told("user_model_rate_limited"), Blame::Model);
}
