//! What happened to gateways in production, told as scripts in
//! `data/cases.yaml` and run through the real binary.

mod run;

use std::time::Duration;

use cluster_tests::dialect::Dialect;
use cluster_tests::upstream::Fate;

use run::{Ran, run};

/// The time between the attempts `n` and `n + 1` (from 1) of connection a.
fn gap(ran: &Ran, n: usize) -> Duration {
    let attempts = ran.upstream.requests_of("a");
    attempts[n].at - attempts[n - 1].at
}

async fn remaining(ran: &Ran, id: &str) -> Duration {
    let connection = ran.node.connection(id).await;
    Duration::from_millis(connection["cooldownRemainingMs"].as_u64().unwrap())
}

#[tokio::test]
async fn every_case_of_the_file_has_its_test() {
    let source = include_str!("cases.rs");
    for id in run::ids() {
        let call = ["run(", "\"", &id, "\")"].concat();
        assert!(source.contains(&call), "no test runs {id}");
    }
}

#[tokio::test]
async fn the_latest_retry_after_rules() {
    let ran = run("the-latest-retry-after-rules").await;
    assert_eq!(ran.answers[0].status, 200, "{}", ran.answers[0].text);
    assert_eq!(ran.upstream.count("a"), 3);
    assert!(
        gap(&ran, 1) >= Duration::from_millis(990),
        "{:?}",
        gap(&ran, 1)
    );
    assert!(
        gap(&ran, 2) >= Duration::from_millis(3990),
        "{:?}",
        gap(&ran, 2)
    );
}

#[tokio::test]
async fn retry_after_as_a_date() {
    let ran = run("retry-after-as-a-date").await;
    assert_eq!(ran.answers[0].status, 200);
    assert_eq!(ran.upstream.order(), ["a", "b"]);
    let left = remaining(&ran, "a").await;
    let elapsed = ran.started.elapsed();
    let wanted = Duration::from_secs(90).saturating_sub(elapsed);
    assert!(
        left.abs_diff(wanted) <= Duration::from_secs(2),
        "{left:?}, not {wanted:?}"
    );
}

#[tokio::test]
async fn a_reset_in_the_past() {
    let ran = run("a-reset-in-the-past").await;
    assert_eq!(ran.answers[0].status, 200, "{}", ran.answers[0].text);
    assert_eq!(ran.upstream.count("a"), 2);
    assert!(
        gap(&ran, 1) <= Duration::from_millis(3500),
        "{:?}",
        gap(&ran, 1)
    );
}

#[tokio::test]
async fn a_used_up_window_is_not_probed() {
    let ran = run("a-used-up-window-is-not-probed").await;
    assert_eq!(ran.upstream.count("a"), 1);
    let mut last = u64::MAX;
    for answer in &ran.answers {
        assert_eq!(answer.status, 429, "{}", answer.text);
        let told = answer.retry_after.expect("no Retry-After");
        let left = 18_000_u64.saturating_sub(answer.at.elapsed_since(ran.started).as_secs());
        assert!(told.abs_diff(left) <= 2, "{told}, not {left}");
        assert!(told <= last, "{told} after {last}");
        last = told;
    }
    assert!(
        last < ran.answers[0].retry_after.unwrap(),
        "it did not fall"
    );
}

#[tokio::test]
async fn a_bare_429_still_fails_over() {
    let ran = run("a-bare-429-still-fails-over").await;
    assert_eq!(ran.answers[0].status, 200);
    assert_eq!(ran.upstream.order(), ["a", "b"]);
    let left = remaining(&ran, "a").await;
    assert!(
        left <= Duration::from_secs(3) && !left.is_zero(),
        "{left:?}"
    );
}

#[tokio::test]
async fn retries_skip_what_just_cooled() {
    let ran = run("retries-skip-what-just-cooled").await;
    let statuses: Vec<u16> = ran.answers.iter().map(|answer| answer.status).collect();
    assert_eq!(statuses, [200, 200]);
    assert_eq!(ran.upstream.order(), ["a", "b", "a"]);
}

#[tokio::test]
async fn both_fail_before_content() {
    let ran = run("both-fail-before-content").await;
    let answer = &ran.answers[0];
    assert!(
        matches!(answer.status, 503 | 529),
        "{}: {}",
        answer.status,
        answer.text
    );
    assert!(!answer.text.contains("message_start"), "{}", answer.text);
    assert_eq!(ran.upstream.order(), ["a", "b"]);
}

#[tokio::test]
async fn a_cut_after_content_is_visible() {
    let ran = run("a-cut-after-content-is-visible").await;
    let answer = &ran.answers[0];
    Dialect::Chat.expect_broken(&answer.text, &"tok ".repeat(40));
    assert!(
        !answer.text.contains("finish_reason\":\"stop"),
        "{}",
        answer.text
    );
    assert_eq!(ran.upstream.order(), ["a"]);
    assert_eq!(ran.node.connection("a").await["inFlight"], 0);
}

#[tokio::test]
async fn complete_but_empty() {
    let ran = run("complete-but-empty").await;
    Dialect::Chat.expect_whole(&ran.answers[0].text, "pong");
    assert_eq!(ran.upstream.order(), ["a", "b"]);
}

#[tokio::test]
async fn only_a_tool_call_is_not_empty() {
    let ran = run("only-a-tool-call-is-not-empty").await;
    assert!(
        ran.answers[0].text.contains("weather"),
        "{}",
        ran.answers[0].text
    );
    assert_eq!(ran.upstream.order(), ["a"]);
}

#[tokio::test]
async fn a_stall_after_the_first_token() {
    let ran = run("a-stall-after-the-first-token").await;
    let first = &ran.answers[0];
    Dialect::Chat.expect_broken(&first.text, "hel");
    let took = first.took;
    assert!(
        (Duration::from_millis(2900)..Duration::from_secs(6)).contains(&took),
        "{took:?}"
    );
    let stalled = ran.upstream.request("a", 1).await;
    assert!(
        matches!(stalled.fate(), Fate::Dropped(_)),
        "{:?}",
        stalled.fate()
    );
    Dialect::Chat.expect_whole(&ran.answers[1].text, "pong");
}

#[tokio::test]
async fn a_client_that_left() {
    let ran = run("a-client-that-left").await;
    let seen = ran.upstream.request("a", 1).await;
    let dropped = seen.dropped(Duration::from_secs(1)).await;
    let after = dropped.saturating_duration_since(ran.started);
    assert!(after < Duration::from_millis(2100), "{after:?}");
    assert_eq!(ran.upstream.count("a"), 2);
    Dialect::Chat.expect_whole(&ran.answers[0].text, "pong");
    assert_eq!(
        ran.node.connection("a").await["connectionStatus"],
        "healthy"
    );
}

#[tokio::test]
async fn a_missing_end_mark_is_not_the_keys_fault() {
    let ran = run("a-missing-end-mark-is-not-the-keys-fault").await;
    assert_eq!(ran.answers.len(), 6);
    for answer in &ran.answers {
        Dialect::Chat.expect_whole(&answer.text, "pong");
    }
    for id in ["a", "b", "c"] {
        assert_eq!(ran.node.connection(id).await["connectionStatus"], "healthy");
        assert_eq!(
            ran.upstream.count(id),
            2,
            "not in turn: {:?}",
            ran.upstream.order()
        );
    }
}
