//! Measures the Redis mirror against the bare server, in one run: commits,
//! loads and holds at several degrees of concurrency, and how long a change
//! takes to reach a reader of the log.
//!
//! `cargo run --release --example mirror_redis -- redis://127.0.0.1:6379`

#![expect(
    clippy::print_stdout,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    reason = "a tool that prints numbers, and ends where something is wrong"
)]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use shared_proto::clock::SystemClock;
use shared_proto::config::StoreUrl;
use shared_proto::mirror::Mirror;
use shared_proto::mirror::commit::{Change, Commit, Expected};
use shared_proto::mirror::hold::{Holder, Place, Pool, Take};
use shared_proto::mirror::key::Key;
use shared_proto::mirror::redis::{Options, Redis};
use tokio::time::Instant;

/// About as much as a connection's health record.
const BODY_BYTES: usize = 300;
const FOR: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() {
    let text = std::env::args().nth(1);
    let text = text.unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let Ok(StoreUrl::Redis(url)) = text.parse() else {
        println!("not a Redis URL");
        return;
    };
    let options = Options {
        deadline: Duration::from_secs(5),
        ..Options::default()
    };
    let mirror = Redis::open(&url, "measured", Arc::new(SystemClock), options).unwrap();
    mirror.contact().await.unwrap();
    let client = ::redis::Client::open(text).unwrap();
    let bare = client.get_multiplexed_async_connection().await.unwrap();
    for callers in [1, 64] {
        bare_calls(&bare, callers).await;
        mirror_calls(&mirror, callers).await;
    }
    lag(&mirror).await;
    mirror.close().await.unwrap();
}

/// Repeats `call` in so many tasks at once; prints how often it was done.
async fn measure(what: &str, callers: usize, call: impl AsyncFn(usize, u64)) {
    let began = Instant::now();
    let one = async |caller| {
        let mut times = Vec::new();
        for n in 0.. {
            let asked = Instant::now();
            call(caller, n).await;
            times.push(asked.elapsed());
            if began.elapsed() > FOR {
                break;
            }
        }
        times
    };
    let mut times = join_all((0..callers).map(one)).await.concat();
    let count = u32::try_from(times.len()).unwrap_or(u32::MAX);
    let rate = f64::from(count) / began.elapsed().as_secs_f64();
    let [p50, p99] = quantiles(&mut times);
    println!("{what:<24} {callers:>3} at once: {rate:>9.0}/s  p50 {p50:?}  p99 {p99:?}");
}

fn quantiles(times: &mut [Duration]) -> [Duration; 2] {
    times.sort_unstable();
    [50, 99].map(|percent| times[(times.len() - 1) * percent / 100])
}

async fn bare_calls(bare: &::redis::aio::MultiplexedConnection, callers: usize) {
    measure("bare GET", callers, async |_, _| {
        let mut bare = bare.clone();
        let got: Option<String> = ::redis::cmd("GET")
            .arg("measured")
            .query_async(&mut bare)
            .await
            .unwrap();
        assert_eq!(got, None);
    })
    .await;
    let script = ::redis::Script::new("return redis.call('TIME')");
    measure("bare EVALSHA", callers, async |_, _| {
        let mut bare = bare.clone();
        let got: Vec<String> = script.invoke_async(&mut bare).await.unwrap();
        assert_eq!(got.len(), 2);
    })
    .await;
}

fn key(caller: usize) -> Key {
    Key::Health(format!("account-{caller}").as_str().into())
}

fn put(key: Key, expected: Expected) -> Commit {
    Commit {
        key,
        expected,
        version: 1,
        change: Change::Put {
            body: vec![0x80; BODY_BYTES].into(),
            expires_at: None,
        },
    }
}

async fn expected(mirror: &Redis, key: &Key) -> Expected {
    let stored = mirror.load(key).await.unwrap();
    stored.map_or(Expected::Absent, |record| {
        Expected::Revision(record.revision)
    })
}

async fn mirror_calls(mirror: &Redis, callers: usize) {
    let mut states = Vec::new();
    for caller in 0..callers {
        states.push(std::cell::Cell::new(expected(mirror, &key(caller)).await));
    }
    measure("commit", callers, async |caller, _| {
        let commit = put(key(caller), states[caller].get());
        let done = mirror.commit(commit).await.unwrap();
        states[caller].set(Expected::Revision(done.revision));
    })
    .await;
    measure("load", callers, async |caller, _| {
        assert!(mirror.load(&key(caller)).await.unwrap().is_some());
    })
    .await;
    measure("take and give back", callers, async |caller, n| {
        let place = Place {
            pool: Pool::Slots("account".into()),
            holder: Holder(format!("{caller}-{n}").into()),
        };
        let take = Take {
            pool: place.pool.clone(),
            holder: place.holder.clone(),
            limit: Some(1_000),
            ttl_ms: 15_000,
            patience_ms: None,
            guard: None,
            note: Bytes::new(),
        };
        mirror.take(take).await.unwrap();
        mirror.give_back(vec![place]).await.unwrap();
    })
    .await;
}

/// From a commit's call to a reader's hearing of it, idle and while others
/// commit all the time.
async fn lag(mirror: &Redis) {
    for busy in [0, 16] {
        let start = mirror.snapshot().await.unwrap().position;
        let mut tail = mirror.tail(start).await.unwrap();
        let ended = std::cell::Cell::new(false);
        let noise = join_all((0..busy).map(async |n| {
            let key = Key::Health(format!("noise-{n}").as_str().into());
            let mut state = expected(mirror, &key).await;
            while !ended.get() {
                let done = mirror.commit(put(key.clone(), state)).await.unwrap();
                state = Expected::Revision(done.revision);
            }
        }));
        let probe = Key::Health("probe".into());
        let (told, mut asked) = tokio::sync::mpsc::unbounded_channel();
        let commits = async {
            let mut state = expected(mirror, &probe).await;
            for _ in 0..500 {
                told.send(Instant::now()).unwrap();
                let done = mirror.commit(put(probe.clone(), state)).await.unwrap();
                state = Expected::Revision(done.revision);
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            ended.set(true);
        };
        let reads = async {
            let mut times = Vec::new();
            while times.len() < 500 {
                let entry = tail.next().await.unwrap();
                let shared_proto::mirror::log::Logged::Put(record) = entry.change else {
                    continue;
                };
                if record.key == probe {
                    times.push(asked.recv().await.unwrap().elapsed());
                }
            }
            times
        };
        let (_, (), mut times) = futures_util::future::join3(noise, commits, reads).await;
        let [p50, p99] = quantiles(&mut times);
        println!("commit to reader, {busy:>2} others: p50 {p50:?}  p99 {p99:?}");
    }
}
