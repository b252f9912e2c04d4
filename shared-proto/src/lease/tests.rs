//! Leases: vectors, orders of errors, properties, the model and the simulation.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "small numbers chosen by the tests"
)]

pub(crate) mod audit;
pub(crate) mod driver;
mod model;
mod operations;
mod order;
mod table;
mod text;
mod vectors;

use super::*;
use crate::clock::Millis;
use crate::id::{ApiKeyId, ConnectionId, ProviderId};
use crate::mirror::record::{Record, Revision};

/// 2026-10-01T12:00:00Z.
pub(crate) const T0: Millis = Millis::from_epoch_ms(1_790_856_000_000);

/// How long a request's place in flight lasts unless it is kept, ms.
pub(crate) const HOLD_MS: u64 = 15_000;

fn token(letter: char) -> String {
    format!("vlo_{}", letter.to_string().repeat(43))
}

pub(crate) fn owner(letter: char) -> OwnerHash {
    OwnerToken::parse(token(letter).as_bytes()).unwrap().hash()
}

pub(crate) fn candidates(names: &[&str]) -> Vec<Candidate> {
    let candidate = |name: &&str| Candidate {
        connection: ConnectionId::from(*name),
        provider: ProviderId::from("glm"),
    };
    names.iter().map(candidate).collect()
}
