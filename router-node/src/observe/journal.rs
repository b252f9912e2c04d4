//! The last requests of this node, kept in memory.
//!
//! Workers push without a lock into a ring; whoever asks (the management API,
//! rarely) drains the ring into the shelf, which only that reader touches.

use std::collections::VecDeque;
use std::sync::Arc;

use actix::prelude::*;
use crossbeam_queue::ArrayQueue;

use crate::request::trace::Record;

/// Records in the ring and on the shelf; the oldest go first.
const CAPACITY: usize = 1000;

/// The writing end.
pub(crate) struct Journal {
    ring: Arc<ArrayQueue<Arc<Record>>>,
}

impl Journal {
    pub(crate) fn new() -> Self {
        Self {
            ring: Arc::new(ArrayQueue::new(CAPACITY)),
        }
    }

    /// Keeps a record; the oldest gives way.
    pub(crate) fn push(&self, record: Record) {
        drop(self.ring.force_push(Arc::new(record)));
    }

    /// Starts the reading end.
    pub(crate) fn shelf(&self) -> Addr<Shelf> {
        Shelf {
            ring: Arc::clone(&self.ring),
            records: VecDeque::new(),
        }
        .start()
    }
}

/// The reading end.
pub(crate) struct Shelf {
    ring: Arc<ArrayQueue<Arc<Record>>>,
    records: VecDeque<Arc<Record>>,
}

impl Shelf {
    fn collect(&mut self) {
        // Bounded: writers may push while we drain.
        for _ in 0..CAPACITY {
            let Some(record) = self.ring.pop() else { break };
            self.records.push_back(record);
        }
        while self.records.len() > CAPACITY {
            self.records.pop_front();
        }
    }
}

impl Actor for Shelf {
    type Context = Context<Self>;
}

/// The newest records, newest first.
#[derive(Message)]
#[rtype(result = "Vec<Arc<Record>>")]
pub(crate) struct Newest(pub(crate) usize);

impl Handler<Newest> for Shelf {
    type Result = Vec<Arc<Record>>;

    fn handle(&mut self, Newest(limit): Newest, _: &mut Context<Self>) -> Self::Result {
        self.collect();
        self.records.iter().rev().take(limit).cloned().collect()
    }
}

/// The record of one request, the newest of that id.
#[derive(Message)]
#[rtype(result = "Option<Arc<Record>>")]
pub(crate) struct ById(pub(crate) String);

impl Handler<ById> for Shelf {
    type Result = Option<Arc<Record>>;

    fn handle(&mut self, ById(id): ById, _: &mut Context<Self>) -> Self::Result {
        self.collect();
        self.records.iter().rev().find(|r| *r.id == *id).cloned()
    }
}
