//! What requests read of an account's tokens.

use std::sync::{Arc, OnceLock};

use actix::Addr;
use arc_swap::ArcSwapOption;
use http::HeaderValue;
use secrecy::{ExposeSecret, SecretString};
use shared_proto::clock::Millis;
use shared_proto::token::{Status, Tokens};

use super::refresher::Refresher;

/// The published tokens of one connection; outlives a configuration.
#[derive(Default)]
pub(crate) struct TokenCell {
    bearer: ArcSwapOption<Bearer>,
    refresher: OnceLock<Addr<Refresher>>,
}

/// Tokens to go on with.
pub(crate) struct Bearer {
    /// Of which configured credential.
    pub(crate) mark: u64,
    /// How they stand.
    pub(crate) status: Status,
    /// They can't be refreshed here: what is stored can't be read.
    pub(crate) locked: bool,
    header: HeaderValue,
    tokens: Tokens,
    /// Requests under way may still carry this one.
    previous: Option<SecretString>,
}

impl Bearer {
    /// `None` where the access token is nothing that a header can carry.
    pub(super) fn new(mark: u64, status: Status, tokens: Tokens) -> Option<Self> {
        let value = format!("Bearer {}", tokens.access.expose_secret());
        let mut header = HeaderValue::try_from(value).ok()?;
        header.set_sensitive(true);
        Some(Self {
            mark,
            status,
            locked: false,
            header,
            tokens,
            previous: None,
        })
    }

    /// The value of `Authorization`, marked sensitive.
    pub(crate) fn header(&self) -> HeaderValue {
        self.header.clone()
    }

    /// Whether it can be sent at `now`.
    pub(crate) fn is_valid(&self, now: Millis) -> bool {
        self.status.is_valid(now)
    }

    /// Its secret texts, for finding them where they must not be.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = &str> {
        let now = [&self.tokens.access, &self.tokens.refresh];
        let all = now.into_iter().chain(&self.previous);
        all.map(ExposeSecret::expose_secret)
            .filter(|secret| secret.len() >= 4)
    }
}

impl TokenCell {
    /// What is published, if the account has tokens that are refreshed.
    pub(crate) fn bearer(&self) -> Option<Arc<Bearer>> {
        self.bearer.load_full()
    }

    /// Publishes.
    pub(super) fn publish(&self, bearer: Option<Bearer>) {
        let before = self.bearer.load();
        let bearer = bearer.map(|mut bearer| {
            if let Some(before) = before.as_ref() {
                bearer.previous = if before.header == bearer.header {
                    before.previous.clone()
                } else {
                    Some(before.tokens.access.clone())
                };
            }
            Arc::new(bearer)
        });
        self.bearer.store(bearer);
    }

    /// Who refreshes, once the node has started it.
    pub(crate) fn refresher(&self) -> Option<&Addr<Refresher>> {
        self.refresher.get()
    }

    /// Ties the refresher to the cell; only the first one counts.
    pub(super) fn own(&self, start: impl FnOnce() -> Addr<Refresher>) {
        self.refresher.get_or_init(start);
    }
}
