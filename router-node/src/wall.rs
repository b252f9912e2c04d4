//! The wall of a subscription account's five-hour limit: who rides the
//! low-priority lane or may reset the limit, what is known of it, who owns that.
//! The rules are pure ([`shared_proto::lane`]); what a request makes of them is in
//! `request/lane.rs`.

mod call;
mod reset;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use actix::Addr;
use arc_swap::ArcSwap;
use secrecy::SecretString;
use serde_json::Value;
use shared_proto::clock::Millis;
use shared_proto::config::{Config, Connection, Credential, Provider};
use shared_proto::lane::{LaneEvent, LaneOutcome, UsageLane, usable_organization};
use shared_proto::protocol::Protocol;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::actor::owner::{Owner, Publish, Reported, report};
use crate::routing::ConnectionCell;

pub(crate) use reset::{Asking, reset};

/// The owner of what is known of a connection's wall.
pub(crate) type LaneOwner = Owner<UsageLane, PublishLane>;

/// An owner that takes longer than this to answer is not waited for.
const OWNER_DEADLINE: Duration = Duration::from_millis(250);

/// How a connection meets its wall; only of accounts that opted in.
pub(crate) struct Wall {
    /// It rides the low-priority lane.
    pub(crate) low_priority: bool,
    /// It asks for the weekly reset.
    pub(crate) auto_reset: bool,
    /// Its organization, where the operator named it.
    organization: Option<String>,
    /// Where usage is asked for, without a slash at the end.
    api: String,
    /// Its way out.
    proxy: Option<SecretString>,
    connect_ms: u64,
}

impl Wall {
    /// That of `connection`: only accounts with OAuth tokens whose provider speaks
    /// the Messages protocol have one, and only the literal `true` opts in.
    pub(crate) fn of(
        config: &Config,
        provider: &Provider,
        connection: &Connection,
    ) -> Option<Self> {
        let specific = &connection.provider_specific;
        let opted = |name: &str| specific.get(name) == Some(&Value::Bool(true));
        let (low_priority, auto_reset) = (opted("lowPriorityMode"), opted("autoLimitReset"));
        let oauth = matches!(connection.credential, Credential::Oauth { .. });
        let messages = provider.endpoints.base_url(Protocol::Messages).is_some();
        let named = ["organizationUUID", "organization_uuid"];
        let named = named.iter().find_map(|name| specific.get(*name)?.as_str());
        (oauth && messages && (low_priority || auto_reset)).then(|| Self {
            low_priority,
            auto_reset,
            organization: named.and_then(usable_organization).map(str::to_owned),
            api: config.settings.usage_wall.api_base_url.clone(),
            proxy: connection.proxy_url.clone(),
            connect_ms: provider.timeouts.connect_ms,
        })
    }
}

/// What is known of a connection's wall, published by its owner.
#[derive(Default)]
pub(crate) struct LaneCell {
    state: ArcSwap<UsageLane>,
    owner: OnceLock<Addr<LaneOwner>>,
    changed: Notify,
}

impl LaneCell {
    /// What is known.
    pub(crate) fn state(&self) -> arc_swap::Guard<Arc<UsageLane>> {
        self.state.load()
    }

    /// Its owner, once the node has started it.
    pub(crate) fn owner(&self) -> Option<&Addr<LaneOwner>> {
        self.owner.get()
    }

    /// Ties the owner to the cell; only the first one counts.
    pub(crate) fn own(&self, start: impl FnOnce() -> Addr<LaneOwner>) {
        self.owner.get_or_init(start);
    }

    /// Tells the owner; `None` when it does not answer in time.
    pub(crate) async fn tell(&self, event: LaneEvent) -> Option<LaneOutcome> {
        Some(self.report(event).await?.outcome)
    }

    /// The same, with what the store makes of it.
    async fn report(&self, event: LaneEvent) -> Option<Reported<UsageLane>> {
        let owner = self.owner()?;
        timeout(OWNER_DEADLINE, report(owner, event)).await.ok()?
    }
}

/// Publishes what is known of a connection's wall to its cell.
pub(crate) struct PublishLane(pub(crate) Arc<ConnectionCell>);

impl Publish<UsageLane> for PublishLane {
    fn publish(&mut self, state: &UsageLane, _: Millis) {
        self.0.lane.state.store(Arc::new(state.clone()));
        self.0.lane.changed.notify_waiters();
    }
}
