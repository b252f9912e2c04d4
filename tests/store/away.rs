//! A server that is away, frozen, slow, or refuses: every call ends in time,
//! the reason is told, and everything goes on when it is cured.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cluster_tests::cut::{Cut, Mode};
use cluster_tests::redis::{Redis as Server, Setup};
use cluster_tests::wait::{SOON, eventually, within};
use futures_util::future::join_all;
use shared_proto::mirror::commit::{CommitError, Expected};
use shared_proto::mirror::hold::{Holder, Place, Pool, Take, Taken};
use shared_proto::mirror::log::TailError;
use shared_proto::mirror::redis::{Options, Redis};
use shared_proto::mirror::{Health, LoadError, Mirror};

use super::harness::{create, degraded, key, open, patient, put, up};

/// How much later than its deadline a call may end on a busy machine.
const SLACK: Duration = Duration::from_secs(2);

fn brisk() -> Options {
    Options {
        deadline: Duration::from_millis(500),
        ..Options::default()
    }
}

/// Calls of every kind, at once, all of which have to fail within the deadline.
async fn all_fail_in_time(mirror: &Redis) {
    let began = Instant::now();
    let commits = (0..50).map(|n| mirror.commit(put(&n.to_string(), Expected::Absent, 1)));
    let take = mirror.take(Take {
        pool: Pool::Nodes,
        holder: Holder("n".into()),
        limit: None,
        ttl_ms: 1_000,
        patience_ms: None,
        guard: None,
        note: "".into(),
    });
    let a = key("a");
    let reads = async {
        assert!(matches!(
            mirror.load(&a).await,
            Err(LoadError::Unreachable(_))
        ));
        assert!(mirror.snapshot().await.is_err());
        assert!(take.await.is_err());
        assert!(mirror.holders(&Pool::Nodes).await.is_err());
    };
    let (outcomes, ()) = futures_util::future::join(join_all(commits), reads).await;
    for outcome in outcomes {
        assert!(
            matches!(outcome, Err(CommitError::Unreachable(_))),
            "{outcome:?}"
        );
    }
    let took = began.elapsed();
    assert!(took < brisk().deadline * 3 + SLACK, "{took:?}");
}

/// While it is known to be away, nobody waits.
async fn fails_at_once(mirror: &Redis) {
    let began = Instant::now();
    for _ in 0..200 {
        let outcome = mirror.commit(put("x", Expected::Absent, 1)).await;
        assert!(matches!(outcome, Err(CommitError::Unreachable(_))));
        if matches!(mirror.health(), Health::Up) {
            return;
        }
    }
    let took = began.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[tokio::test]
async fn a_frozen_server_fails_calls_in_time_and_is_used_again_when_it_thaws() {
    let server = Server::start().await;
    let mirror = open(&server.url(), brisk()).await;
    let done = create(&mirror, "a").await;
    let mut tail = mirror.tail(done.position).await.unwrap();
    server.stop();
    all_fail_in_time(&mirror).await;
    let why = degraded(&mirror).await;
    assert!(why.contains("answer"), "{why}");
    fails_at_once(&mirror).await;
    let ended = within(SOON, "the tail ends", tail.next()).await;
    assert!(matches!(ended, Err(TailError::Unreachable(_))), "{ended:?}");
    let stood = mirror.now();
    server.cont();
    up(&mirror).await;
    let done = mirror
        .commit(put("a", Expected::Revision(done.revision), 2))
        .await;
    assert!(done.is_ok(), "{done:?}");
    assert!(mirror.now() >= stood);
}

#[tokio::test]
async fn an_idle_node_notices_that_the_server_is_gone_and_comes_back() {
    let mut server = Setup::durable().start().await;
    let mirror = open(&server.url(), patient()).await;
    let done = create(&mirror, "a").await;
    server.kill().await;
    let why = degraded(&mirror).await;
    assert!(!why.is_empty());
    let outcome = mirror.load(&key("a")).await;
    assert!(matches!(outcome, Err(LoadError::Unreachable(_))));
    server.restart().await;
    up(&mirror).await;
    let record = mirror.load(&key("a")).await.unwrap().unwrap();
    assert_eq!(record.revision, done.revision);
}

#[tokio::test]
async fn a_line_that_swallows_everything_is_as_good_as_none() {
    let server = Server::start().await;
    let line = Cut::before(server.addr()).await;
    let mirror = open(&server.url_via(line.addr()), brisk()).await;
    let done = create(&mirror, "a").await;
    let mut tail = mirror.tail(done.position).await.unwrap();
    for mode in [Mode::BlackHole, Mode::Mute, Mode::Refuse] {
        line.set(mode).await;
        let ended = within(SOON, "the tail ends", tail.next()).await;
        assert!(matches!(ended, Err(TailError::Unreachable(_))), "{ended:?}");
        all_fail_in_time(&mirror).await;
        degraded(&mirror).await;
        line.set(Mode::Pass).await;
        up(&mirror).await;
        tail = eventually("there is a tail again", || async {
            mirror.tail(done.position).await.ok()
        })
        .await;
    }
}

#[tokio::test]
async fn a_slow_line_is_endured_within_the_deadline_and_no_longer() {
    let server = Server::start().await;
    let line = Cut::before(server.addr()).await;
    let options = Options {
        deadline: Duration::from_secs(1),
        ..Options::default()
    };
    let mirror = open(&server.url_via(line.addr()), options).await;
    line.set(Mode::Delay(Duration::from_millis(100))).await;
    create(&mirror, "a").await;
    assert_eq!(mirror.health(), Health::Up);
    line.set(Mode::Delay(Duration::from_millis(1_500))).await;
    let began = Instant::now();
    let outcome = mirror.commit(put("b", Expected::Absent, 1)).await;
    assert!(matches!(outcome, Err(CommitError::Unreachable(_))));
    assert!(began.elapsed() < options.deadline + SLACK);
    degraded(&mirror).await;
    line.set(Mode::Pass).await;
    up(&mirror).await;
    // What was not answered may have been done all the same.
    let record = mirror.load(&key("b")).await.unwrap();
    assert!(record.is_none_or(|record| record.version == 1));
}

/// A refusal of writes: how it is brought about, how it is cured, its word.
type Refusal = (
    &'static [&'static str],
    &'static [&'static str],
    &'static str,
);

#[tokio::test]
async fn refused_writes_are_explained_and_reads_go_on() {
    let server = Server::start().await;
    let mirror = open(&server.url(), patient()).await;
    let done = create(&mirror, "a").await;
    let place = Place {
        pool: Pool::Nodes,
        holder: Holder("n".into()),
    };
    let take = Take {
        pool: Pool::Nodes,
        holder: place.holder.clone(),
        limit: None,
        ttl_ms: 600_000,
        patience_ms: None,
        guard: None,
        note: "".into(),
    };
    let refusals: [Refusal; 2] = [
        (
            &["CONFIG", "SET", "maxmemory", "1"],
            &["CONFIG", "SET", "maxmemory", "0"],
            "OOM",
        ),
        (
            &["CONFIG", "SET", "min-replicas-to-write", "1"],
            &["CONFIG", "SET", "min-replicas-to-write", "0"],
            "NOREPLICAS",
        ),
    ];
    for (cause, cure, word) in refusals {
        let taken = mirror.take(take.clone()).await;
        assert!(matches!(taken, Ok(Taken::Held { .. })), "{taken:?}");
        server.call(cause).await;
        let outcome = mirror.commit(put("b", Expected::Absent, 1)).await;
        let Err(CommitError::Unreachable(why)) = outcome else {
            panic!("{word}: {outcome:?}");
        };
        assert!(why.0.contains(word), "{why}");
        assert!(degraded(&mirror).await.contains(word));
        let record = mirror.load(&key("a")).await.unwrap().unwrap();
        assert_eq!(record.revision, done.revision);
        assert_eq!(mirror.snapshot().await.unwrap().records, [record]);
        if word == "OOM" {
            let kept = mirror.keep(vec![place.clone()], 600_000).await;
            assert_eq!(kept, Ok(vec![true]), "what is held stays so");
            assert_eq!(mirror.give_back(vec![place.clone()]).await, Ok(()));
        }
        server.call(cure).await;
        up(&mirror).await;
    }
    create(&mirror, "b").await;
}

/// With `stop-writes-on-bgsave-error`, as Redis is by default.
#[tokio::test]
async fn a_server_that_can_not_save_takes_no_writes_and_is_read() {
    let server = Setup::memory().line("save 3600 1").start().await;
    let mirror = open(&server.url(), patient()).await;
    let done = create(&mirror, "a").await;
    // Nothing can take the place of a directory that is not empty.
    std::fs::create_dir_all(server.dir().join("dump.rdb/full")).unwrap();
    server.call(&["BGSAVE"]).await;
    let tries = AtomicU64::new(0);
    let why = eventually("writes are refused", || async {
        let id = tries.fetch_add(1, Ordering::Relaxed).to_string();
        match mirror.commit(put(&id, Expected::Absent, 1)).await {
            Err(CommitError::Unreachable(why)) => Some(why),
            _ => None,
        }
    })
    .await;
    assert!(why.0.contains("MISCONF"), "{why}");
    assert!(degraded(&mirror).await.contains("MISCONF"));
    let record = mirror.load(&key("a")).await.unwrap().unwrap();
    assert_eq!(record.revision, done.revision);
    server.call(&["CONFIG", "SET", "save", ""]).await;
    up(&mirror).await;
    create(&mirror, "b").await;
}

#[tokio::test]
async fn a_server_that_becomes_a_replica_takes_no_writes_until_it_is_a_master_again() {
    let server = Server::start().await;
    let mirror = open(&server.url(), patient()).await;
    create(&mirror, "a").await;
    // There is no such master; it becomes a replica all the same.
    server.call(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let outcome = mirror.commit(put("b", Expected::Absent, 1)).await;
    assert!(
        matches!(outcome, Err(CommitError::Unreachable(_))),
        "{outcome:?}"
    );
    let why = eventually("it is said to be a replica", || async {
        let why = degraded(&mirror).await;
        why.contains("replica").then_some(why)
    })
    .await;
    assert!(why.contains("replica"));
    server.call(&["REPLICAOF", "NO", "ONE"]).await;
    up(&mirror).await;
    create(&mirror, "b").await;
}

#[tokio::test]
async fn a_password_is_asked_for_and_a_wrong_one_is_refused() {
    let server = Setup::memory().password("s3cret").start().await;
    let right = server.url();
    for (url, word) in [
        (right.replace(":s3cret@", ""), "NOAUTH"),
        (right.replace("s3cret", "wr0ng"), "WRONGPASS"),
        (right.replace(":s3cret", "nobody:s3cret"), "WRONGPASS"),
    ] {
        let mirror = Redis::open(
            &super::harness::url(&url),
            "test",
            std::sync::Arc::new(shared_proto::clock::SystemClock),
            patient(),
        )
        .unwrap();
        let why = mirror.contact().await.unwrap_err().to_string();
        assert!(why.contains(word), "{why}");
        assert!(!why.contains("s3cret") && !why.contains("wr0ng"), "{why}");
        assert!(matches!(mirror.health(), Health::Degraded { .. }));
    }
    let mirror = open(&right, patient()).await;
    create(&mirror, "a").await;
    // A password that is changed later ends nothing that is open; new
    // connections are refused, and the reason is told.
    server
        .call(&["CONFIG", "SET", "requirepass", "other"])
        .await;
    create(&mirror, "b").await;
}

#[tokio::test]
async fn a_user_who_may_not_do_all_that_is_needed_is_told_what() {
    let rules = "~* +@all -xadd";
    let server = Setup::memory().user("router", "pw", rules).start().await;
    let mirror = open(&server.url(), patient()).await;
    let why = degraded(&mirror).await;
    assert!(why.contains("NOPERM") && why.contains("XADD"), "{why}");
    assert_eq!(mirror.load(&key("a")).await, Ok(None), "reads go on");
    let outcome = mirror.commit(put("a", Expected::Absent, 1)).await;
    assert!(matches!(outcome, Err(CommitError::Unreachable(_))));
    assert_eq!(mirror.load(&key("a")).await, Ok(None));
}

#[tokio::test]
async fn a_script_of_another_program_makes_no_call_hang() {
    let server = Server::start().await;
    let mirror = open(&server.url(), brisk()).await;
    server
        .call(&["CONFIG", "SET", "busy-reply-threshold", "50"])
        .await;
    let busy = tokio::spawn({
        let link = server.link().await.unwrap();
        async move {
            let mut link = link;
            link.call(&["EVAL", "while true do end", "0"]).await.ok();
        }
    });
    degraded(&mirror).await;
    all_fail_in_time(&mirror).await;
    eventually("the script is killed", || async {
        let mut link = server.link().await.ok()?;
        let killed = link.call(&["SCRIPT", "KILL"]).await.ok()?;
        matches!(killed, cluster_tests::resp::Resp::Simple(_)).then_some(())
    })
    .await;
    up(&mirror).await;
    create(&mirror, "b").await;
    busy.abort();
}

#[tokio::test]
async fn scripts_that_the_server_forgets_are_loaded_again() {
    let server = Server::start().await;
    let mirror = open(&server.url(), patient()).await;
    for n in 0..20_u32 {
        server.call(&["SCRIPT", "FLUSH"]).await;
        create(&mirror, &n.to_string()).await;
        assert_eq!(mirror.health(), Health::Up);
    }
    // And while many use them.
    let flush = async {
        for _ in 0..20 {
            server.call(&["SCRIPT", "FLUSH"]).await;
        }
    };
    let ids: Vec<_> = (100..400).map(|n: u32| n.to_string()).collect();
    let commits = join_all(ids.iter().map(|id| create(&mirror, id)));
    futures_util::future::join(flush, commits).await;
    assert_eq!(mirror.snapshot().await.unwrap().records.len(), 320);
}
