//! When the call of an attempt is made once more, on the same account: nothing was
//! sent because a pooled connection was closed; a refused access token was
//! renewed, or a key gave way to the next; or the account stands at its usage wall
//! and goes on all the same.

use super::Admitted;
use super::after::After;
use super::credential::{self, Credential};
use super::dispatch::{Failed, Success};
use super::keys::Keys;
use super::lane::{Ride, Rider, Told};
use super::pick::Candidate;
use super::trace::{Trace, WallStep, millis};

/// What one attempt has repeated so far.
pub(super) struct Repeats<'a> {
    request: &'a Admitted,
    stale: bool,
    renewed: bool,
    keys: Keys,
    rider: Rider<'a>,
}

impl<'a> Repeats<'a> {
    /// Begins an attempt of a request, or of a live test.
    pub(super) fn new(request: &'a Admitted, candidate: &Candidate, is_test: bool) -> Self {
        Self {
            request,
            stale: false,
            renewed: false,
            keys: Keys::of(is_test),
            rider: Rider::new(request, candidate),
        }
    }

    /// What the next call presents; the error is that there is nothing.
    pub(super) fn present(&self, candidate: &Candidate) -> Result<Credential, Failed> {
        let key = self.keys.next(&candidate.slot);
        credential::present(candidate, key, self.request.worker.now())
    }

    /// The next call, as far as it concerns a usage wall.
    pub(super) fn ride(&self) -> Option<Ride> {
        self.rider.mount()
    }

    /// Whether the call is made once more, when it is time for that.
    pub(super) async fn judge(
        &mut self,
        sent: &mut Result<Success, Failed>,
        (credential, ride): (&Credential, Option<&Ride>),
        after: &mut After,
        trace: &mut Trace,
    ) -> bool {
        match sent {
            Err(failed) if failed.stale && !self.stale => {
                self.stale = true;
                return true;
            }
            Err(failed) if !self.renewed && credential.may_mend(failed) => {
                self.renewed = true;
                let mended = credential.mend(after.candidate(), failed).await;
                if mended {
                    after.calls_again(failed, self.request.worker.now(), trace);
                }
                return mended;
            }
            Err(failed) => {
                let another = self.keys.give_way(credential.key, failed, after).await;
                if another {
                    after.calls_again(failed, self.request.worker.now(), trace);
                    return true;
                }
            }
            Ok(_) => {}
        }
        let Some(ride) = ride else {
            return false;
        };
        let told = self
            .rider
            .read(ride, sent.is_ok(), credential.header.as_ref());
        let connection = after.candidate().slot.connection.id.clone();
        let step = |step, reason, waited_ms| WallStep {
            connection,
            step,
            reason,
            times: 1,
            waited_ms,
        };
        match told.await {
            Told::Nothing => false,
            Told::Ended(reason) => {
                trace.at_wall(step("ended", Some(reason), 0));
                false
            }
            Told::Again(again) => {
                trace.at_wall(step(again.via.as_str(), None, millis(again.wait)));
                tokio::time::sleep(again.wait).await;
                let now = self.request.worker.now();
                credential::prepare(after.candidate(), None, now).await;
                after.begins_anew(self.request.worker.now());
                true
            }
        }
    }
}
