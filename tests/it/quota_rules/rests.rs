//! How long a refusal for want of quota rests that does not say so itself.

use std::time::Duration;

use cluster_tests::node::Node;
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::let_time_pass;
use serde_json::Value;

use super::{
    FIRST_S, Family, HOUR_MS, NEAR_MS, SECOND_S, ask, ask_for, config, known, now_ms, ok, rest,
    with,
};

/// Has `a` give these answers, the last of which is a refusal that `b` serves
/// after. When the first was asked for and how long the refusal rests, ms.
async fn refused(family: Family, replies: Vec<Reply>) -> (u64, u64, Value) {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(family, &upstream)).await;
    let count = replies.len();
    upstream.script("a", replies);
    let began = now_ms();
    for _ in 0..count {
        ask(&node, family).await.expect_status(200);
    }
    assert_eq!(upstream.count("a"), count, "{family:?}: all were asked");
    assert_eq!(upstream.count("b"), 1, "{family:?}: b served the last one");
    let left = rest(&node).await;
    (began, left, node.connection("a").await)
}

/// It ends when a window resets that was told of as ending `after` s from `began`,
/// by some providers in whole seconds.
fn expect_until(began: u64, left: u64, after: u64, what: &str) {
    let late = now_ms() - began;
    let ends = began + late + left;
    let told = began + after * 1000;
    let near = told - 1_000 - NEAR_MS - late..=told + NEAR_MS + late;
    assert!(near.contains(&ends), "{what}: {left} ms, told {after} s");
}

#[tokio::test]
async fn until_the_fullest_window_resets() {
    for family in Family::ALL {
        for (used, after) in [
            ([97, 60], FIRST_S),
            ([60, 97], SECOND_S),
            ([100, 99], FIRST_S),
            ([3, 51], SECOND_S),
            ([50, 49], FIRST_S),
        ] {
            let replies = vec![ok(family, used), family.exhausted()];
            let (began, left, _) = refused(family, replies).await;
            expect_until(began, left, after, &format!("{family:?}, {used:?} used"));
        }
    }
}

/// The longest that quota without any announcement rests by itself.
fn expect_as_without_windows(left: u64, what: &str) {
    assert!((10_000..=HOUR_MS).contains(&left), "{what}: {left} ms");
}

#[tokio::test]
async fn windows_under_half_used_are_not_the_reason() {
    for family in Family::ALL {
        for used in [[49, 10], [0, 49], [0, 0]] {
            let replies = vec![ok(family, used), family.exhausted()];
            let (_, left, _) = refused(family, replies).await;
            expect_as_without_windows(left, &format!("{family:?}, {used:?} used"));
        }
    }
}

#[tokio::test]
async fn what_the_refusal_announces_goes_first() {
    for family in Family::ALL {
        for (after, value) in [(120, "120"), (20_000, "20000")] {
            let refusal = family.exhausted().header("retry-after", value);
            let replies = vec![ok(family, [99, 98]), refusal];
            let (began, left, _) = refused(family, replies).await;
            expect_until(began, left, after, &format!("{family:?}, {after} s"));
        }
    }
}

/// Only the last word on a window counts.
#[tokio::test]
async fn the_newest_observation_holds() {
    for family in Family::ALL {
        let replies = vec![
            ok(family, [99, 98]),
            ok(family, [10, 20]),
            family.exhausted(),
        ];
        let (_, left, a) = refused(family, replies).await;
        expect_as_without_windows(left, &format!("{family:?}"));
        assert_eq!(a["quotaWindows"].as_array().unwrap().len(), 2, "{a}");

        let replies = vec![
            ok(family, [10, 20]),
            ok(family, [10, 98]),
            family.exhausted(),
        ];
        let (began, left, _) = refused(family, replies).await;
        expect_until(began, left, SECOND_S, &format!("{family:?}"));
    }
}

/// A plain limit of the rate is no want of quota.
#[tokio::test]
async fn other_refusals_rest_as_ever() {
    let family = Family::Plain;
    for (refusal, status) in [
        (Reply::error(429, "slow down"), "cooling_down"),
        (Reply::error(503, "down"), "cooling_down"),
        (Reply::error(402, "payment required"), "terminal"),
        (Reply::error(401, "invalid api key"), "terminal"),
    ] {
        let what = format!("{refusal:?}");
        let replies = vec![ok(family, [99, 98]), refusal];
        let (_, left, a) = refused(family, replies).await;
        assert_eq!(a["connectionStatus"], status, "{what}: {a}");
        assert!(left <= 30_000, "{what}: {a}");
    }
}

#[tokio::test]
async fn a_window_that_has_reset_is_no_reason() {
    let family = Family::Plain;
    let upstream = Upstream::start().await;
    let node = Node::start(&config(family, &upstream)).await;
    let headers = family.headers_until([99, 98], [1, 1]);
    upstream.script(
        "a",
        [
            with(family.dialect().ok("pong"), &headers),
            family.exhausted(),
        ],
    );
    ask(&node, family).await.expect_status(200);
    let_time_pass(Duration::from_millis(2_200), "both windows reset").await;
    ask(&node, family).await.expect_status(200);
    assert_eq!(upstream.count("b"), 1);
    expect_as_without_windows(rest(&node).await, "both have reset");
}

/// What one account has used says nothing of another one.
#[tokio::test]
async fn each_connection_has_windows_of_its_own() {
    let family = Family::Plain;
    let upstream = Upstream::start().await;
    let config = config(family, &upstream)
        .connection("full", "acme")
        .combo("of-full", &["acme/demo-model@full"]);
    let node = Node::start(&config).await;
    upstream.script("full", [ok(family, [99, 98])]);
    upstream.script("a", [family.exhausted()]);
    let full = ask_for(&node, family, "of-full").await;
    full.expect_status(200);
    ask(&node, family).await.expect_status(200);
    expect_as_without_windows(rest(&node).await, "nothing is known of a");
}

/// The rest is shared and outlives a crash, though the windows do not.
#[tokio::test]
async fn the_rest_outlives_a_crash() {
    let family = Family::Unified;
    let upstream = Upstream::start().await;
    let mut node = Node::start(&config(family, &upstream)).await;
    upstream.script("a", [ok(family, [97, 10]), family.exhausted()]);
    let began = now_ms();
    for _ in 0..2 {
        ask(&node, family).await.expect_status(200);
    }
    node.kill_9().await;
    let node = node.start_again().await;
    expect_until(began, rest(&node).await, FIRST_S, "after a crash");
    ask(&node, family).await.expect_status(200);
    assert_eq!(upstream.count("a"), 2);
}

/// Headers that no provider sends: the answer is relayed, nothing is believed.
#[tokio::test]
async fn garbage_is_not_believed() {
    let names: Vec<String> = Family::ALL
        .iter()
        .flat_map(|family| family.headers([1, 1]))
        .map(|(name, _)| name)
        .collect();
    let garbage = [
        "",
        " ",
        "NaN",
        "inf",
        "-inf",
        "-1",
        "-0.5",
        "1e999",
        "1e18",
        "0x10",
        "12,5",
        "many",
        "99999999999999999999999999",
        "18446744073709551615",
        "4102444800000000",
        "1970-01-01",
        "9999-12-31T23:59:59Z",
        "0000-00-00T00:00:00Z",
        "1h2x",
        "h",
        "99999999h",
        "null",
        "{}",
        "\u{e9}",
        "1;2",
        "100 %",
    ];
    let family = Family::Plain;
    let upstream = Upstream::start().await;
    let node = Node::start(&config(family, &upstream)).await;
    for value in garbage {
        let headers: Vec<(String, String)> = names
            .iter()
            .map(|name| (name.clone(), value.to_owned()))
            .collect();
        upstream.script("a", [with(family.dialect().ok("pong"), &headers)]);
        ask(&node, family).await.expect_status(200);
        expect_sane(&known(&node).await, value);
    }
    let long = "9".repeat(4_000);
    let headers: Vec<_> = names
        .iter()
        .map(|name| (name.clone(), long.clone()))
        .collect();
    upstream.script("a", [with(family.dialect().ok("pong"), &headers)]);
    ask(&node, family).await.expect_status(200);
    expect_sane(&known(&node).await, "long");
    assert_eq!(upstream.count("b"), 0);
    upstream.script("a", [family.exhausted()]);
    ask(&node, family).await.expect_status(200);
    let left = rest(&node).await;
    assert!(left <= 30 * 24 * HOUR_MS, "{left}");
}

/// Whatever is shown is a possible window.
fn expect_sane(known: &[Value], sent: &str) {
    for window in known {
        let what = format!("{sent:?}: {window}");
        for name in ["usedPercent", "remainingPercent"] {
            if let Some(percent) = window[name].as_f64() {
                assert!(percent >= 0.0, "{what}");
                assert!(name == "usedPercent" || percent <= 100.0, "{what}");
                assert!(percent <= 1_000.0, "{what}");
            }
        }
        if let Some(resets) = window["resetsAt"].as_str() {
            let resets = crate::refusals::record::epoch_ms(resets);
            assert!(resets <= now_ms() + 36 * 24 * HOUR_MS, "{what}");
        }
        let lasts = window["windowMs"].as_u64().unwrap_or(0);
        assert!(lasts <= 366 * 24 * HOUR_MS, "{what}");
    }
}

/// A server that names ever more windows fills nothing.
#[tokio::test]
async fn windows_without_end_are_bounded() {
    let family = Family::Unified;
    let upstream = Upstream::start().await;
    let node = Node::start(&config(family, &upstream)).await;
    for round in 0..20 {
        let mut reply = family.dialect().ok("pong");
        for n in 0..20 {
            let name = format!("anthropic-ratelimit-unified-w{round}x{n}");
            reply = reply.header(&format!("{name}-utilization"), "0.5").header(
                &format!("{name}-reset"),
                &(now_ms() / 1000 + 900).to_string(),
            );
        }
        upstream.script("a", [reply]);
        ask(&node, family).await.expect_status(200);
    }
    let count = known(&node).await.len();
    assert!(count <= 64, "{count} windows are kept");
}
