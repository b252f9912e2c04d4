//! Announcements in prose, and the false friends among them.

use super::{T0, hint_from, wait_of};
use crate::clock::Millis;

#[test]
fn lengths() {
    let table = [
        (
            "Please try again in 50.597142857s. Visit https://x",
            Some(50_598),
        ),
        ("Please try again in 1m30.002s.", Some(90_002)),
        ("Please try again in 9m38.016s", Some(578_016)),
        ("Please try again in 114h18m0s. Visit", Some(411_480_000)),
        ("Please try again in 20ms.", Some(20)),
        ("Please retry in 36.429760048s.", Some(36_430)),
        ("Please retry in 900.2ms", Some(901)),
        ("Please retry in 38.922534355s", Some(38_923)), // HNT-13
        ("Please retry after 86400 seconds.", Some(86_400_000)),
        ("please retry your request after 20 seconds", Some(20_000)),
        (
            "Rate limit is exceeded. Try again in 2 seconds.",
            Some(2000),
        ),
        ("please try again after 1 seconds", Some(1000)),
        ("Your quota will reset after 1h43m56s.", Some(6_236_000)),
        ("Your quota will reset after 0s.", None),
        (
            "Monthly usage limit reached. Resets in 13 days.",
            Some(1_123_200_000),
        ), // HNT-11
        ("Resets in 5 hours", Some(18_000_000)), // HNT-12
        (
            "Weekly limit reached. Please wait 12 hours.",
            Some(43_200_000),
        ),
        ("You must wait 90s", Some(90_000)),
        ("30秒後に再試行してください", Some(30_000)),
        ("請於 15 分鐘後重試", Some(900_000)),
        ("2時間後に再試行", Some(7_200_000)),
        ("Resets in 2 hours", Some(7_200_000)),
        ("Resets in 30 minutes", Some(1_800_000)),
        ("resets in 900h", Some(2_592_000_000)), // HNT-16
        ("Please try again in 15 hours 23 minutes", Some(55_380_000)),
        (
            "Please try again in 2 hours. Please review",
            Some(7_200_000),
        ),
        (
            "Please try again in about 1 minute and 5 seconds",
            Some(65_000),
        ),
        ("Try again in 1 day, 2 hours", Some(93_600_000)),
        (
            "exceeded for UserByModelByDay. Please wait 39023 seconds before retrying.",
            Some(39_023_000),
        ),
        ("Please wait for 1 minute before trying again", Some(60_000)),
        ("requests wait 30 seconds in the queue", None),
        ("请在 30 秒后重试", Some(30_000)),
        ("额度将于2小时后重置", Some(7_200_000)),
        ("请稍后重试", None),
    ];
    for (text, wait) in table {
        assert_eq!(wait_of(429, &[], text), wait, "{text}");
        let json = serde_json::json!({"error": {"message": text}}).to_string();
        assert_eq!(wait_of(429, &[], &json), wait, "{json}");
    }
}

#[test]
fn times() {
    // 12:00 at Greenwich is 20:00 in China.
    let table = [
        ("acme", "try again at 2026-10-01T12:10:00Z", Some(600_000)), // HNT-15
        ("acme", "wait until 2026-10-01 12:10 before", Some(600_000)),
        (
            "acme",
            "available again at 2026-10-01T12:10:00+00:00",
            Some(600_000),
        ),
        (
            "acme",
            "retry after 2026-10-01T14:10:00+02:00",
            Some(600_000),
        ),
        (
            "acme",
            "resets at 2026-10-01T12:10:00.250Z (2056)",
            Some(600_250),
        ),
        (
            "acme",
            "The quota will reset at 10-03 12:00:00 UTC",
            Some(172_800_000),
        ), // HNT-17
        (
            "zai",
            "Your limit will reset at 2026-10-01 20:10:00",
            Some(600_000),
        ),
        (
            "relay",
            "Your limit will reset at 2026-10-01 20:10:00",
            Some(600_000),
        ),
        ("zai", "reset at 2026-10-01T12:10:00Z", Some(600_000)),
        (
            "relay",
            "您的限额将在 2026-10-01 20:10:00 重置。",
            Some(600_000),
        ),
        ("relay", "重置时间：2026-10-01 20:10:00", Some(600_000)),
        ("acme", "resets at 2026-10-01T11:10:00Z", None),
        (
            "acme",
            "limit reached (daily; resets 2026-10-01 12:10 UTC)",
            Some(600_000),
        ),
        (
            "acme",
            "Limit resets at: 2026-10-01 12:10:00 UTC",
            Some(600_000),
        ),
    ];
    for (provider, text, wait) in table {
        let got = hint_from(provider, 429, &[], text).map(|hint| hint.wait_ms);
        assert_eq!(got, wait, "{text}");
    }
    let in_january = super::super::moment::prose(
        "01-02 00:00",
        jiff::tz::Offset::UTC,
        Millis::from_epoch_ms(T0.as_epoch_ms()),
    );
    assert_eq!(
        in_january.map(|(at, _)| at),
        Some(super::at("2027-01-02T00:00:00Z"))
    );
}

#[test]
fn false_friends() {
    let table = [
        "try again at 7:58 PM",
        "resets 2am (Australia/Sydney)",
        "Please try again later. Visit https://acme.example/docs after 30 minutes",
        "paid until 2026-12-01T00:00:00Z",
        "request id 20261001120000000",
        "the preset in 5 minutes",
        "maximum wait 30s exceeded",
        "please wait 30 seconds before you blink",
        "you made 30 requests in 60 seconds",
        "Please reduce the length; limit 6000 in 1m",
        "retry with 20s of audio",
        "Please try again.",
        "Resets in a few days",
        "try again in 5 parsecs",
        "resets at 2026-99-99T00:00:00Z",
    ];
    for text in table {
        assert_eq!(wait_of(429, &[], text), None, "{text}");
    }
}

#[test]
fn only_the_beginning_of_a_body_is_searched() {
    let text = |padding: usize| format!("{} try again in 5s", "x".repeat(padding));
    assert_eq!(wait_of(429, &[], &text(8000)), Some(5000));
    assert_eq!(wait_of(429, &[], &text(8192)), None);
    let json =
        |padding: usize| serde_json::json!({"a": "x".repeat(padding), "b": "try again in 5s"});
    assert_eq!(wait_of(429, &[], &json(8000).to_string()), Some(5000));
    assert_eq!(wait_of(429, &[], &json(8192).to_string()), None);
}

#[test]
fn what_the_user_wrote_announces_nothing() {
    let body = r#"{"detail":[{"msg":"bad","input":"try again in 5s"}]}"#;
    assert_eq!(wait_of(429, &[], body), None);
}
