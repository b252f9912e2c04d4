//! Whatever a client writes and a refusal repeats: no account ends, and none rests
//! longer than the status alone would rest it.

use serde_json::{Value, json};

use super::super::tests::{Refusal, message, refused};
use super::super::{families, pattern::Pat};
use crate::asked::Asked;
use crate::failure::{Blame, Cooldown, Failure, Profile, Terminal};

const STATUSES: [u16; 9] = [400, 401, 403, 404, 413, 422, 429, 500, 503];

/// Sentences with a place for what the client wrote.
const TEMPLATES: [&str; 8] = [
    "Invalid value: '{}'. Supported values are: 'system', 'assistant', 'user' and 'tool'.",
    "The model `{}` does not exist or you do not have access to it.",
    "Incorrect role {}; missing is one of: system, user",
    "Unknown parameter: \"{}\"",
    "models/{} is not found for API version v1beta",
    "messages[3]: content \u{201c}{}\u{201d} contains forbidden characters",
    "{}",
    "cannot render the template for: 'Dear Bob,\\n{}, kind reg...",
];

/// A text that a pattern fits.
fn fitting(pattern: Pat) -> String {
    let parts = pattern.parts();
    match pattern {
        Pat::Has(_) | Pat::Word(_) => parts[0].to_owned(),
        Pat::Seq(..) | Pat::Near(..) => parts[..2].join(" "),
        Pat::Seq3(..) => parts.join(" "),
    }
}

fn phrases() -> Vec<String> {
    let patterns = families::all().flat_map(|family| family.patterns().iter().copied());
    let codes = families::ENDING_WORDS.iter().copied().flatten();
    let more = [
        "security token",
        "api key",
        "额度不足",
        "daily free allocation",
        "try again in 20 days",
        "quota resets in 13 days",
        "将在 30 天后重置",
        "please wait for 300 hours before retrying",
    ];
    let mut phrases: Vec<String> = patterns.map(fitting).collect();
    phrases.extend(codes.map(|code| (*code).to_owned()));
    phrases.extend(more.map(str::to_owned));
    phrases
}

/// How long a failure keeps an account or model from being used, and whether for good.
fn weight(failure: &Failure) -> (bool, u64) {
    let nobody = matches!(failure.blame, Blame::Request | Blame::ProtocolQuirk);
    let rest = match failure.cooldown {
        Cooldown::None => 0,
        // Steps of the same ladder.
        Cooldown::Ladder | Cooldown::Streak => 1,
        Cooldown::Fixed(ms) => ms.max(1),
    };
    let announced = failure.hint.as_ref().map_or(0, |hint| hint.wait_ms);
    let rest = if nobody { 0 } else { rest.max(announced) };
    (failure.terminal.is_some(), rest)
}

fn read(refusal: &Refusal, body: &Value) -> Failure {
    let body = body.to_string();
    let asked = Asked::new(body.as_bytes(), []);
    refusal.failure_of(Some(&asked))
}

/// The same status with words that say nothing.
fn bare(refusal: &Refusal) -> Failure {
    let mut bare = refusal.clone();
    bare.body = message("Invalid value: 'zzz'");
    bare.failure()
}

fn request(phrase: &str) -> Value {
    json!({"model": "m", "messages": [{"role": phrase, "content": "x"}]})
}

/// Holds `refusal` of a request that said `phrase` against what its status alone does.
fn check(refusal: &Refusal, (phrase, bare): (&str, (bool, u64))) {
    let got = read(refusal, &request(phrase));
    let (ends, rest) = weight(&got);
    let least = if bare.0 { u64::MAX } else { bare.1 };
    // A model that is not there is a matter of 2 minutes, whatever is asked of it.
    let of_request = matches!(refusal.status, 400 | 413 | 422);
    let least = if got.blame == Blame::Model && !of_request {
        least.max(120_000)
    } else {
        least
    };
    assert!(
        (!ends || bare.0) && rest <= least,
        "{got:#?} for {}",
        refusal.body
    );
}

#[test]
fn no_phrase_of_a_client_harms_an_account() {
    let phrases = phrases();
    let with = |refusal: &Refusal| {
        let bare = weight(&bare(refusal));
        for phrase in &phrases {
            for template in TEMPLATES {
                let body = message(&template.replace("{}", phrase));
                check(
                    &Refusal {
                        body,
                        ..refusal.clone()
                    },
                    (phrase, bare),
                );
            }
        }
    };
    for status in STATUSES {
        for profile in [Profile::ApiKey, Profile::Oauth] {
            with(&refused(status, "").of(profile));
        }
    }
    with(&Refusal {
        in_stream: true,
        ..refused(200, "")
    });
}

#[test]
fn nor_where_the_client_spells_it_otherwise() {
    let ban = "your account has been suspended";
    let text = "Invalid value: 'Your account has been suspended'";
    let nested = json!({"note": ban.replace(' ', "\n")}).to_string();
    let bodies = [
        json!({"model": ban.to_uppercase()}).to_string(),
        r#"{"model": "\u0079our acco\u0075nt has been\tsuspended"}"#.to_owned(),
        json!({"tools": [{"function": {"name": ban}}]}).to_string(),
        json!({"messages": [{"role": "tool", "content": nested}]}).to_string(),
        json!({ban: 1}).to_string(),
    ];
    for body in bodies {
        let asked = Asked::new(body.as_bytes(), []);
        let got = refused(404, &message(text)).failure_of(Some(&asked));
        assert_eq!(got.terminal, None, "{body}");
    }
    let header = Asked::new(b"{}", [&b"x, Your Account has been suspended"[..]]);
    let got = refused(400, &message(text)).failure_of(Some(&header));
    assert_eq!(got.terminal, None);
    assert_eq!(
        refused(400, &message(text)).failure().terminal,
        Some(Terminal::Banned)
    );
}

#[test]
fn parts_that_come_back_apart_are_no_evidence_together() {
    let body =
        json!({"messages": [{"role": "credits"}, {"role": "depleted"}, {"role": "suspended"}]});
    for text in [
        "Invalid roles: 'credits' at 0, 'depleted' at 1",
        "'suspended' is no role; see our page on billing",
    ] {
        let got = read(&refused(400, &message(text)), &body);
        assert_eq!(got.terminal, None, "{text}");
    }
}

#[test]
fn a_field_that_names_a_part_of_the_request_is_no_evidence() {
    for key in [
        "param",
        "parameter",
        "field",
        "loc",
        "location",
        "pointer",
        "path",
    ] {
        let body = json!({"error": {"message": "no", key: "account_deactivated"}}).to_string();
        assert_eq!(refused(400, &body).failure().terminal, None, "{key}");
    }
}

#[test]
fn json_that_the_client_wrote_describes_no_error() {
    let prompt = json!({"error": {"code": "account_deactivated", "status": 401}}).to_string();
    let request = json!({"messages": [{"role": "user", "content": prompt}]});
    for text in [prompt.clone(), format!("{prompt} is not of type 'array'")] {
        let refusal = refused(400, &message(&text));
        assert!(refusal.failure().terminal.is_some(), "{text}");
        assert_eq!(read(&refusal, &request).terminal, None, "{text}");
    }
    let lines = format!("cannot parse\ndata: {prompt}\n");
    assert_eq!(read(&refused(400, &lines), &request).terminal, None);
}

#[test]
fn signals_markers_and_times_need_the_upstreams_own_words() {
    let mut refusal = refused(403, &message("no, 'purple rain' is none"));
    refusal.banned = vec!["purple rain".to_owned()];
    assert_eq!(refusal.failure().terminal, Some(Terminal::Banned));
    assert_eq!(read(&refusal, &request("Purple Rain")).terminal, None);

    let relay = refused(403, &message("unknown role 额度不足")).from("agentrouter");
    assert!(relay.failure().restated.is_some());
    assert!(read(&relay, &request("额度不足")).restated.is_none());

    let text = "Waited 5 times, try again in 20s";
    let got = read(
        &refused(429, &message(text)),
        &request("5 times, try again"),
    );
    assert_eq!(
        got.hint.map(|hint| hint.wait_ms),
        Some(20_000),
        "its own time"
    );
    let text = "Rate limited. Unknown role 'try again in 20 days', try again in 5s";
    let got = read(
        &refused(429, &message(text)),
        &request("try again in 20 days"),
    );
    assert_eq!(got.hint.map(|hint| hint.wait_ms), Some(5_000));
}

/// A genuine refusal stays what it is though the conversation is about such things.
#[test]
fn what_a_conversation_talks_about_hides_no_refusal() {
    let talk = json!({"model": "m", "messages": [{"role": "user", "content":
        "Is insufficient_quota a quota error? My daily quota was exceeded, billing says my \
         account is suspended, the api key is invalid and the limit resets in 3 days."}]});
    let coded = |status, code: &str| {
        let body = json!({"error": {"message": "insufficient_quota", "code": code}}).to_string();
        read(&refused(status, &body), &talk)
    };
    let broke = coded(429, "insufficient_quota");
    assert_eq!(broke.terminal, Some(Terminal::CreditsExhausted));
    assert_eq!(
        coded(400, "account_deactivated").terminal,
        Some(Terminal::Banned)
    );
    for (status, text, rule) in [
        (403, "Your account has been suspended.", "ban-text"),
        (
            400,
            "Your credit balance is too low to access the API.",
            "credits-text",
        ),
        (
            403,
            "Your account is suspended: please settle the open invoice",
            "billing-suspended",
        ),
        (
            429,
            "You have reached your weekly usage limit.",
            "weekly-quota",
        ),
        (
            429,
            "Daily quota of 500 requests exceeded: the daily quota is over",
            "status-429",
        ),
    ] {
        let got = read(&refused(status, &message(text)), &talk);
        assert_eq!(got.rule, rule, "{text}");
    }
    let waits = read(
        &refused(429, &message("Limit reached, resets in 4 days")),
        &talk,
    );
    assert_eq!(waits.hint.map(|hint| hint.wait_ms), Some(345_600_000));
    assert_eq!(waits.reason, crate::failure::Reason::RateLimitExceeded);
}

/// An operator's rule holds for a text that somebody quoted, too, and before a ban.
#[test]
fn an_operators_rule_is_the_remedy() {
    let mut refusal = refused(403, &message("Your account has been suspended"));
    refusal.rules = vec![crate::config::ErrorRule {
        status: 403,
        text: "your account has been suspended".to_owned(),
        scope: crate::failure::RuleScope::Request,
        reason: crate::failure::Reason::Unknown,
        cooldown_ms: None,
    }];
    assert_eq!(refusal.failure().rule, "operator-rule-1");
    assert_eq!(refusal.failure().terminal, None);
}

/// 64 KiB of phrases, all of them the client's, in a body of 8 MiB.
#[test]
fn long_quotes_of_long_bodies_are_read_quickly() {
    let all = phrases().join(", ");
    let text = all.repeat((64_usize << 10).div_ceil(all.len()));
    let body = request(&all.repeat((8_usize << 20).div_ceil(all.len())));
    let body = body.to_string();
    for status in [400, 403, 404, 429, 500] {
        let asked = Asked::new(body.as_bytes(), []);
        let got = refused(status, &message(&text)).failure_of(Some(&asked));
        assert_eq!(got.terminal, None);
    }
}
