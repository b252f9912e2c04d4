//! OAuth tokens on this node: what requests present, and who refreshes it.
//!
//! One [`Refresher`] actor for each account with a refresh token is the sole
//! owner here of what is known of its tokens. It publishes them to the
//! account's [`TokenCell`], which requests read without asking anybody, and
//! refreshes them ahead of their end, so that requests wait only where the
//! access token has ended or was refused. One refresh is a [`job`]; the rules
//! are those of [`shared_proto::token`].

mod call;
pub(crate) mod cell;
mod job;
pub(crate) mod refresher;

use std::sync::Arc;
use std::time::Duration;

use secrecy::SecretString;
use shared_proto::clock::Millis;
use shared_proto::config::{Config, Connection, Provider};
use shared_proto::id::{ConnectionId, ProviderId};
use shared_proto::mirror::Mirror;
use shared_proto::token::{self, Keyring, Nonce, Status, TokenEndpoint, Tokens};
use tokio::sync::watch;

use crate::observe::TokenMetrics;

#[cfg(doc)]
use cell::TokenCell;
#[cfg(doc)]
use refresher::Refresher;

/// What all refreshers of a node share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) mirror: Arc<dyn Mirror>,
    /// Without keys nothing is refreshed.
    pub(crate) keyring: Option<Arc<Keyring>>,
    /// This run of this node, as locks name it.
    pub(crate) holder: Arc<str>,
    pub(crate) metrics: TokenMetrics,
    pub(crate) jobs: Jobs,
}

/// Counts the refreshes under way.
#[derive(Clone)]
pub(crate) struct Jobs(Arc<watch::Sender<usize>>);

impl Default for Jobs {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }
}

impl Jobs {
    /// One more, until the result is dropped.
    fn begin(&self) -> Job {
        self.0.send_modify(|count| *count = count.saturating_add(1));
        Job(self.clone())
    }

    /// Waits until none is under way, at most `limit`: what a token endpoint
    /// has answered is to be stored.
    pub(crate) async fn finish(&self, limit: Duration) {
        let mut count = self.0.subscribe();
        let none = count.wait_for(|count| *count == 0);
        if tokio::time::timeout(limit, none).await.is_err() {
            tracing::warn!("a token refresh is cut short; its answer may be lost");
        }
    }
}

/// A refresh under way.
struct Job(Jobs);

impl Drop for Job {
    fn drop(&mut self) {
        let Self(Jobs(count)) = self;
        count.send_modify(|count| *count = count.saturating_sub(1));
    }
}

/// An account whose tokens can be refreshed, as configured.
pub(crate) struct Setup {
    pub(crate) connection: ConnectionId,
    pub(crate) provider: ProviderId,
    /// Tells its credential from others.
    pub(crate) mark: u64,
    configured: Tokens,
    expires_at: Option<Millis>,
    endpoint: TokenEndpoint,
    connect_ms: u64,
    proxy: Option<SecretString>,
}

impl Setup {
    /// What `connection` needs to be refreshed, if it has it.
    pub(crate) fn of(
        config: &Config,
        provider: &Provider,
        connection: &Connection,
    ) -> Option<Self> {
        config.secret_keys.as_ref()?;
        let endpoint = provider.token_endpoint.clone()?;
        let configured = connection.credential.refreshable()?;
        Some(Self {
            connection: connection.id.clone(),
            provider: provider.id.clone(),
            mark: token::mark(&connection.id, &configured),
            configured,
            expires_at: connection
                .credential
                .expires_at_ms()
                .map(Millis::from_epoch_ms),
            endpoint,
            connect_ms: provider.timeouts.connect_ms,
            proxy: connection.proxy_url.clone(),
        })
    }

    /// How its tokens stand as configured.
    fn status(&self) -> Status {
        Status {
            expires_at: self.expires_at,
            ..Status::default()
        }
    }
}

/// Fresh random bytes for one sealing, from the system; `None` where it has none.
fn nonce() -> Option<Nonce> {
    use ring::rand::SecureRandom as _;
    let mut nonce = Nonce::default();
    ring::rand::SystemRandom::new().fill(&mut nonce).ok()?;
    Some(nonce)
}
