//! What the embedded store's thread does with holds: they are in memory only,
//! and a guard is judged by what is durable.

use tokio::sync::oneshot;

use super::table::Table;
use crate::clock::Millis;
use crate::mirror::commit::Guard;
use crate::mirror::hold::board::Board;
use crate::mirror::hold::{Held, HoldError, Place, Pool, Take, Taken};
use crate::mirror::record::Record;

/// A request about holds.
#[derive(Debug)]
pub(super) enum HoldJob {
    Take(Take, oneshot::Sender<Result<Taken, HoldError>>),
    Keep(
        Vec<Place>,
        u64,
        oneshot::Sender<Result<Vec<bool>, HoldError>>,
    ),
    GiveBack(Vec<Place>, oneshot::Sender<Result<(), HoldError>>),
    Holders(Pool, oneshot::Sender<Vec<Held>>),
}

impl HoldJob {
    /// Does it and answers. A place is not taken for a caller that has gone;
    /// what is given back is given back all the same.
    pub(super) fn work(self, board: &mut Board, table: &Table, now: Millis) {
        match self {
            Self::Take(take, reply) => {
                if !reply.is_closed() {
                    reply.send(take_guarded(take, board, table, now)).ok();
                }
            }
            Self::Keep(places, ttl_ms, reply) => {
                reply.send(board.keep(places, ttl_ms, now)).ok();
            }
            Self::GiveBack(places, reply) => {
                reply.send(board.give_back(&places, now)).ok();
            }
            Self::Holders(pool, reply) => {
                reply.send(board.holders(&pool, now)).ok();
            }
        }
    }
}

fn take_guarded(
    take: Take,
    board: &mut Board,
    table: &Table,
    now: Millis,
) -> Result<Taken, HoldError> {
    if let Some(guard) = &take.guard {
        let stored = guarded(guard, table);
        if !guard.holds(stored, now) {
            let newest = stored.cloned();
            return Ok(Taken::Fenced { newest, at: now });
        }
    }
    board.take(take, now)
}

/// The guarded record. One that can't be read fences like one that is not there.
fn guarded<'a>(guard: &Guard, table: &'a Table) -> Option<&'a Record> {
    let spelled = table.keys().spell(&guard.key);
    table.get(&spelled).and_then(Result::ok)
}
