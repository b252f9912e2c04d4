//! Listeners: what they hear, and their bounds.

use shared_proto::clock::Millis;
use shared_proto::id::ConnectionId;
use shared_proto::mirror::Mirror as _;
use shared_proto::mirror::commit::{Commit, Expected};
use shared_proto::mirror::embedded::Embedded;
use shared_proto::mirror::key::Key;

use super::*;

/// A real entry of a log.
async fn entry() -> LogEntry {
    let clock = Arc::new(shared_proto::clock::ManualClock::at(Millis::default()));
    let mirror = Embedded::memory("t", clock).unwrap();
    let from = mirror.snapshot().await.unwrap().position;
    let key = Key::Health(ConnectionId::from("a"));
    let state = shared_proto::health::ConnectionHealth::default();
    let commit = Commit::put(key, Expected::Absent, &state).unwrap();
    mirror.commit(commit).await.unwrap();
    mirror.tail(from).await.unwrap().next().await.unwrap()
}

#[tokio::test]
async fn a_listener_hears_each_change_until_the_end() {
    let changes = Changes::default();
    let entry = entry().await;
    changes.tell(entry.clone());
    let mut listener = changes.listen().unwrap();
    changes.tell(entry.clone());
    changes.end();
    assert_eq!(*listener.next().await.unwrap(), entry);
    assert_eq!(listener.next().await.unwrap_err(), Over::Stopping);
}

#[tokio::test]
async fn a_slow_listener_is_told_how_much_it_missed() {
    let changes = Changes::default();
    let entry = entry().await;
    let mut listener = changes.listen().unwrap();
    for _ in 0..BEHIND + 3 {
        changes.tell(entry.clone());
    }
    assert_eq!(listener.next().await.unwrap_err(), Over::TooSlow(3));
}

#[tokio::test]
async fn there_are_only_so_many_and_a_place_is_given_back() {
    let changes = Changes::default();
    let mut all: Vec<Listener> = (0..MAX_LISTENERS)
        .map(|_| changes.listen().unwrap())
        .collect();
    for _ in 0..2 {
        assert!(changes.listen().is_none());
    }
    all.pop();
    let again = changes.listen();
    assert!(again.is_some());
    assert!(changes.listen().is_none());
}
