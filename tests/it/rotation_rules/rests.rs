//! What rests once a request moved on, and for how long: refused requests where
//! an operator lets them rotate, limits without an announcement, and nothing at
//! all. What is final, and what an operator's rule says, goes before the gate.

use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::{Node, Setup};
use cluster_tests::reply::{Finish, Reply};
use cluster_tests::upstream::Upstream;
use serde_json::{Value, json};

use super::{
    CLASSES, Knob, LADDER_MS, MASTER, WAYS, Way, ask, expect_untouched, moves, moves_and_rests, on,
    pair, reset, reset_seconds, start, stays, threshold, with_variables,
};

/// Whether nothing rests where no reset was announced.
const TAG: &str = "OMNIROUTE_ROTATION_DISABLE_TAG_WITHOUT_RESET";

fn refused() -> Reply {
    Reply::error(400, "the colour must be green")
}

/// It rests for so long, s, give or take what a busy machine takes.
fn expect_rest(a: &Value, seconds: u64, what: &str) {
    let left = a["cooldownRemainingMs"].as_u64().unwrap_or(0);
    let most = seconds * 1000;
    let least = most.saturating_sub(8_000);
    assert!((least..=most).contains(&left), "{what}: {left} ms: {a}");
}

#[tokio::test]
async fn a_refused_request_rests_two_minutes_or_as_told() {
    for way in WAYS {
        for (more, seconds) in [(None, 120), (Some(reset_seconds(45)), 45)] {
            let upstream = Upstream::start().await;
            let knobs: Vec<Knob> = [on("400", true)].into_iter().chain(more).collect();
            let node = start(&upstream, way, &knobs).await;
            upstream.script("a", [refused()]);
            let what = format!("{way:?}, {seconds} s");
            let a = moves_and_rests(&node, &upstream, &what).await;
            expect_rest(&a, seconds, &what);
        }
    }
}

/// Class 400 is 400, and off it changes nothing of what a 400 means.
#[tokio::test]
async fn other_refusals_of_a_request_are_no_class_of_it() {
    let upstream = Upstream::start().await;
    let node = start(&upstream, Way::Variable, &[on("400", true)]).await;
    upstream.script("a", [Reply::error(422, "the colour must be green")]);
    let answer = stays(&node, &upstream, "422").await;
    assert!(matches!(answer.status, 400 | 422), "{}", answer.text());

    let limited = Reply::error(400, "too many requests, slow down");
    for knobs in [vec![], vec![on("400", false)]] {
        let upstream = Upstream::start().await;
        let node = start(&upstream, Way::Variable, &knobs).await;
        upstream.script("a", [limited.clone()]);
        moves_and_rests(&node, &upstream, &format!("{knobs:?}")).await;
    }
}

#[tokio::test]
async fn a_limit_without_an_announcement_rests_as_told() {
    for way in WAYS {
        let upstream = Upstream::start().await;
        let node = start(&upstream, way, &[reset_seconds(45)]).await;
        let cases = [
            // No ladder: twice the same, and the level as with an announcement.
            (Reply::error(429, "slow down"), 45, 0),
            (Reply::error(429, "slow down"), 45, 0),
            // What was announced is believed.
            (Reply::limited(600), 600, 0),
            // Not a limit.
            (Reply::error(503, "down"), LADDER_MS / 1000, 1),
        ];
        for (reply, seconds, level) in cases {
            let what = format!("{way:?}, {seconds} s: {reply:?}");
            upstream.script("a", [reply]);
            let a = moves_and_rests(&node, &upstream, &what).await;
            expect_rest(&a, seconds, &what);
            assert_eq!(a["backoffLevel"], level, "{what}: {a}");
            reset(&node, "a").await;
        }
    }
}

#[tokio::test]
async fn a_connection_may_take_the_ladder_back() {
    let upstream = Upstream::start().await;
    let config = pair(&upstream, &super::overrides(&[reset_seconds(0)]));
    let setup = with_variables(Setup::with(&config), &[reset_seconds(600)]);
    let node = setup.start().await;
    upstream.script("a", [Reply::error(429, "slow down")]);
    let a = moves_and_rests(&node, &upstream, "the ladder").await;
    expect_rest(&a, LADDER_MS / 1000, "the ladder");
    assert_eq!(a["backoffLevel"], 1, "{a}");
}

async fn untagged(upstream: &Upstream, knobs: &[Knob]) -> Node {
    let setup = Setup::with(&pair(upstream, &json!({}))).env(TAG, "false");
    with_variables(setup, knobs).start().await
}

#[tokio::test]
async fn without_an_announcement_nothing_may_rest() {
    let upstream = Upstream::start().await;
    let node = untagged(&upstream, &[]).await;
    let replies = [
        Reply::error(429, "slow down"),
        Reply::error(500, "boom"),
        Reply::error(502, "boom"),
        Reply::error(503, "boom"),
        Reply::nothing(Finish::Reset),
    ];
    for reply in replies {
        let what = format!("{reply:?}");
        upstream.script("a", [reply]);
        for _ in 0..2 {
            let a = moves(&node, &upstream, &what).await;
            expect_untouched(&a, &what);
        }
    }
    // What was announced is believed.
    upstream.script("a", [Reply::limited(600)]);
    let a = moves_and_rests(&node, &upstream, "announced").await;
    expect_rest(&a, 600, "announced");
}

#[tokio::test]
async fn a_told_reset_is_as_good_as_an_announced_one() {
    let upstream = Upstream::start().await;
    let node = untagged(&upstream, &[reset_seconds(45)]).await;
    upstream.script("a", [Reply::error(429, "slow down")]);
    let a = moves_and_rests(&node, &upstream, "told").await;
    expect_rest(&a, 45, "told");
}

/// Neither a switch nor a threshold holds back what is final.
#[tokio::test]
async fn what_is_final_goes_before_the_gate() {
    let json = |status, code: &str, words: &str| {
        let error = json!({"error": {"message": words, "type": code, "code": code}});
        Reply::json(status, &error)
    };
    let suspended = "Your account has been suspended";
    let ends = [
        (Reply::error(401, "invalid api key"), "expired"),
        (Reply::error(402, "payment required"), "credits_exhausted"),
        (Reply::error(403, suspended), "banned"),
        (Reply::error(500, suspended), "banned"),
        (Reply::error(429, suspended), "banned"),
        (Reply::error(400, suspended), "banned"),
        (
            json(429, "insufficient_quota", "You exceeded your current quota"),
            "credits_exhausted",
        ),
    ];
    let upstream = Upstream::start().await;
    let all_off: Vec<Knob> = CLASSES.iter().map(|class| on(class, false)).collect();
    let patient: Vec<Knob> = CLASSES.iter().map(|class| threshold(class, 100)).collect();
    let base = || Setup::with(&pair(&upstream, &json!({})));
    for (gate, setup) in [
        ("none", base()),
        ("off", base().env(MASTER, "false")),
        ("classes off", with_variables(base(), &all_off)),
        ("patient", with_variables(base(), &patient)),
    ] {
        let node = setup.start().await;
        for (reply, end) in &ends {
            let what = format!("gate {gate}: {reply:?}");
            upstream.script("a", [reply.clone()]);
            let a = moves(&node, &upstream, &what).await;
            assert_eq!(a["connectionStatus"], "terminal", "{what}: {a}");
            assert_eq!(a["testStatus"], *end, "{what}: {a}");
            reset(&node, "a").await;
        }
    }
}

/// Nor does it decide what a plain 403 or 404 means.
#[tokio::test]
async fn other_statuses_are_none_of_its_business() {
    let upstream = Upstream::start().await;
    let setup = Setup::with(&pair(&upstream, &json!({}))).env(MASTER, "false");
    let node = setup.start().await;
    for status in [403, 408] {
        let what = status.to_string();
        upstream.script("a", [Reply::error(status, "no")]);
        moves_and_rests(&node, &upstream, &what).await;
        reset(&node, "a").await;
    }
}

/// A local service says by a header that it is being started.
#[tokio::test]
async fn a_service_that_is_being_started_goes_before_the_gate() {
    let upstream = Upstream::start().await;
    let node = start(&upstream, Way::Variable, &[on("500", false)]).await;
    let starting =
        Reply::error(503, "starting").header("x-omni-fallback-hint", "connection_cooldown");
    upstream.script("a", [starting]);
    let a = moves_and_rests(&node, &upstream, "starting").await;
    expect_rest(&a, 5, "starting");
}

#[tokio::test]
async fn an_operators_rule_goes_before_the_gate() {
    let rule = |status: u16, words: &str| {
        json!({"status": status, "match": words, "scope": "connection",
            "reason": "rate_limit_exceeded", "cooldownMs": 77_000})
    };
    let rules = json!([rule(429, "slow"), rule(503, "busy"), rule(400, "colour")]);
    let cases = [
        Reply::error(429, "slow down"),
        Reply::error(503, "busy"),
        refused(),
    ];
    let knobs = ["429", "500", "400"].map(|class| threshold(class, 100));
    let upstream = Upstream::start().await;
    let config: Config =
        pair(&upstream, &json!({})).set(&["settings", "providerErrorRules", "acme"], rules);
    let base = || Setup::with(&config);
    for (gate, setup) in [
        ("off", base().env(MASTER, "false")),
        ("patient", with_variables(base(), &knobs)),
        ("400 on", with_variables(base(), &[on("400", true)])),
        ("nothing rests", base().env(TAG, "false")),
    ] {
        let node = setup.start().await;
        for reply in &cases {
            let what = format!("gate {gate}: {reply:?}");
            upstream.script("a", [reply.clone()]);
            let a = moves_and_rests(&node, &upstream, &what).await;
            expect_rest(&a, 77, &what);
            reset(&node, "a").await;
        }
        // What no rule names is the gate's.
        if gate == "off" {
            upstream.script("a", [Reply::error(429, "another limit")]);
            stays(&node, &upstream, "no rule names it").await;
        }
    }
}

/// Where everybody is asked and refuses, the client gets an answer, not a wait.
#[tokio::test]
async fn when_the_last_one_fails_too_its_failure_is_the_answer() {
    let upstream = Upstream::start().await;
    let node = untagged(&upstream, &[]).await;
    for (reply, fits) in [
        (Reply::error(429, "slow down"), 429..=429),
        (Reply::error(503, "down"), 500..=599),
    ] {
        upstream.script("a", [reply.clone()]);
        upstream.script("b", [reply.clone()]);
        let before = upstream.requests().len();
        let answer = ask(&node).await;
        assert!(
            fits.contains(&answer.status),
            "{reply:?}: {}",
            answer.text()
        );
        assert_eq!(upstream.requests().len(), before + 2, "{reply:?}");
        for id in ["a", "b"] {
            expect_untouched(&node.connection(id).await, id);
        }
    }
    // And both are asked again.
    upstream.script("a", [Dialect::Chat.ok("pong")]);
    ask(&node).await.expect_status(200);
}
