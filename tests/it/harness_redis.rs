//! The harness's Redis servers and the proxy before them: a fault that does not
//! happen as ordered would prove nothing.

use std::time::{Duration, Instant};

use cluster_tests::cut::{Cut, Mode};
use cluster_tests::redis::{Redis, Setup};
use cluster_tests::redis_cluster::RedisCluster;
use cluster_tests::resp::{Link, Resp};
use cluster_tests::sentinel::Sentinel;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::eventually;

const SHORT: Duration = Duration::from_millis(300);

fn ok() -> Resp {
    Resp::Simple("OK".into())
}

#[tokio::test]
async fn a_server_comes_back_with_or_without_its_data() {
    let mut redis = Setup::durable().start().await;
    assert_eq!(redis.call(&["SET", "a", "1"]).await, ok());
    let before = redis.url();
    redis.kill().await;
    assert!(redis.link().await.is_err(), "it still answers");
    redis.restart().await;
    assert_eq!(redis.url(), before);
    assert_eq!(redis.call(&["GET", "a"]).await.text(), "1");
    redis.kill().await;
    redis.restart_empty().await;
    assert_eq!(redis.keys().await, Vec::<String>::new());
}

#[tokio::test]
async fn a_frozen_server_answers_once_it_goes_on() {
    let redis = Redis::start().await;
    let mut link = redis.link().await.unwrap();
    redis.stop();
    let call = link.call(&["PING"]);
    tokio::pin!(call);
    let early = tokio::time::timeout(SHORT, &mut call).await;
    assert!(early.is_err(), "a frozen server answered");
    redis.cont();
    assert_eq!(call.await.unwrap(), Resp::Simple("PONG".into()));
}

#[tokio::test]
async fn passwords_users_and_tls_are_asked_for() {
    let redis = Setup::memory().password("secret").start().await;
    assert!(redis.url().starts_with("redis://:secret@127.0.0.1:"));
    let mut stranger = Link::connect(redis.addr()).await.unwrap();
    let refused = stranger.call(&["PING"]).await.unwrap();
    assert!(matches!(refused, Resp::Error(text) if text.starts_with("NOAUTH")));

    let setup = Setup::memory().user("router", "pw", "~omniroute* &* +@all");
    let redis = setup.start().await;
    assert!(redis.url().starts_with("redis://router:pw@127.0.0.1:"));
    let mut user = Link::connect(redis.addr()).await.unwrap();
    assert_eq!(user.call(&["AUTH", "router", "pw"]).await.unwrap(), ok());
    assert_eq!(user.call(&["SET", "omniroute:x", "1"]).await.unwrap(), ok());
    let foreign = user.call(&["SET", "other", "1"]).await.unwrap();
    assert!(matches!(foreign, Resp::Error(text) if text.starts_with("NOPERM")));

    let redis = Setup::memory().tls().start().await;
    assert!(redis.url().starts_with("rediss://127.0.0.1:"));
    assert_ne!(redis.node_addr(), redis.addr());
    let mut plain = Link::connect(redis.node_addr()).await.unwrap();
    assert!(
        plain.call(&["PING"]).await.is_err(),
        "TLS was not asked for"
    );
    assert!(redis.ca_file().exists());
}

#[tokio::test]
async fn everything_that_a_server_holds_and_hears_can_be_read() {
    let redis = Redis::start().await;
    let monitor = redis.monitor().await;
    for words in [
        &["SET", "s", "needle-1"][..],
        &["HSET", "h", "f", "needle-2"],
        &["RPUSH", "l", "needle-3"],
        &["SADD", "set", "needle-4"],
        &["ZADD", "z", "1", "needle-5"],
        &["XADD", "x", "*", "f", "needle-6"],
    ] {
        redis.call(words).await;
    }
    let contents = redis.contents().await;
    for n in 1..=6 {
        assert!(contents.contains(&format!("needle-{n}")), "{contents}");
    }
    eventually("the monitor has heard all", || async {
        let lines = monitor.lines().join("\n");
        lines.contains("needle-6").then_some(())
    })
    .await;
    assert!(redis.info("total_commands_processed").await > 6);
}

#[tokio::test]
async fn the_proxy_passes_delays_and_drips() {
    let redis = Redis::start().await;
    let cut = Cut::before(redis.addr()).await;
    let mut link = Link::connect(cut.addr()).await.unwrap();
    assert_eq!(link.call(&["SET", "a", "1"]).await.unwrap(), ok());
    cut.set(Mode::Delay(SHORT)).await;
    let begun = Instant::now();
    assert_eq!(link.call(&["GET", "a"]).await.unwrap().text(), "1");
    assert!(begun.elapsed() >= SHORT * 2, "{:?}", begun.elapsed());
    cut.set(Mode::Drip(Duration::from_millis(10))).await;
    let begun = Instant::now();
    assert_eq!(link.call(&["GET", "a"]).await.unwrap().text(), "1");
    // 20 bytes forth and 7 back.
    let least = Duration::from_millis(270);
    assert!(begun.elapsed() >= least, "{:?}", begun.elapsed());
    assert_eq!((cut.live(), cut.accepted()), (1, 1));
}

#[tokio::test]
async fn what_the_proxy_withholds_is_late_and_not_lost() {
    let redis = Redis::start().await;
    let cut = Cut::before(redis.addr()).await;
    for (mode, arrived) in [(Mode::BlackHole, false), (Mode::Mute, true)] {
        let mut link = Link::connect(cut.addr()).await.unwrap();
        link.call(&["DEL", "n"]).await.unwrap();
        cut.set(mode).await;
        let call = link.call(&["INCR", "n"]);
        tokio::pin!(call);
        let early = tokio::time::timeout(SHORT, &mut call).await;
        assert!(early.is_err(), "{mode:?} let the answer pass");
        let stored = redis.call(&["GET", "n"]).await;
        assert_eq!(stored != Resp::Nil, arrived, "{mode:?}");
        cut.set(Mode::Pass).await;
        assert_eq!(call.await.unwrap(), Resp::Int(1));
    }
}

#[tokio::test]
async fn the_proxy_resets_and_refuses() {
    let redis = Redis::start().await;
    let cut = Cut::before(redis.addr()).await;
    let mut link = Link::connect(cut.addr()).await.unwrap();
    link.call(&["PING"]).await.unwrap();
    cut.set(Mode::Cut).await;
    assert!(link.call(&["PING"]).await.is_err());
    let mut other = Link::connect(cut.addr()).await.unwrap();
    assert!(other.call(&["PING"]).await.is_err());
    cut.set(Mode::Refuse).await;
    let error = Link::connect(cut.addr()).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    cut.set(Mode::Pass).await;
    let mut link = Link::connect(cut.addr()).await.unwrap();
    link.call(&["PING"]).await.unwrap();
    cut.blink().await;
    assert!(link.call(&["PING"]).await.is_err());
    let mut link = Link::connect(cut.addr()).await.unwrap();
    link.call(&["PING"]).await.unwrap();
}

#[tokio::test]
async fn the_proxy_hands_on_the_end_of_either_side() {
    let upstream = Upstream::start().await;
    let mut redis = Redis::start().await;
    let cut = Cut::before(redis.addr()).await;
    let link = Link::connect(cut.addr()).await.unwrap();
    eventually("it has the connection", || async {
        (cut.live() == 1).then_some(())
    })
    .await;
    drop(link);
    eventually("it has let go", || async {
        (cut.live() == 0).then_some(())
    })
    .await;
    let mut link = Link::connect(cut.addr()).await.unwrap();
    link.call(&["PING"]).await.unwrap();
    redis.kill().await;
    assert!(link.call(&["PING"]).await.is_err());
    drop(upstream);
}

#[tokio::test]
async fn a_sentinel_failover_loses_what_the_replica_never_saw() {
    let mut all = Sentinel::start().await;
    let master = all.master().await;
    assert_eq!(master.call(&["SET", "kept", "1"]).await, ok());
    let replica = &all.servers()[1 - all.master_at().await];
    eventually("the replica has it", || async {
        (replica.call(&["GET", "kept"]).await.text() == "1").then_some(())
    })
    .await;
    all.break_replication().await;
    let lost = all.master().await.call(&["SET", "lost", "1"]).await;
    assert_eq!(lost, ok());
    let former = all.kill_master().await;
    let master = all.master().await;
    assert_eq!(master.call(&["GET", "kept"]).await.text(), "1");
    assert_eq!(master.call(&["GET", "lost"]).await, Resp::Nil);
    all.servers_mut()[former].restart().await;
    eventually("the former master follows", || async {
        let role = all.servers()[former].call(&["ROLE"]).await.array();
        (role[0].text() == "slave").then_some(())
    })
    .await;
    all.fail_over().await;
    assert_eq!(all.master_at().await, former);
}

#[tokio::test]
async fn a_cluster_serves_and_replaces_a_master() {
    let mut all = RedisCluster::start().await;
    let mut written = Vec::new();
    for at in 0..3 {
        let reply = all.servers()[at].call(&["SET", "{x}key", "1"]).await;
        if reply == ok() {
            written.push(at);
        }
    }
    assert_eq!(written.len(), 1, "one master owns a key");
    assert_eq!(all.any_key("{x}").await, "{x}key");
    assert_eq!(all.holder_of("{x}key").await, written[0]);
    eventually("a replica has it", || async {
        for server in &all.servers()[3..] {
            let mut link = server.link().await.ok()?;
            link.call(&["READONLY"]).await.ok()?;
            let found = link.call(&["EXISTS", "{x}key"]).await.ok()?;
            if found == Resp::Int(1) {
                return Some(());
            }
        }
        None
    })
    .await;
    all.servers_mut()[written[0]].kill().await;
    assert!(all.holder_of("{x}key").await >= 3, "a replica takes over");
}
