//! The suite that every store has to pass, on each form of Redis.

use std::sync::Arc;

use cluster_tests::redis::{Redis as Server, Setup};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use shared_proto::mirror::Mirror;
use shared_proto::mirror::conformance::Backend;
use shared_proto::mirror::redis::Options;

use super::harness::{open, patient};

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
