//! The fence before each attempt: whether the lease stands, and a place among
//! what is in flight, in one step of the store.

use std::time::Duration;

use actix::Addr;
use shared_proto::id::ConnectionId;
use shared_proto::lease::{
    Binding, Flight, LeaseCode, MAX_FENCES, Presented, Stored, fenced, take,
};
use shared_proto::mirror::hold::{HoldError, Holder, Taken};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::desk::TakeOff;
use super::keeper::{Keeper, Left, PLACE_TTL_MS};
use super::{DEADLINE, Leases, PAUSE};

/// An answer of the fence counts if it came within this time.
const FRESH: Duration = Duration::from_millis(500);

/// A request in flight under a lease, from before it asks the fence until it
/// is dropped.
pub(crate) struct Passage {
    keeper: Addr<Keeper>,
    holder: Holder,
    lost: watch::Receiver<bool>,
}

impl Passage {
    /// Resolves when the lease is lost.
    pub(crate) fn lost(&self) -> impl Future<Output = ()> + use<> {
        let mut lost = self.lost.clone();
        async move {
            // An error means that nobody watches over it any more.
            lost.wait_for(|lost| *lost).await.ok();
        }
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        self.keeper.do_send(Left(self.holder.clone()));
    }
}

/// Why an attempt does not go out.
pub(crate) enum Barred {
    /// The lease binds another connection by now.
    Moved(Binding),
    /// For this reason.
    Refused(LeaseCode),
}

impl From<LeaseCode> for Barred {
    fn from(code: LeaseCode) -> Self {
        Self::Refused(code)
    }
}

impl Leases {
    /// Asks the fence for one attempt on `connection`. `binding` is brought up
    /// to date if the lease was renewed.
    pub(crate) async fn pass(
        &self,
        presented: &Presented,
        connection: &ConnectionId,
        binding: &mut Binding,
    ) -> Result<Passage, Barred> {
        let passing = timeout(DEADLINE, self.passing(presented, connection, binding));
        let late = |_| Err(LeaseCode::ServiceUnavailable.into());
        let passed = passing.await.unwrap_or_else(late);
        self.metrics.fence(match &passed {
            Ok(_) => "valid",
            Err(Barred::Moved(_)) => LeaseCode::ConnectionMismatch.as_str(),
            Err(Barred::Refused(code)) => code.as_str(),
        });
        passed
    }

    async fn passing(
        &self,
        presented: &Presented,
        connection: &ConnectionId,
        binding: &mut Binding,
    ) -> Result<Passage, Barred> {
        for _ in 0..MAX_FENCES {
            let asked_at = Instant::now();
            let (passage, holder) = self.take_off(presented, connection, binding).await?;
            let asked = take(
                presented,
                connection,
                binding.revision,
                holder,
                PLACE_TTL_MS,
            );
            let (newest, at) = match self.mirror.take(asked).await {
                Ok(Taken::Held { .. }) if asked_at.elapsed() <= FRESH => return Ok(passage),
                // This process stood still: by now the lease may be over.
                Ok(Taken::Held { .. }) => continue,
                Ok(Taken::Fenced { newest, at }) => (newest, at),
                Err(HoldError::Unreachable(_)) if self.is_back_soon() => {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
                Ok(Taken::Full { .. }) | Err(_) => break,
            };
            let newest = Stored::of(newest.as_ref());
            let judged = fenced(&newest, presented, connection, at);
            match (judged, newest) {
                (Ok(revision), Stored::Found(found)) => {
                    *binding = Binding {
                        lease: found.body,
                        revision,
                    };
                }
                (Err(LeaseCode::ConnectionMismatch), Stored::Found(found)) => {
                    return Err(Barred::Moved(Binding {
                        lease: found.body,
                        revision: found.revision,
                    }));
                }
                (Err(code), _) => return Err(code.into()),
                (Ok(_), Stored::Absent | Stored::Unreadable) => break,
            }
        }
        Err(LeaseCode::ServiceUnavailable.into())
    }

    /// Before the question: so that whatever becomes of it, somebody knows of
    /// the place and gives it back.
    async fn take_off(
        &self,
        presented: &Presented,
        connection: &ConnectionId,
        binding: &Binding,
    ) -> Result<(Passage, Holder), LeaseCode> {
        let holder = Holder(uuid::Uuid::new_v4().simple().to_string().into());
        let flight = Flight {
            presented: presented.clone(),
            connection: connection.clone(),
            revision: binding.revision,
            granted_until: binding.lease.expires_at,
            passed_at: self.mirror.now(),
        };
        let take_off = TakeOff {
            flight,
            holder: holder.clone(),
        };
        let entered = self.desk.send(take_off).await.ok().flatten();
        let entered = entered.ok_or(LeaseCode::ServiceUnavailable)?;
        let passage = Passage {
            keeper: entered.keeper,
            holder: holder.clone(),
            lost: entered.lost,
        };
        Ok((passage, holder))
    }
}
