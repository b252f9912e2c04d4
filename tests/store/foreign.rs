//! Other people's data, and that of other versions, under our keys: read as
//! far as it can be, never fatal, never deleted.

use cluster_tests::redis::Redis as Server;
use cluster_tests::resp::Resp;
use shared_proto::mirror::commit::{
    Change, Commit, CommitError, Expected, Guard, Refusal, TransactError, Transaction,
};
use shared_proto::mirror::hold::{HoldError, Holder, Pool, Take, Taken};
use shared_proto::mirror::key::Key;
use shared_proto::mirror::log::{Logged, Position};
use shared_proto::mirror::record::{BodyError, Revision, Why};
use shared_proto::mirror::{Health, LoadError, Mirror};

use super::harness::{Count, create, degraded, key, open, patient, put, up};

async fn unreadable(mirror: &dyn Mirror, id: &str) -> Why {
    match mirror.load(&key(id)).await {
        Err(LoadError::Unreadable(what)) => {
            assert_eq!(&*what.key, format!("{{test}}:health:{id}"));
            what.why
        }
        other => panic!("{id}: {other:?}"),
    }
}

/// Plants records that are none; the ids.
async fn garbage(server: &Server) -> Vec<&'static str> {
    let at = |id: &str| format!("{{test}}:health:{id}");
    let plant: [(&str, &[&str]); 8] = [
        ("string", &["SET", "KEY", "text"]),
        ("list", &["RPUSH", "KEY", "1"]),
        ("stream", &["XADD", "KEY", "*", "f", "1"]),
        ("other-hash", &["HSET", "KEY", "name", "value"]),
        (
            "no-body",
            &["HSET", "KEY", "f", "1", "v", "1", "r", "1", "w", "1"],
        ),
        (
            "odd-revision",
            &[
                "HSET", "KEY", "f", "1", "v", "1", "r", "-1", "w", "1", "b", "",
            ],
        ),
        (
            "huge-revision",
            &[
                "HSET",
                "KEY",
                "f",
                "1",
                "v",
                "1",
                "r",
                "18446744073709551615",
                "w",
                "1",
                "b",
                "",
            ],
        ),
        (
            "odd-format",
            &[
                "HSET", "KEY", "f", "one", "v", "1", "r", "1", "w", "1", "b", "",
            ],
        ),
    ];
    for (id, words) in plant {
        let key = at(id);
        let words: Vec<_> = words
            .iter()
            .map(|word| if *word == "KEY" { &key } else { *word })
            .collect();
        let reply = server.call(&words).await;
        assert!(!matches!(reply, Resp::Error(_)), "{reply:?}");
        server
            .call(&["ZADD", "{test}:index", "+inf", &format!("health:{id}")])
            .await;
    }
    plant.iter().map(|(id, _)| *id).collect()
}

#[tokio::test]
async fn garbage_is_unreadable_hides_nothing_and_is_replaced_only_knowingly() {
    let server = Server::start().await;
    let mirror = open(&server.url(), patient()).await;
    create(&mirror, "good").await;
    let ids = garbage(&server).await;
    // Names that no key is spelled as.
    for name in [
        "health",
        "health:%41",
        "Other Kind:x",
        "",
        "\u{fffd}",
        "log",
        "index",
    ] {
        server.call(&["ZADD", "{test}:index", "+inf", name]).await;
    }
    let before = server.contents().await;
    let snapshot = mirror.snapshot().await.unwrap();
    assert_eq!(snapshot.records.len(), 1);
    assert_eq!(snapshot.records[0].key, key("good"));
    assert_eq!(snapshot.unreadable.len(), ids.len() + 7);
    for id in &ids {
        assert!(
            matches!(unreadable(&mirror, id).await, Why::Corrupt(_)),
            "{id}"
        );
        for blind in [Expected::Absent, Expected::Revision(Revision::new(1))] {
            let outcome = mirror.commit(put(id, blind, 1)).await;
            let refused = matches!(outcome, Err(CommitError::Refused(Refusal::Unreadable(_))));
            assert!(refused, "{id}: {outcome:?}");
        }
        let fenced = mirror
            .transact(Transaction {
                guards: vec![Guard {
                    key: key(id),
                    revision: Revision::new(1),
                }],
                commits: vec![put("fenced", Expected::Absent, 1)],
                replicas: 0,
            })
            .await;
        assert!(
            matches!(fenced, Err(TransactError::Conflict { .. })),
            "{fenced:?}"
        );
    }
    assert_eq!(server.contents().await, before, "nothing was touched");
    for id in &ids {
        mirror.commit(put(id, Expected::Corrupt, 2)).await.unwrap();
        let record = mirror.load(&key(id)).await.unwrap().unwrap();
        assert_eq!(record.decode::<Count>(), Ok(Count { count: 2 }));
    }
    assert_eq!(
        mirror.snapshot().await.unwrap().records.len(),
        ids.len() + 1
    );
    assert_eq!(mirror.health(), Health::Up);
}

#[tokio::test]
async fn hostile_bodies_are_carried_and_not_decoded() {
    let server = Server::start().await;
    let mirror = open(&server.url(), patient()).await;
    // A map of four thousand million entries, and one nested without end.
    for (id, body) in [
        ("wide", b"\xdf\xff\xff\xff\xff".to_vec()),
        ("deep", vec![0x81; 500_000]),
    ] {
        let commit = Commit {
            change: Change::Put {
                body: body.into(),
                expires_at: None,
            },
            ..put(id, Expected::Absent, 1)
        };
        mirror.commit(commit).await.unwrap();
        let record = mirror.load(&key(id)).await.unwrap().unwrap();
        assert!(matches!(
            record.decode::<Count>(),
            Err(BodyError::Corrupt(_))
        ));
    }
    assert_eq!(mirror.snapshot().await.unwrap().records.len(), 2);
}

#[tokio::test]
async fn a_newer_format_is_carried_and_never_replaced() {
    let server = Server::start().await;
    let mirror = open(&server.url(), patient()).await;
    let start = mirror.snapshot().await.unwrap().position;
    let newer = "{test}:health:newer";
    server
        .call(&["HSET", newer, "f", "2", "data", "of tomorrow", "r", "5"])
        .await;
    server
        .call(&["ZADD", "{test}:index", "+inf", "health:newer"])
        .await;
    let before = server.contents().await;
    assert_eq!(unreadable(&mirror, "newer").await, Why::Newer { found: 2 });
    for expected in [
        Expected::Absent,
        Expected::Corrupt,
        Expected::Revision(Revision::new(5)),
    ] {
        let outcome = mirror.commit(put("newer", expected, 1)).await;
        let refused = matches!(&outcome, Err(CommitError::Refused(Refusal::Unreadable(_))));
        let conflict = outcome == Err(CommitError::Conflict { newest: None });
        assert!(refused || conflict, "{outcome:?}");
    }
    assert_eq!(server.contents().await, before);
    // Its writer tells of it in the log, in a form of its own.
    let told = "XADD {test}:log 9-0 p 0-0 k health:newer r 9 f 2 data tomorrow";
    server.call(&told.split(' ').collect::<Vec<_>>()).await;
    let mut tail = mirror.tail(start).await.unwrap();
    let change = tail.next().await.unwrap().change;
    let Logged::Unreadable(what) = change else {
        panic!("{change:?}");
    };
    assert_eq!(what.why, Why::Newer { found: 2 });
    let next = create(&mirror, "a").await;
    assert_eq!(tail.next().await.unwrap().position, next.position);
    let snapshot = mirror.snapshot().await.unwrap();
    assert_eq!((snapshot.records.len(), snapshot.unreadable.len()), (1, 1));
}

#[tokio::test]
async fn fields_and_kinds_of_a_newer_version_are_ignored_and_kept() {
    let server = Server::start().await;
    let mirror = open(&server.url(), patient()).await;
    let done = create(&mirror, "a").await;
    server
        .call(&["HSET", "{test}:health:a", "later", "field"])
        .await;
    let record = mirror.load(&key("a")).await.unwrap().unwrap();
    assert_eq!(record.revision, done.revision);
    let later = Key::other("later-kind", "x").unwrap();
    let commit = Commit {
        key: later.clone(),
        version: 7,
        ..put("a", Expected::Absent, 1)
    };
    mirror.commit(commit.clone()).await.unwrap();
    let older = Commit {
        version: 6,
        ..commit
    };
    let outcome = mirror.commit(older).await;
    assert!(
        matches!(outcome, Err(CommitError::Conflict { newest: Some(_) })),
        "{outcome:?}"
    );
    assert_eq!(mirror.load(&later).await.unwrap().unwrap().version, 7);
}

#[tokio::test]
async fn garbage_in_the_log_is_passed_on_and_stops_nobody() {
    let server = Server::start().await;
    let mirror = open(&server.url(), patient()).await;
    let mut at = create(&mirror, "a").await.position;
    let mut tail = mirror.tail(at).await.unwrap();
    let shapes: [&[&str]; 5] = [
        &["any", "thing"],
        &["p", "x-y", "k", "health:a"],
        &["k", "health:a", "d", "soon"],
        &["f", "1", "f", "2"],
        &["\u{fffd}", "\0\r\n"],
    ];
    for (n, shape) in shapes.iter().enumerate() {
        let number =
            |position: Position| position.to_string().split('-').next().unwrap().to_owned();
        let id = format!("{}-{}", number(at), n + 1);
        let mut words = vec!["XADD", "{test}:log", &id];
        words.extend_from_slice(shape);
        let reply = server.call(&words).await;
        assert!(!matches!(reply, Resp::Error(_)), "{reply:?}");
        let told = tail.next().await.unwrap();
        assert!(matches!(told.change, Logged::Unreadable(_)), "{told:?}");
        assert_eq!(told.position.to_string(), id);
        // Readers can begin there, and commits go on behind it.
        let done = create(&mirror, &format!("after-{n}")).await;
        assert_eq!(tail.next().await.unwrap().position, done.position);
        let mut late = mirror.tail(told.position).await.unwrap();
        assert_eq!(late.next().await.unwrap().position, done.position);
        at = done.position;
    }
    assert_eq!(mirror.snapshot().await.unwrap().position, at);
}

#[tokio::test]
async fn other_types_in_place_of_log_and_index_are_named_and_nothing_is_half_done() {
    let server = Server::start().await;
    let mirror = open(&server.url(), patient()).await;
    create(&mirror, "a").await;
    for (own, plant) in [
        ("{test}:log", &["SET", "{test}:log", "x"][..]),
        ("{test}:index", &["SET", "{test}:index", "x"]),
        ("{test}:meta", &["SET", "{test}:meta", "x"]),
        ("{test}:meta", &["HSET", "{test}:meta", "r", "many"]),
        (
            "{test}:log",
            &["XADD", "{test}:log", "18446744073709551615-1", "a", "b"],
        ),
    ] {
        server.call(&["RENAME", own, "{test}:aside"]).await;
        server.call(plant).await;
        let before = server.contents().await;
        let outcome = mirror.commit(put("b", Expected::Absent, 1)).await;
        let Err(CommitError::Unreachable(why)) = outcome else {
            panic!("{own}: {outcome:?}");
        };
        assert!(why.0.contains(own), "{why}");
        assert_eq!(server.contents().await, before, "{own}");
        assert!(degraded(&mirror).await.contains("other data"));
        server.call(&["DEL", own]).await;
        server.call(&["RENAME", "{test}:aside", own]).await;
        up(&mirror).await;
    }
    create(&mirror, "b").await;
}

#[tokio::test]
async fn other_types_in_place_of_a_pool_concern_that_pool_only() {
    let server = Server::start().await;
    let mirror = open(&server.url(), patient()).await;
    server.call(&["SET", "{test}:+held:slots:a", "x"]).await;
    let take = |id: &str| Take {
        pool: Pool::Slots(id.into()),
        holder: Holder("n".into()),
        limit: Some(1),
        ttl_ms: 1_000,
        patience_ms: Some(1_000),
        guard: None,
        note: "".into(),
    };
    let outcome = mirror.take(take("a")).await;
    assert!(
        matches!(outcome, Err(HoldError::Unreachable(_))),
        "{outcome:?}"
    );
    assert!(mirror.holders(&Pool::Slots("a".into())).await.is_err());
    let other = mirror.take(take("b")).await;
    assert!(matches!(other, Ok(Taken::Held { .. })), "{other:?}");
    assert_eq!(mirror.health(), Health::Up);
    assert_eq!(
        server.call(&["GET", "{test}:+held:slots:a"]).await.text(),
        "x"
    );
}
