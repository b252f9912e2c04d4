//! What a failure of the server or of the way to it means, in an operator's
//! words, and what may cure it.

use std::sync::Arc;

use ::redis::{ErrorKind, RedisError};

use crate::mirror::Unreachable;

/// Longest part of a server's own message that is told on, in characters.
const MAX_DETAIL: usize = 200;

/// What may cure a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cure {
    /// Another connection, perhaps to another server.
    Reconnect,
    /// Time, or the operator; the connection is sound.
    Wait,
    /// Nothing: it concerns this one call.
    Nothing,
}

/// A failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) why: Arc<str>,
    pub(super) cure: Cure,
}

impl Fault {
    pub(super) fn new(cure: Cure, why: impl Into<Arc<str>>) -> Self {
        Self {
            why: why.into(),
            cure,
        }
    }

    /// An answer that no server gives to what was asked.
    pub(super) fn odd() -> Self {
        Self::new(Cure::Nothing, "its answer makes no sense")
    }

    /// The same at one server of several.
    pub(super) fn at(self, server: &impl std::fmt::Display) -> Self {
        Self::new(self.cure, format!("{server}: {}", self.why))
    }

    pub(super) fn of(error: &RedisError) -> Self {
        if let Some(code) = error.code() {
            return of_server(code, error.detail().unwrap_or_default());
        }
        if error.is_timeout() {
            return Self::new(Cure::Reconnect, "it does not answer in time");
        }
        let kind = error.kind();
        if kind == ErrorKind::AuthenticationFailed {
            let why = "it refuses the user or password of `store.url` (WRONGPASS)";
            return Self::new(Cure::Reconnect, why);
        }
        if kind == ErrorKind::Io {
            return Self::new(Cure::Reconnect, shortened(&error.to_string()));
        }
        // The text of a reply that makes no sense may be anybody's.
        Self::new(Cure::Reconnect, "what answers is not a Redis")
    }
}

impl From<Fault> for Unreachable {
    fn from(fault: Fault) -> Self {
        Self(fault.why)
    }
}

fn of_server(code: &str, detail: &str) -> Fault {
    // How the client library wraps it when it chooses a database.
    let code = if detail.contains("Authentication required") {
        "NOAUTH"
    } else {
        code
    };
    let (cure, words) = match code {
        "READONLY" => (Cure::Reconnect, "it is a replica and takes no writes"),
        "LOADING" => (Cure::Reconnect, "it is still loading its data"),
        "MASTERDOWN" => (Cure::Reconnect, "it is a replica that lost its master"),
        "CLUSTERDOWN" => (Cure::Reconnect, "the cluster is down"),
        "MOVED" => (
            Cure::Reconnect,
            "it is a cluster's node without these keys; use redis+cluster:// in `store.url`",
        ),
        "ASK" | "TRYAGAIN" => (Cure::Wait, "the cluster is moving the keys to another node"),
        "NOAUTH" => (Cure::Reconnect, "it wants a password, in `store.url`"),
        "WRONGPASS" => (
            Cure::Reconnect,
            "it refuses the user or password of `store.url`",
        ),
        "NOPERM" => (
            Cure::Wait,
            "the user of `store.url` may not do what is needed",
        ),
        "OOM" => (Cure::Wait, "it is out of memory (maxmemory)"),
        "MISCONF" => (Cure::Wait, "it can't save to its disk"),
        "NOREPLICAS" => (Cure::Wait, "it has fewer replicas than it has to have"),
        "BUSY" => (Cure::Wait, "another program's script keeps it busy"),
        "FOREIGN" => (Cure::Wait, "other data is in the way"),
        "UNBLOCKED" => (Cure::Reconnect, "it has become a replica"),
        _ => (Cure::Nothing, "it refuses"),
    };
    Fault::new(cure, format!("{words} ({code}: {})", shortened(detail)))
}

fn shortened(text: &str) -> String {
    let shown = text.chars().filter(|c| !c.is_control());
    shown.take(MAX_DETAIL).collect()
}
