//! A request that ends more than one account of a provider is suspect: more likely
//! its own words came back than that the accounts went out together.

use std::collections::HashSet;

use shared_proto::classify;
use shared_proto::failure::{Cooldown, Failure};
use shared_proto::id::ProviderId;

use super::dispatch::Failed;
use super::pick::Candidate;

/// The providers of which one request has ended an account.
#[derive(Default)]
pub(super) struct Doubts(HashSet<ProviderId>);

impl Doubts {
    /// The failure of one attempt, which rests the account by its ladder where the
    /// text alone would end a second one.
    pub(super) fn weigh(&mut self, candidate: &Candidate, failed: Failed) -> Failed {
        if failed.failure.terminal.is_none() {
            return failed;
        }
        let first = self.0.insert(candidate.provider.provider.id.clone());
        if first || !classify::ends_by_text(&failed.failure) {
            return failed;
        }
        let failure = Failure {
            terminal: None,
            cooldown: Cooldown::Ladder,
            ..failed.failure
        };
        Failed { failure, ..failed }
    }
}
