//! The log over restarts, wipes and trims: who missed something is told, and
//! whether the store went back.

use cluster_tests::redis::{Redis as Server, Setup};
use cluster_tests::wait::{SOON, eventually, within};
use shared_proto::clock::Millis;
use shared_proto::mirror::Mirror;
use shared_proto::mirror::commit::{Change, Commit, Expected, Guard, TransactError};
use shared_proto::mirror::log::{Tail, TailError};
use shared_proto::mirror::record::Revision;
use shared_proto::mirror::redis::Options;

use super::harness::{Count, create, key, open, patient, put, up};

/// What the tail ends with, once it tells no more entries.
async fn end(tail: &mut Tail) -> TailError {
    let reading = async {
        loop {
            if let Err(error) = tail.next().await {
                return error;
            }
        }
    };
    within(SOON, "the tail ends", reading).await
}

#[tokio::test]
async fn a_wiped_store_is_rewound_for_who_read_it_and_for_who_comes_back() {
    let server = Server::start().await;
    let mirror = open(&server.url(), patient()).await;
    let done = create(&mirror, "a").await;
    let mut idle = mirror.tail(done.position).await.unwrap();
    server.call(&["FLUSHALL"]).await;
    assert_eq!(end(&mut idle).await, TailError::Rewound, "without any news");
    let outcome = mirror.tail(done.position).await.err();
    assert_eq!(outcome, Some(TailError::Rewound));
    let snapshot = mirror.snapshot().await.unwrap();
    assert_eq!(snapshot.records, []);
    let again = create(&mirror, "a").await;
    assert!(
        again.revision > done.revision,
        "revisions rise all the same"
    );
    assert!(again.position > done.position);
    let mut tail = mirror.tail(snapshot.position).await.unwrap();
    assert_eq!(tail.next().await.unwrap().position, again.position);
    let outcome = mirror.tail(done.position).await.err();
    assert_eq!(outcome, Some(TailError::Rewound), "with entries above");
}

#[tokio::test]
async fn a_restart_with_its_data_hides_nothing_and_repeats_nothing() {
    let mut server = Setup::durable().start().await;
    let mirror = open(&server.url(), patient()).await;
    let one = create(&mirror, "a").await;
    let two = create(&mirror, "b").await;
    let mut tail = mirror.tail(one.position).await.unwrap();
    assert_eq!(tail.next().await.unwrap().position, two.position);
    server.kill().await;
    assert!(matches!(end(&mut tail).await, TailError::Unreachable(_)));
    server.restart().await;
    up(&mirror).await;
    let three = create(&mirror, "c").await;
    let mut tail = mirror.tail(two.position).await.unwrap();
    assert_eq!(tail.next().await.unwrap().position, three.position);
    assert_eq!(mirror.snapshot().await.unwrap().records.len(), 3);
}

#[tokio::test]
async fn a_restart_without_its_data_is_a_rewind() {
    let mut server = Setup::durable().start().await;
    let mirror = open(&server.url(), patient()).await;
    let done = create(&mirror, "a").await;
    let mut tail = mirror.tail(done.position).await.unwrap();
    server.kill().await;
    assert!(matches!(end(&mut tail).await, TailError::Unreachable(_)));
    server.restart_empty().await;
    up(&mirror).await;
    let outcome = mirror.tail(done.position).await.err();
    assert_eq!(outcome, Some(TailError::Rewound));
    let again = create(&mirror, "a").await;
    assert!(again.revision > done.revision);
}

#[tokio::test]
async fn who_was_away_for_longer_than_the_log_of_another_server_reaches_is_told_the_worse() {
    let mut server = Setup::durable().start().await;
    let options = Options {
        log_entries: 5,
        ..patient()
    };
    let mirror = open(&server.url(), options).await;
    let done = create(&mirror, "a").await;
    let mut tail = mirror.tail(done.position).await.unwrap();
    create(&mirror, "b").await;
    tail.next().await.unwrap();
    server.kill().await;
    assert!(matches!(end(&mut tail).await, TailError::Unreachable(_)));
    server.restart().await;
    up(&mirror).await;
    for n in 0..10_u32 {
        create(&mirror, &n.to_string()).await;
    }
    // Nobody can say any more whether the server ever had that entry.
    let outcome = mirror.tail(done.position).await.err();
    assert_eq!(outcome, Some(TailError::Rewound));
    mirror.snapshot().await.unwrap();
    let outcome = mirror.tail(done.position).await.err();
    assert_eq!(outcome, Some(TailError::Gap), "read since then");
}

#[tokio::test]
async fn an_entry_that_somebody_removed_is_a_gap() {
    let server = Server::start().await;
    let mirror = open(&server.url(), patient()).await;
    let one = create(&mirror, "a").await;
    let two = create(&mirror, "b").await;
    create(&mirror, "c").await;
    server
        .call(&["XDEL", "{test}:log", &two.position.to_string()])
        .await;
    let mut tail = mirror.tail(one.position).await.unwrap();
    assert_eq!(end(&mut tail).await, TailError::Gap);
}

#[tokio::test]
async fn a_log_that_somebody_emptied_is_a_gap_for_who_missed_it() {
    let server = Server::start().await;
    let mirror = open(&server.url(), patient()).await;
    let nothing = mirror.snapshot().await.unwrap().position;
    let one = create(&mirror, "a").await;
    let last = create(&mirror, "b").await;
    server.call(&["XTRIM", "{test}:log", "MAXLEN", "0"]).await;
    for missed in [nothing, one.position] {
        let outcome = mirror.tail(missed).await.err();
        assert!(outcome.is_some(), "{missed}");
    }
    // Who had read it all, and who reads it again, has missed nothing.
    let again = mirror.snapshot().await.unwrap();
    assert_eq!((again.records.len(), again.position), (2, last.position));
    let mut tail = mirror.tail(last.position).await.unwrap();
    let next = create(&mirror, "c").await;
    assert_eq!(tail.next().await.unwrap().position, next.position);
    assert!(mirror.tail(nothing).await.is_err());
}

/// Old entries go, the newest stays whatever its age, and only while the guard
/// holds.
#[tokio::test]
async fn a_trim_takes_what_is_old_if_its_guard_holds() {
    let server = Server::start().await;
    let mirror = open(&server.url(), patient()).await;
    assert_eq!(mirror.trim(0, None).await, Ok(0), "there is nothing yet");
    let one = create(&mirror, "a").await;
    let two = create(&mirror, "b").await;
    let last = create(&mirror, "c").await;
    let guard = |revision| {
        Some(Guard {
            key: key("a"),
            revision,
        })
    };
    assert_eq!(mirror.trim(600_000, guard(one.revision)).await, Ok(0));
    let refused = mirror.trim(0, guard(two.revision)).await;
    assert!(
        matches!(&refused, Err(TransactError::Conflict { newest, .. }) if newest.len() == 1),
        "{refused:?}"
    );
    let mut late = mirror.tail(one.position).await.unwrap();
    assert_eq!(late.next().await.unwrap().position, two.position);
    assert_eq!(mirror.trim(0, guard(one.revision)).await, Ok(2));
    assert_eq!(mirror.trim(0, guard(one.revision)).await, Ok(0));
    assert_eq!(mirror.tail(one.position).await.err(), Some(TailError::Gap));
    let mut tail = mirror.tail(last.position).await.unwrap();
    let next = create(&mirror, "d").await;
    assert_eq!(tail.next().await.unwrap().position, next.position);
    assert_eq!(mirror.snapshot().await.unwrap().records.len(), 4);
}

#[tokio::test]
async fn the_log_is_bounded_in_bytes_too() {
    let server = Server::start().await;
    let options = Options {
        log_bytes: 100_000,
        ..patient()
    };
    let mirror = open(&server.url(), options).await;
    let mut expected = Expected::Absent;
    for _ in 0..100 {
        let commit = Commit {
            change: Change::Put {
                body: vec![0x80; 10_000].into(),
                expires_at: None,
            },
            ..put("a", expected, 1)
        };
        let done = mirror.commit(commit).await.unwrap();
        expected = Expected::Revision(done.revision);
    }
    let kept = server.call(&["XLEN", "{test}:log"]).await.int();
    assert!((5..=10).contains(&kept), "{kept}");
    for n in 0..200_u32 {
        create(&mirror, &n.to_string()).await;
    }
    let kept = server.call(&["XLEN", "{test}:log"]).await.int();
    assert!(kept >= 200, "small ones fit again: {kept}");
}

#[tokio::test]
async fn expired_records_go_a_while_later_and_their_names_with_them() {
    let server = Server::start().await;
    let mirror = open(&server.url(), patient()).await;
    let now = mirror.now();
    // Expired for longer than records are kept, so gone as soon as written.
    for n in 0..10_u32 {
        let commit = put(&n.to_string(), Expected::Absent, 1).expiring(now.minus(120_000));
        mirror.commit(commit).await.unwrap();
    }
    let short = put("short", Expected::Absent, 1).expiring(now);
    mirror.commit(short).await.unwrap();
    let record = mirror.load(&key("short")).await.unwrap().unwrap();
    assert!(record.is_expired(mirror.now()), "expired and still there");
    let far = put("far", Expected::Absent, 1).expiring(Millis::MAX);
    mirror.commit(far).await.unwrap();
    let record = mirror.load(&key("far")).await.unwrap().unwrap();
    assert_eq!(record.expires_at, Some(Millis::MAX));
    eventually("the names are forgotten", || async {
        create(&mirror, &format!("more-{}", mirror.now().as_epoch_ms())).await;
        let names = server
            .call(&["ZRANGEBYSCORE", "{test}:index", "-inf", "(1"])
            .await;
        let all = server
            .call(&["ZRANGE", "{test}:index", "0", "-1"])
            .await
            .array();
        let left = all
            .iter()
            .filter(|name| name.text().len() == "health:0".len())
            .count();
        assert!(names.array().is_empty());
        (left == 0).then_some(())
    })
    .await;
    let short = "health:short";
    let score = server.call(&["ZSCORE", "{test}:index", short]).await;
    assert_eq!(score.text(), now.as_epoch_ms().to_string());
}

#[tokio::test]
async fn clocks_that_are_set_back_do_not_bring_revisions_back() {
    let server = Server::start().await;
    let mirror = open(&server.url(), patient()).await;
    let one = create(&mirror, "a").await;
    // As if the server's clock had been two minutes ahead until now.
    let ahead = one.revision.number() + 120_000_000;
    server
        .call(&["HSET", "{test}:meta", "r", &ahead.to_string()])
        .await;
    let two = mirror
        .commit(put("a", Expected::Revision(one.revision), 2))
        .await
        .unwrap();
    assert_eq!(two.revision, Revision::new(ahead + 1));
    let three = create(&mirror, "b").await;
    assert_eq!(three.revision, Revision::new(ahead + 2));
    server.call(&["DEL", "{test}:meta"]).await;
    let four = create(&mirror, "c").await;
    assert!(four.revision > three.revision, "the log remembers");
    server.call(&["DEL", "{test}:meta", "{test}:log"]).await;
    let five = mirror
        .commit(put("a", Expected::Revision(two.revision), 3))
        .await
        .unwrap();
    assert!(five.revision > two.revision, "and so does the record");
    let record = mirror.load(&key("a")).await.unwrap().unwrap();
    assert_eq!(record.decode::<Count>(), Ok(Count { count: 3 }));
}
