//! The driver's part, one step at a time: an operation, what it was told by
//! the store, and what it wants of it next. A value, so that it can stop
//! anywhere, be copied, or be lost.

use super::*;
use crate::mirror::commit::TransactError;
use crate::mirror::hold::{Holder, Take, Taken};
use crate::mirror::key::Key;
use crate::simulation::store::{Kept, Store};

/// What an operation is to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ask {
    Acquire(Vec<Candidate>),
    Renew(Generation),
    Release(Generation),
    Status(Generation),
    /// To send a request upstream; moves the lease first if it is bound to
    /// none of these.
    Dispatch(Generation, Vec<Candidate>),
    Expire,
    Revoke(Generation),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Told {
    Record(Key, Option<Kept>),
    Count(ConnectionId, usize),
    Conflict(Vec<(Key, Option<Kept>)>, Millis),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Stage {
    /// To be judged by what was told; for a dispatch, its selection.
    Judging,
    /// A dispatch whose connection can't serve it.
    Moving(ConnectionId),
    /// A dispatch before its attempt.
    Fencing(Binding),
}

/// One operation under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Op {
    pub(crate) owner: OwnerHash,
    pub(crate) api_key: ApiKeyId,
    pub(crate) ask: Ask,
    /// Tells its request in flight from others of the same lease.
    pub(crate) name: usize,
    told: Vec<Told>,
    stage: Stage,
    /// The node's time of the judgement that its next question stands on.
    judged_at: Millis,
    rounds: usize,
}

/// How an operation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    With(Outcome),
    /// It went out upstream under this lease.
    Sent(Binding),
}

/// What passes between an operation and the store.
#[derive(Clone, Debug)]
pub(crate) enum Question {
    Load(Wanted),
    Commit(Planned),
    Take(Take, Binding),
}

/// The store's answer to a [`Question`].
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    Loaded(Vec<(Key, Option<Record>)>, Vec<(ConnectionId, usize)>),
    Made(Outcome),
    Unmade(TransactError),
    Taken(Taken),
}

/// The settings that an operation runs with.
#[derive(Clone, Copy)]
pub(crate) struct Around<'t> {
    pub(crate) table: &'t LeaseTable,
    pub(crate) rules: LeaseRules,
}

impl Op {
    pub(crate) fn new(owner: &OwnerHash, ask: Ask, now: Millis) -> Self {
        Self {
            owner: owner.clone(),
            api_key: ApiKeyId::from("K1"),
            ask,
            name: 0,
            told: Vec::new(),
            stage: Stage::Judging,
            judged_at: now,
            rounds: 0,
        }
    }

    pub(crate) fn named(mut self, name: usize) -> Self {
        self.name = name;
        self
    }

    pub(crate) fn with_key(mut self, key: &str) -> Self {
        self.api_key = ApiKeyId::from(key);
        self
    }

    /// Its question goes out at this time, judged anew.
    pub(crate) const fn asks_at(&mut self, now: Millis) {
        self.judged_at = now;
    }

    fn presented(&self, generation: Generation) -> Presented {
        Presented {
            owner: self.owner.clone(),
            generation,
            api_key: self.api_key.clone(),
        }
    }

    fn judge(&self, around: Around<'_>) -> Decision {
        let mut seen = Seen::new(around.table);
        for told in &self.told {
            match told {
                Told::Record(key, kept) => {
                    seen.record(key, kept.as_ref().map(|kept| kept.record(key)).as_ref());
                }
                Told::Count(connection, count) => seen.in_flight(connection, *count),
                Told::Conflict(newest, at) => {
                    let record = |(key, kept): &(Key, Option<Kept>)| {
                        (key.clone(), kept.as_ref().map(|kept| kept.record(key)))
                    };
                    seen.conflict(&newest.iter().map(record).collect::<Vec<_>>(), *at);
                }
            }
        }
        let (rules, now) = (&around.rules, self.judged_at);
        match (&self.ask, &self.stage) {
            (Ask::Acquire(candidates), _) => {
                let ask = Acquire {
                    owner: &self.owner,
                    api_key: &self.api_key,
                    candidates,
                    none: LeaseCode::NoEligibleConnection,
                };
                acquire(&seen, &ask, rules, now)
            }
            (Ask::Renew(g), _) => renew(&seen, &self.presented(*g), rules, now),
            (Ask::Release(g), _) => release(&seen, &self.presented(*g), EndReason::OwnerExit, now),
            (Ask::Status(g), _) => status(&seen, &self.presented(*g), now),
            (Ask::Expire, _) => expire(&seen, &self.owner, now),
            (Ask::Revoke(generation), _) => {
                let id = LeaseId {
                    owner: self.owner.clone(),
                    generation: *generation,
                };
                invalidate(&seen, &id, EndReason::ManagedKeyRevoked, now)
            }
            (Ask::Dispatch(g, candidates), Stage::Moving(from)) => {
                let ask = Transition {
                    presented: &self.presented(*g),
                    from,
                    reason: EndReason::ConnectionIneligible,
                    candidates,
                    none: EndReason::HealthOrCooldown,
                };
                transition(&seen, &ask, rules, now)
            }
            (Ask::Dispatch(g, _), Stage::Judging | Stage::Fencing(_)) => {
                select(&seen, &self.presented(*g), None, now)
            }
        }
    }

    /// What it wants of the store now, or how it has ended.
    pub(crate) fn question(&mut self, around: Around<'_>) -> Result<Question, Ended> {
        loop {
            if let Stage::Fencing(binding) = &self.stage {
                return Ok(Question::Take(self.fence(binding), binding.clone()));
            }
            match self.judge(around) {
                Decision::Load(wanted) => return Ok(Question::Load(wanted)),
                Decision::Commit(planned) => return Ok(Question::Commit(planned)),
                Decision::Done(outcome) => self.come_to(outcome)?,
            }
        }
    }

    /// Ends with `outcome`, or takes a dispatch a stage on.
    fn come_to(&mut self, outcome: Outcome) -> Result<(), Ended> {
        let (Ask::Dispatch(_, candidates), Ok(binding)) = (&self.ask, &outcome) else {
            return Err(Ended::With(outcome));
        };
        let bound = &binding.lease.connection;
        self.stage = if candidates.iter().any(|c| c.connection == *bound) {
            Stage::Fencing(binding.clone())
        } else {
            Stage::Moving(bound.clone())
        };
        Ok(())
    }

    pub(crate) fn holder(&self) -> Holder {
        Holder(self.name.to_string().into())
    }

    fn fence(&self, binding: &Binding) -> Take {
        let presented = self.presented(binding.lease.generation);
        let holder = self.holder();
        let connection = &binding.lease.connection;
        take(&presented, connection, binding.revision, holder, HOLD_MS)
    }

    /// Takes the answer in, at the node's `now`; how it ended, if it did.
    pub(crate) fn answered(&mut self, reply: Reply, now: Millis) -> Option<Ended> {
        self.judged_at = now;
        self.rounds += 1;
        assert!(
            self.rounds <= MAX_ROUNDS,
            "it goes round in circles: {self:?}"
        );
        match reply {
            Reply::Loaded(records, counts) => {
                for (key, record) in records {
                    let kept = record.as_ref().map(Kept::of);
                    self.told.push(Told::Record(key, kept));
                }
                for (connection, count) in counts {
                    self.told.push(Told::Count(connection, count));
                }
                None
            }
            Reply::Made(outcome) => self.come_to(outcome).err(),
            Reply::Unmade(TransactError::Conflict { newest, at }) => {
                let kept = |(key, record): (Key, Option<Record>)| {
                    let kept = record.as_ref().map(Kept::of);
                    (key, kept)
                };
                let newest = newest.into_iter().map(kept).collect();
                self.told.push(Told::Conflict(newest, at));
                None
            }
            Reply::Unmade(_) => Some(unavailable()),
            Reply::Taken(taken) => self.taken(taken),
        }
    }

    fn taken(&mut self, taken: Taken) -> Option<Ended> {
        let Stage::Fencing(binding) = &mut self.stage else {
            panic!("nothing was to be taken: {self:?}")
        };
        match taken {
            Taken::Held { .. } => Some(Ended::Sent(binding.clone())),
            Taken::Full { .. } => panic!("a pool without a limit is full"),
            Taken::Fenced { newest, at } => {
                let newest = Stored::of(newest.as_ref());
                let presented = Presented {
                    owner: self.owner.clone(),
                    generation: binding.lease.generation,
                    api_key: self.api_key.clone(),
                };
                match fenced(&newest, &presented, &binding.lease.connection, at) {
                    Ok(revision) => {
                        binding.revision = revision;
                        None
                    }
                    Err(code) => Some(Ended::With(Err(code.into()))),
                }
            }
        }
    }
}

fn unavailable() -> Ended {
    Ended::With(Err(LeaseCode::ServiceUnavailable.into()))
}

impl Question {
    /// What the store makes of it, in one step.
    pub(crate) fn execute(self, store: &mut Store) -> Reply {
        match self {
            Self::Load(wanted) => {
                let records = wanted.records.into_iter().map(|key| {
                    let record = store.load(&key);
                    (key, record)
                });
                let records = records.collect();
                let counts = wanted.in_flight.into_iter().map(|connection| {
                    let count = store.holders(&connection);
                    (connection, count)
                });
                Reply::Loaded(records, counts.collect())
            }
            Self::Commit(planned) => match store.transact(&planned.transaction) {
                Ok(committed) => Reply::Made(planned.made(&committed)),
                Err(why) => Reply::Unmade(why),
            },
            Self::Take(take, _) => Reply::Taken(store.take(&take)),
        }
    }
}

/// Runs an operation to its end with nobody else about.
pub(crate) fn run(store: &mut Store, mut op: Op, around: Around<'_>) -> Ended {
    loop {
        let question = match op.question(around) {
            Ok(question) => question,
            Err(ended) => return ended,
        };
        let reply = question.execute(store);
        let now = store.now;
        if let Some(ended) = op.answered(reply, now) {
            return ended;
        }
    }
}
