//! The suite that every store has to pass, on each form of Redis.

use std::sync::Arc;

use cluster_tests::redis::{Redis as Server, Setup};
use cluster_tests::redis_cluster::RedisCluster;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use shared_proto::mirror::Mirror;
use shared_proto::mirror::conformance::{self, Backend};
use shared_proto::mirror::redis::Options;

use super::harness::{open, open_as, patient};

const LOG_ENTRIES: u64 = 300;

fn options() -> Options {
    Options {
        log_entries: LOG_ENTRIES,
        ..patient()
    }
}

struct Single(Server);

impl Single {
    async fn start() -> Self {
        Self(Setup::durable().start().await)
    }
}

impl Backend for Single {
    fn open(&self) -> BoxFuture<'_, Arc<dyn Mirror>> {
        async { Arc::new(open(&self.0.url(), options()).await) as Arc<dyn Mirror> }.boxed()
    }

    fn log_entries(&self) -> u64 {
        LOG_ENTRIES
    }
}

mod single {
    use super::Single;

    shared_proto::mirror_conformance!(Single::start().await);
    shared_proto::mirror_reopening!(Single::start().await);
}

/// A deployment of its own on a server that others share.
struct Deployment {
    url: String,
    prefix: &'static str,
}

impl Backend for Deployment {
    fn open(&self) -> BoxFuture<'_, Arc<dyn Mirror>> {
        let opened = open_as(&self.url, self.prefix, options());
        async { Arc::new(opened.await) as Arc<dyn Mirror> }.boxed()
    }

    fn log_entries(&self) -> u64 {
        LOG_ENTRIES
    }
}

/// Runs checks one after the other, each under a prefix of its own.
macro_rules! one_by_one {
    ($url:expr; $($check:ident),+ $(,)?) => {$(
        let deployment = Deployment {
            url: $url.clone(),
            prefix: stringify!($check),
        };
        conformance::$check(&deployment).await;
    )+};
}

#[tokio::test]
async fn a_cluster_passes_every_check() {
    let cluster = RedisCluster::start().await;
    let url = cluster.url();
    shared_proto::mirror_checks!([one_by_one] url);
    one_by_one!(
        url;
        reopening_hides_no_change,
        reopening_keeps_everything_acknowledged,
        reopening_keeps_quiet_records,
        revisions_rise_over_reopening,
    );
}

#[tokio::test]
async fn a_server_with_tls_passes_every_check() {
    let server = Setup::durable().tls().start().await;
    let url = format!("{}?ca={}", server.url(), server.ca_file().display());
    shared_proto::mirror_checks!([one_by_one] url);
}

#[tokio::test]
async fn a_user_who_may_use_its_own_keys_only_passes_every_check() {
    // Every check has a prefix of its own, and all have the braces.
    let rules = "~{*}:* -@all +@read +@write +@connection +@scripting +time +wait";
    let server = Setup::durable()
        .user("router", "s3cret", rules)
        .start()
        .await;
    let url = server.url();
    shared_proto::mirror_checks!([one_by_one] url);
}
