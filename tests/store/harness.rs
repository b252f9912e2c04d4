//! Opening the mirror on a test's server, and the state that tests keep there.

use std::sync::Arc;
use std::time::Duration;

use cluster_tests::wait::eventually;
use serde::{Deserialize, Serialize};
use shared_proto::clock::SystemClock;
use shared_proto::config::{RedisUrl, StoreUrl};
use shared_proto::mirror::commit::{Commit, Committed, Expected};
use shared_proto::mirror::key::{HEALTH, Key};
use shared_proto::mirror::record::Body;
use shared_proto::mirror::redis::{Options, Redis};
use shared_proto::mirror::{Health, Mirror};

/// The state that the tests keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Count {
    pub(crate) count: u64,
}

impl Body for Count {
    const KIND: &'static str = HEALTH;
    const VERSION: u16 = 1;
}

/// The prefix of the tests' keys.
pub(crate) const PREFIX: &str = "test";

/// Time limits that a busy machine does not break.
pub(crate) fn patient() -> Options {
    Options {
        deadline: Duration::from_secs(5),
        ..Options::default()
    }
}

pub(crate) fn url(text: &str) -> RedisUrl {
    match text.parse() {
        Ok(StoreUrl::Redis(url)) => url,
        other => panic!("{text}: {other:?}"),
    }
}

/// A mirror that has reached its server.
pub(crate) async fn open(text: &str, options: Options) -> Redis {
    open_as(text, PREFIX, options).await
}

/// The same, under another prefix.
pub(crate) async fn open_as(text: &str, prefix: &str, options: Options) -> Redis {
    let redis = Redis::open(&url(text), prefix, Arc::new(SystemClock), options).unwrap();
    redis.contact().await.unwrap();
    redis
}

pub(crate) fn key(id: &str) -> Key {
    Key::Health(id.into())
}

pub(crate) fn put(id: &str, expected: Expected, count: u64) -> Commit {
    Commit::put(key(id), expected, &Count { count }).unwrap()
}

/// A commit of a record that is not there yet.
pub(crate) async fn create(mirror: &dyn Mirror, id: &str) -> Committed {
    mirror.commit(put(id, Expected::Absent, 1)).await.unwrap()
}

/// Waits until it takes commits.
pub(crate) async fn up(mirror: &dyn Mirror) {
    eventually("the store is up", || async {
        (mirror.health() == Health::Up).then_some(())
    })
    .await;
}

/// Waits until it takes none; why.
pub(crate) async fn degraded(mirror: &dyn Mirror) -> String {
    eventually("the store is degraded", || async {
        match mirror.health() {
            Health::Up => None,
            Health::Degraded { why, .. } => Some(why.to_string()),
        }
    })
    .await
}
