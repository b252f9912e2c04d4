//! How changes are told, and what is not.

use std::sync::Arc;

use shared_proto::clock::ManualClock;
use shared_proto::id::{ConnectionId, ProviderId};
use shared_proto::mirror::Mirror as _;
use shared_proto::mirror::commit::{Change, Commit, Expected};
use shared_proto::mirror::embedded::Embedded;

use super::*;

const NOW: Millis = Millis::from_epoch_ms(1_000_000);

/// What is told of a commit, as it comes out of a real log.
async fn frame_of(commit: Commit) -> (String, Value) {
    let mirror = Embedded::memory("t", Arc::new(ManualClock::at(NOW))).unwrap();
    let from = mirror.snapshot().await.unwrap().position;
    mirror.commit(commit).await.unwrap();
    let entry = mirror.tail(from).await.unwrap().next().await.unwrap();
    let bytes = frame(&entry, NOW);
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    let data = text.lines().find_map(|line| line.strip_prefix("data: "));
    let data = serde_json::from_str(data.unwrap()).unwrap();
    assert!(text.starts_with(&format!("id: {}\nevent: change\n", entry.position)));
    assert!(text.ends_with("\n\n"));
    (text, data)
}

#[tokio::test]
async fn a_cooldown_is_told_in_the_words_of_the_connections_route() {
    let until = NOW.plus(5_000);
    let health = ConnectionHealth {
        cooldown_until: Some(until),
        ..ConnectionHealth::default()
    };
    let key = Key::Health(ConnectionId::from("acme-1"));
    let (_, data) = frame_of(Commit::put(key, Expected::Absent, &health).unwrap()).await;
    assert_eq!(data["kind"], "connection");
    assert_eq!(data["id"], "acme-1");
    assert_eq!(data["at"], NOW.to_rfc3339());
    assert_eq!(data["change"]["connectionStatus"], "cooling_down");
    assert_eq!(data["change"]["rateLimitedUntil"], until.as_epoch_ms());
    assert_eq!(data["change"]["cooldownRemainingMs"], 5_000);
}

#[tokio::test]
async fn a_breaker_is_told_by_its_state() {
    let key = Key::Breaker(ProviderId::from("acme"));
    let state = ProviderBreaker::default();
    let (_, data) = frame_of(Commit::put(key, Expected::Absent, &state).unwrap()).await;
    assert_eq!(
        (&data["kind"], &data["id"]),
        (&json!("breaker"), &json!("acme"))
    );
    assert_eq!(data["change"]["breaker"]["state"], "CLOSED");
}

#[tokio::test]
async fn neither_tokens_nor_lease_owners_are_told() {
    let secret = "5f5f736563726574";
    let put = |key: Key| Commit {
        key,
        expected: Expected::Absent,
        version: 1,
        change: Change::Put {
            // A map with the secret inside: {"t": secret}.
            body: [b"\x81\xa1t\xb0".as_slice(), secret.as_bytes()]
                .concat()
                .into(),
            expires_at: Some(NOW),
        },
    };
    let (text, data) = frame_of(put(Key::Lease(secret.into()))).await;
    assert!(!text.contains(secret), "{text}");
    assert_eq!(
        (&data["kind"], &data["id"]),
        (&json!("lease"), &Value::Null)
    );
    let (text, data) = frame_of(put(Key::Token(ConnectionId::from("acme-1")))).await;
    assert!(!text.contains(secret), "{text}");
    assert_eq!(data["id"], "acme-1");
}

#[test]
fn the_last_event_says_why() {
    let text = |over| String::from_utf8(last(over).to_vec()).unwrap();
    assert_eq!(
        text(Over::TooSlow(7)),
        "event: end\ndata: {\"reason\":\"too_slow\",\"missed\":7}\n\n"
    );
    assert!(text(Over::Stopping).contains("stopping"));
}
