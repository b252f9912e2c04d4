//! Failures of the account, its credential or the way to the provider.

use super::decide::{Case, Verdict};
use super::{access, families, pattern, relay};
use crate::failure::{Blame, Cooldown, ErrorType, Reason, Terminal};

/// Rest of a model whose free tier is spent, ms.
const MODEL_FREE_TIER_MS: u64 = 86_400_000;
/// Rest after a cap on spending that begins anew without saying when, ms.
const RENEWING_CAP_MS: u64 = 86_400_000;

/// Rest of a way to the provider that begins in a region it does not serve, ms.
const REGION_MS: u64 = 86_400_000;

/// The rule of machines in front of the provider.
pub(super) const EDGE_REFUSAL: &str = "edge-refusal";

/// 402: the balance is gone, unless the request alone was too dear.
pub(super) fn payment(case: &Case<'_>) -> Option<Verdict> {
    if case.status != 402 {
        return None;
    }
    Some(if affordable(case.text()) {
        too_dear()
    } else {
        out_of_credits("status-402")
    })
}

/// Something is left, only not enough for this request.
const fn too_dear() -> Verdict {
    Verdict::request("request-too-dear", Reason::QuotaExhausted, true)
        .typed(ErrorType::QuotaExhausted)
}

/// Whether a smaller request could have been paid.
fn affordable(text: &str) -> bool {
    families::CAN_AFFORD.iter().any(|before| {
        text.split(before).skip(1).any(|rest| {
            let amount = rest.trim_start_matches(['$', '＄', '¥', '￥']);
            let mut digits = amount
                .chars()
                .take_while(|c| c.is_ascii_digit() || *c == '.');
            digits.any(|c| matches!(c, '1'..='9'))
        })
    })
}

const fn out_of_credits(rule: &'static str) -> Verdict {
    Verdict::end(rule, Reason::QuotaExhausted, Terminal::CreditsExhausted)
        .typed(ErrorType::QuotaExhausted)
}

/// The account is closed, by the provider's words or the operator's signals.
pub(super) fn banned(case: &Case<'_>) -> Option<Verdict> {
    let custom = || {
        let mut signals = case.rules.custom_banned_signals.iter();
        !case.document.html && signals.any(|signal| case.hears(signal))
    };
    let told = case.says(families::BANNED) || case.facts.is_any(families::BANNED_WORDS) || custom();
    told.then(|| {
        Verdict::end("ban-text", Reason::AuthError, Terminal::Banned)
            .typed(ErrorType::AccountDeactivated)
    })
}

/// The machines in front of the provider refuse us: not the account's fault.
pub(super) fn edge(case: &Case<'_>) -> Option<Verdict> {
    let headers = case.error.answer.headers;
    let challenged = crate::hint::headers::get(headers, "cf-mitigated").is_some();
    let page = case.document.html && matches!(case.status, 403 | 405 | 406 | 451);
    let is = |text: &str| case.status == 403 && case.text().starts_with(text);
    let hopeless = case.status == 403 && case.facts.edge_refusal || is("error code: 1010");
    let verdict = Verdict::new(EDGE_REFUSAL, Reason::AuthError, Blame::Provider)
        .typed(ErrorType::FingerprintRejection);
    if challenged || page {
        return Some(verdict);
    }
    if hopeless {
        // It is about this request's looks; another client's may pass at once.
        return Some(verdict.resting(Cooldown::None));
    }
    let kept_out = case.status == 403 && case.says(families::NETWORK);
    (kept_out || is("error code: 10")).then_some(verdict)
}

/// Our address is in a region that the provider does not serve. A 400 may be about a
/// place that the request names, so there a code has to say it; and a sentence alone
/// rests nobody for a day.
pub(super) fn region(case: &Case<'_>) -> Option<Verdict> {
    let told = || case.says(families::GEO);
    let coded = case.facts.is_any(families::GEO_WORDS)
        || case.facts.is_any(&["failed_precondition"]) && told();
    let here = match case.status {
        400 => coded,
        403 | 451 => coded || told(),
        _ => false,
    };
    let verdict = Verdict::new("region-refused", Reason::Unknown, Blame::Provider)
        .typed(ErrorType::GeoBlocked);
    here.then(|| {
        if coded {
            verdict.for_ms(REGION_MS)
        } else {
            verdict
        }
    })
}

/// The account lets in other addresses than ours: from elsewhere it works.
pub(super) fn address(case: &Case<'_>) -> Option<Verdict> {
    let refused = matches!(case.status, 401 | 403)
        && (case.says(families::ADDRESS) || case.facts.is_any(families::ADDRESS_WORDS));
    refused.then(|| {
        Verdict::new("address-refused", Reason::Unknown, Blame::Connection)
            .typed(ErrorType::RequestRejected)
    })
}

/// The provider serves other programs only. Sounds like a ban, and passes: the
/// account is fine, and an operator decides what to send.
pub(super) fn client_refused(case: &Case<'_>) -> Option<Verdict> {
    let quota = || case.says(families::SUBSCRIPTION) || case.says(families::QUOTA);
    let refused = matches!(case.status, 400 | 401 | 403)
        && (case.says(families::CLIENT_REFUSED) || case.facts.is_any(families::CLIENT_WORDS))
        && !quota();
    refused.then(|| {
        Verdict::new("client-refused", Reason::Unknown, Blame::Connection)
            .typed(ErrorType::RequestRejected)
    })
}

/// The text says that the money is gone. On a 429 of an API key it has to say
/// so beyond doubt, since relays pass on the troubles of their own accounts.
pub(super) fn credits(case: &Case<'_>) -> Option<Verdict> {
    if case.says(families::BILLING_SUSPENSION) {
        return Some(out_of_credits("billing-suspended"));
    }
    if let Some(verdict) = relay::broke_behind(case) {
        return Some(verdict);
    }
    if case.says(families::EXTRA_USAGE_SPENT) && !case.announced {
        return Some(out_of_credits("extra-usage-spent"));
    }
    if case.error.per_model_quota && case.says(families::MODEL_FREE_TIER) {
        return Some(
            Verdict::new("model-free-tier", Reason::QuotaExhausted, Blame::Model)
                .typed(ErrorType::QuotaExhausted)
                .for_ms(MODEL_FREE_TIER_MS),
        );
    }
    if case.announced && case.says(families::SUBSCRIPTION) {
        // The plan's window ends; that nothing was bought on top of it is no matter.
        return None;
    }
    let told = case.says(families::MONEY) || case.says(families::CREDITS) && believed(case);
    // A rule that put the status right knows the provider's codes better.
    let coded = case.facts.is_any(families::CREDITS_WORDS) && !case.restated;
    let capped = case.says(families::SPENDING_CAP);
    if !(told || coded || capped) {
        return None;
    }
    if affordable(case.text()) {
        return Some(too_dear());
    }
    if capped && (case.announced || case.says(families::RENEWING_CAP)) {
        // It begins anew, so nobody has to act.
        let verdict = Verdict::new("spending-cap", Reason::QuotaExhausted, Blame::Connection);
        let verdict = verdict.typed(ErrorType::QuotaExhausted);
        return Some(verdict.for_ms(RENEWING_CAP_MS));
    }
    Some(out_of_credits("credits-text"))
}

/// Whether a text about a quota may be believed.
pub(super) fn believed(case: &Case<'_>) -> bool {
    case.status != 429
        || case.error.answer.provider.is_empty()
        || case.is_oauth()
        || case.says(families::LONG_QUOTA)
        || case.facts.is_any(families::LONG_QUOTA_WORDS)
        || case.says(families::SUBSCRIPTION) && says_only_limit(case.text())
}

fn says_only_limit(text: &str) -> bool {
    text.lines()
        .any(|line| line.trim_matches(['.', ' ']) == "usage limit reached")
}

/// 401, and keys refused under another name.
pub(super) fn unauthorized(case: &Case<'_>) -> Option<Verdict> {
    let coded = matches!(case.status, 400 | 403) && case.facts.is_any(families::CREDENTIAL_WORDS);
    let told = matches!(case.status, 400 | 403) && case.says(families::KEY_REFUSED);
    let revoked = case.status == 403 && case.is_oauth() && case.says(families::TOKEN_REVOKED);
    if case.status != 401 && !coded && !told && !revoked {
        return None;
    }
    // Milder than the status: from here on it needs no evidence.
    if case.mentions(families::MODEL_NOT_SUPPORTED)
        || case.facts.is_any(families::MODEL_NOT_SUPPORTED_WORDS)
    {
        return Some(Verdict {
            rule: "model-not-supported",
            ..access::no_model(case, Reason::NotFound)
        });
    }
    let stale = case.is_oauth() && case.mentions(families::TOKEN_EXPIRED);
    if stale || revoked || case.mentions(families::OAUTH_TOKEN) {
        // A refresh may mend it. Where none can, the ladder keeps it from being tried every time.
        return Some(
            Verdict::new("oauth-token", Reason::AuthError, Blame::Connection)
                .typed(ErrorType::OauthInvalidToken),
        );
    }
    Some(
        Verdict::end("unauthorized", Reason::AuthError, Terminal::Expired)
            .typed(ErrorType::Unauthorized),
    )
}

/// 403 in its many meanings.
pub(super) fn forbidden(case: &Case<'_>) -> Option<Verdict> {
    if case.status != 403 {
        return None;
    }
    let on_account = |rule, reason| Verdict::new(rule, reason, Blame::Connection);
    // A subscription's bare 403 is the worst of all, an API key's the mildest.
    let says = |family| {
        if case.is_oauth() {
            case.mentions(family)
        } else {
            case.says(family)
        }
    };
    if case.signs.any(families::ROUTE) {
        return Some(Verdict::request(
            "route-not-authorized",
            Reason::Unknown,
            false,
        ));
    }
    if case.mentions(families::MAY_NOT_EXIST) && access::names_missing(case) {
        // A file of another account, say: the key is fine.
        return Some(Verdict::request("resource-missing", Reason::Unknown, false));
    }
    if case.says(families::PROJECT_OFF) || case.facts.is_any(families::PROJECT_OFF_WORDS) {
        // Somebody has to switch it on; no time does.
        return Some(
            Verdict::end("project-off", Reason::AuthError, Terminal::Expired)
                .typed(ErrorType::ProjectRouteError),
        );
    }
    if says(families::PROJECT) || case.facts.is_any(families::PROJECT_WORDS) {
        let verdict = on_account("project-route", Reason::AuthError);
        return Some(verdict.typed(ErrorType::ProjectRouteError));
    }
    let no_model = case.facts.is_any(families::MODEL_ACCESS_WORDS)
        || (says(families::MODEL_ACCESS) || access::names_model(case))
            && !says(families::CREDENTIAL);
    if no_model {
        return Some(access::no_model(case, Reason::AuthError));
    }
    if says(families::QUOTA) {
        let verdict = on_account("quota-text", Reason::QuotaExhausted);
        return Some(verdict.typed(ErrorType::QuotaExhausted));
    }
    if says(families::RATE_LIMIT) {
        let verdict = on_account("rate-limit-text", Reason::RateLimitExceeded);
        return Some(verdict.typed(ErrorType::RateLimited));
    }
    if !case.is_oauth() {
        // An API key may lack a right for this one call; the ladder is enough.
        return Some(on_account("status-403", Reason::AuthError));
    }
    if says(families::NOT_ALLOWED) {
        return Some(
            on_account("request-not-allowed", Reason::RateLimitExceeded)
                .typed(ErrorType::RequestRejected)
                .resting(Cooldown::Streak),
        );
    }
    if unexplained(case) {
        // A machine in between refuses so as well, for a minute: only what goes on is a ban.
        return Some(
            on_account("bare-403", Reason::AuthError)
                .typed(ErrorType::RequestRejected)
                .resting(Cooldown::Streak),
        );
    }
    let rule = if says(families::SENTINEL) {
        "sentinel"
    } else {
        "status-403"
    };
    Some(Verdict::end(rule, Reason::AuthError, Terminal::Banned).typed(ErrorType::Forbidden))
}

/// Words of which refusals are made that give no reason.
const BARE: &[&str] = &[
    "403",
    "http",
    "https",
    "error",
    "status",
    "code",
    "forbidden",
    "access",
    "denied",
    "permission",
    "permissions",
    "is",
    "was",
    "has",
    "been",
    "to",
    "the",
    "this",
    "on",
    "you",
    "your",
    "do",
    "does",
    "don",
    "t",
    "not",
    "have",
    "resource",
    "request",
    "server",
    "page",
    "url",
    "a",
    "an",
    "for",
    "client",
    "result",
    "type",
    "api",
    "reason",
    "unknown",
];

/// Codes and types that say no more than the status.
const BARE_WORDS: &[&str] = &[
    "403",
    "forbidden",
    "access_denied",
    "accessdenied",
    "permission_error",
    "permission_denied",
    "permissiondenied",
    "http_error",
    "error",
    "api_error",
    "request_forbidden",
    "unknown",
    "unknown_error",
    "none",
    "about:blank",
];

/// Characters between an address and the list that it is not on.
const ADDRESS_GAP: usize = 40;

/// Whether a 403 says nothing of the account: nothing at all, the status in
/// words, or that our address is not on a list.
fn unexplained(case: &Case<'_>) -> bool {
    let message = case.facts.message.as_deref().map(str::to_lowercase);
    let told = match &message {
        Some(message) => message.as_str(),
        None if case.document.layers.is_empty() => case.text(),
        None => "",
    };
    let coded = case.facts.words().any(|word| !BARE_WORDS.contains(&word));
    let mut words = told.split(|c: char| !c.is_alphanumeric());
    let bare = !coded && words.all(|word| word.is_empty() || BARE.contains(&word));
    bare || of_address(told) || lacks_access(told)
}

fn of_address(told: &str) -> bool {
    const LISTS: [&str; 3] = ["address", "allow", "whitelist"];
    let named = |list: &&str| pattern::word_near(told, "ip", list, ADDRESS_GAP);
    LISTS.iter().any(named)
}

/// A right that is missing, of which nobody says that it was taken away.
fn lacks_access(told: &str) -> bool {
    [
        "does not have access to",
        "do not have access to",
        "don't have access to",
    ]
    .iter()
    .any(|words| told.contains(words))
}
