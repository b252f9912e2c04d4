//! Transactions: what the script is asked, and what its answer means.

use super::fault::Fault;
use super::link::{Call, Shared};
use super::replicas;
use super::reply::Answer;
use crate::clock::Millis;
use crate::mirror::Unreachable;
use crate::mirror::commit::{
    Change, Commit, CommitError, Committed, Expected, Refusal, TransactError, Transaction,
};
use crate::mirror::key::{Keyspace, MAX_KEY_BYTES};
use crate::mirror::record::{MAX_RECORD_BYTES, Record, Revision, Unreadable};

/// What an envelope adds to a body, at most: held against the limit so that
/// every store refuses about the same records.
const ENVELOPE_BYTES: usize = 256;

pub(super) async fn transact(
    shared: &Shared,
    transaction: Transaction,
) -> Result<Vec<Committed>, TransactError> {
    let spelled = check(&shared.keys, &transaction)?;
    if spelled.is_empty() {
        return Ok(Vec::new());
    }
    let (keys, args) = request(shared, &transaction, &spelled);
    let wanted = transaction.replicas;
    let (mut answer, at, got) = if wanted > 0 && !transaction.commits.is_empty() {
        replicas::transact(shared, keys, args, wanted).await?
    } else {
        let call = Call {
            lua: &shared.scripts.transact,
            keys,
            args,
            writes: true,
        };
        let (answer, at) = shared.call(&call).await?;
        (answer, at, wanted)
    };
    let made = answer.number().map_err(Unreachable::from)?;
    if made == 0 {
        let stored = Stored::read(&transaction, &spelled, answer).map_err(Unreachable::from)?;
        return Err(stored.judge(&transaction, at));
    }
    let committed = committed(&transaction, answer).map_err(Unreachable::from)?;
    if got < wanted {
        return Err(TransactError::Replicas { wanted, got });
    }
    Ok(committed)
}

/// The spelled keys of guards and commits, if all is within its bounds.
fn check(keys: &Keyspace, transaction: &Transaction) -> Result<Vec<String>, TransactError> {
    transaction.check()?;
    let mut spelled = Vec::new();
    for key in transaction.keys() {
        let key = keys.spell(key);
        if key.len() > MAX_KEY_BYTES {
            return Err(Refusal::KeyTooLong {
                bytes: key.len(),
                limit: MAX_KEY_BYTES,
            }
            .into());
        }
        spelled.push(key);
    }
    for commit in &transaction.commits {
        if let Change::Put { body, .. } = &commit.change {
            let bytes = body.len().saturating_add(ENVELOPE_BYTES);
            if bytes > MAX_RECORD_BYTES {
                return Err(TransactError::TooLarge {
                    bytes,
                    limit: MAX_RECORD_BYTES,
                });
            }
        }
    }
    Ok(spelled)
}

/// Keys and arguments, in the order of the script's contract.
fn request(
    shared: &Shared,
    transaction: &Transaction,
    spelled: &[String],
) -> (Vec<String>, Vec<Vec<u8>>) {
    let Transaction {
        guards, commits, ..
    } = transaction;
    let mut keys = vec![
        shared.meta.clone(),
        shared.log.clone(),
        shared.index.clone(),
    ];
    keys.extend_from_slice(spelled);
    let text = |number: &dyn ToString| number.to_string().into_bytes();
    let mut args = vec![
        text(&guards.len()),
        text(&commits.len()),
        text(&shared.options.log_entries.max(1)),
        text(&shared.options.log_bytes),
    ];
    args.extend(guards.iter().map(|guard| text(&guard.revision)));
    for (commit, spelled) in commits.iter().zip(spelled.iter().skip(guards.len())) {
        let name = if commit.key.is_logged() {
            shared.keys.name(spelled)
        } else {
            ""
        };
        let (change, expires, body) = match &commit.change {
            Change::Delete => (b"d", Vec::new(), Vec::new()),
            Change::Put { body, expires_at } => {
                let expires = expires_at.map(|at| text(&at.as_epoch_ms()));
                (b"p", expires.unwrap_or_default(), body.to_vec())
            }
        };
        args.push(name.as_bytes().to_vec());
        args.push(match commit.expected {
            Expected::Absent => b"a".to_vec(),
            Expected::Corrupt => b"c".to_vec(),
            Expected::Revision(revision) => text(&revision),
        });
        args.push(text(&commit.version));
        args.push(change.to_vec());
        args.push(expires);
        args.push(body);
    }
    (keys, args)
}

fn committed(transaction: &Transaction, mut answer: Answer) -> Result<Vec<Committed>, Fault> {
    let one = |_: &Commit| {
        Ok(Committed {
            revision: Revision::new(answer.number()?),
            position: answer.position()?,
        })
    };
    transaction.commits.iter().map(one).collect()
}

/// What was stored under each key of a transaction that was not made.
struct Stored(Vec<Option<Result<Record, Unreadable>>>);

impl Stored {
    fn read(
        transaction: &Transaction,
        spelled: &[String],
        mut answer: Answer,
    ) -> Result<Self, Fault> {
        let mut stored = Vec::new();
        for (key, spelled) in transaction.keys().zip(spelled) {
            stored.push(answer.record(key, spelled)?);
        }
        Ok(Self(stored))
    }

    /// Why it was not made, by the rule that every store decides by.
    fn judge(self, transaction: &Transaction, at: Millis) -> TransactError {
        let mut guards = transaction.guards.iter().zip(&self.0);
        let fenced = !guards.all(|(guard, stored)| {
            let record = stored.as_ref().and_then(|stored| stored.as_ref().ok());
            guard.holds(record, at)
        });
        let states = self.0.iter().skip(transaction.guards.len());
        let mut commits = transaction.commits.iter().zip(states);
        let first = commits
            .try_for_each(|(commit, stored)| commit.decide(stored.as_ref().map(Result::as_ref)));
        match first {
            _ if fenced => self.conflict(transaction, at),
            Err(CommitError::Conflict { .. }) => self.conflict(transaction, at),
            Err(CommitError::Refused(refusal)) => refusal.into(),
            Err(CommitError::TooLarge { bytes, limit }) => TransactError::TooLarge { bytes, limit },
            Err(CommitError::Unreachable(why)) => why.into(),
            Ok(()) => {
                let why = "its script judged the transaction otherwise than this program";
                Unreachable(why.into()).into()
            }
        }
    }

    fn conflict(self, transaction: &Transaction, at: Millis) -> TransactError {
        let records = self.0.into_iter().map(|stored| stored.and_then(Result::ok));
        TransactError::Conflict {
            newest: transaction.keys().cloned().zip(records).collect(),
            at,
        }
    }
}
