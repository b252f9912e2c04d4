//! From the records as read to the transaction that changes them.

use crate::clock::Millis;
use crate::id::ConnectionId;
use crate::mirror::LoadError;
use crate::mirror::commit::{Commit, Expected, Guard, Transaction};
use crate::mirror::key::Key;
use crate::mirror::record::{Body, BodyError, Record, Revision, Why};

use super::{LOCK_MS, Line, RefreshLock, Status, StoredTokens, Trouble, rest_ms};

/// A record as read.
#[derive(Clone, Debug, PartialEq)]
pub struct Read<B> {
    /// How the next commit has to expect it.
    pub expected: Expected,
    /// What it says; `None` where there is nothing, or nothing that makes sense.
    pub state: Option<B>,
    /// When it stops meaning anything.
    pub expires_at: Option<Millis>,
}

/// Why a record as read can't be worked with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// The store did not answer.
    #[error("the store is unreachable")]
    Away,
    /// A newer version wrote it.
    #[error("a newer version of this program wrote the record")]
    Newer,
}

impl<B: Body> Read<B> {
    /// Makes sense of what a load answered.
    pub fn new(loaded: Result<Option<Record>, LoadError>) -> Result<Self, Unusable> {
        match loaded {
            Ok(Some(record)) => Self::of(&record),
            Ok(None) => Ok(Self::nothing(Expected::Absent)),
            Err(LoadError::Unreachable(_)) => Err(Unusable::Away),
            Err(LoadError::Unreadable(unreadable)) => match unreadable.why {
                Why::Corrupt(_) => Ok(Self::nothing(Expected::Corrupt)),
                Why::Newer { .. } => Err(Unusable::Newer),
            },
        }
    }

    /// Makes sense of a record.
    pub fn of(record: &Record) -> Result<Self, Unusable> {
        let expected = Expected::Revision(record.revision);
        match record.decode::<B>() {
            Ok(state) => Ok(Self {
                expected,
                state: Some(state),
                expires_at: record.expires_at,
            }),
            Err(BodyError::Newer { .. }) => Err(Unusable::Newer),
            Err(BodyError::Corrupt(_) | BodyError::OtherKind(_) | BodyError::Unwritable(_)) => {
                Ok(Self::nothing(expected))
            }
        }
    }

    /// Nothing, and how that is to be expected.
    pub const fn nothing(expected: Expected) -> Self {
        Self {
            expected,
            state: None,
            expires_at: None,
        }
    }

    const fn revision(&self) -> Option<Revision> {
        match self.expected {
            Expected::Revision(revision) => Some(revision),
            Expected::Absent | Expected::Corrupt => None,
        }
    }
}

/// Both records of a connection as read. The tokens are to be read first.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// Its tokens.
    pub tokens: Read<StoredTokens>,
    /// Who refreshes them.
    pub lock: Read<RefreshLock>,
}

impl Seen {
    /// The line of a credential.
    pub fn line(&self, mark: u64) -> Option<&Line> {
        self.tokens.state.as_ref()?.line(mark)
    }

    /// Who holds the lock, and until when.
    pub fn lock(&self) -> Option<(&RefreshLock, Millis)> {
        self.lock.state.as_ref().zip(self.lock.expires_at)
    }

    fn generation(&self, mark: u64) -> u64 {
        self.line(mark).map_or(0, |line| line.status.generation)
    }

    fn with(&self, line: Line) -> StoredTokens {
        self.tokens.state.clone().unwrap_or_default().with(line)
    }
}

/// What a node spends under the lock that it took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spent {
    /// The line as it was then.
    pub line: Line,
    /// The lock's revision.
    pub lock: Revision,
}

/// What came of a call to the token endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// New tokens: the line that holds them.
    Granted(Line),
    /// The refresh token is not accepted any more.
    Refused {
        /// The endpoint's word.
        code: String,
    },
    /// No answer, or none that helps.
    Failed {
        /// Why, in one word.
        code: String,
        /// What the endpoint asked to wait, in ms.
        wait_ms: Option<u64>,
    },
}

/// How it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settle {
    /// By a transaction whose first commit stores these tokens.
    Commit(Transaction, StoredTokens),
    /// Not at all: others know better.
    Superseded,
}

/// The transaction that takes the lock for `holder` to spend `line` at `now`:
/// the lock's commit first, and the line's where it is not stored yet.
pub fn take(
    connection: &ConnectionId,
    seen: &Seen,
    line: &Line,
    holder: &str,
    now: Millis,
) -> Result<Transaction, BodyError> {
    let lock = RefreshLock {
        holder: holder.to_owned(),
        mark: line.mark,
        generation: line.status.generation,
        since: now,
    };
    let key = Key::Refresh(connection.clone());
    let lock = Commit::put(key, seen.lock.expected, &lock)?.expiring(now.plus(LOCK_MS));
    let mut taking = Transaction::from(lock);
    let stored = seen.line(line.mark) == Some(line);
    match seen.tokens.revision().filter(|_| stored) {
        Some(revision) => taking.guards.push(Guard {
            key: Key::Token(connection.clone()),
            revision,
        }),
        None => taking
            .commits
            .push(put(connection, seen, &seen.with(line.clone()))?),
    }
    Ok(taking)
}

/// How what came of spending `spent` is written over the records as they are at
/// `now`.
pub fn settle(
    connection: &ConnectionId,
    seen: &Seen,
    spent: &Spent,
    end: &End,
    now: Millis,
) -> Result<Settle, BodyError> {
    let mark = spent.line.mark;
    let newer = seen.generation(mark) > spent.line.status.generation;
    let ours = seen.lock.revision() == Some(spent.lock);
    let held = ours && seen.lock.expires_at.is_some_and(|at| at > now);
    let lock = Key::Refresh(connection.clone());
    let (line, guards) = match end {
        End::Granted(line) if !newer => (line.clone(), Vec::new()),
        End::Refused { .. } | End::Failed { .. } if held && unchanged(seen, spent) => {
            let guard = Guard {
                key: lock.clone(),
                revision: spent.lock,
            };
            (
                troubled(seen.line(mark).unwrap_or(&spent.line), end, now),
                vec![guard],
            )
        }
        End::Granted(_) | End::Refused { .. } | End::Failed { .. } => {
            return Ok(Settle::Superseded);
        }
    };
    let tokens = seen.with(line);
    let mut commits = vec![put(connection, seen, &tokens)?];
    if ours {
        commits.push(Commit::delete(lock, spent.lock, RefreshLock::VERSION));
    }
    let transaction = Transaction {
        guards,
        commits,
        replicas: 0,
    };
    Ok(Settle::Commit(transaction, tokens))
}

/// The transaction that tells the store again what it has lost: `known`, where
/// what is stored is older at `now`.
pub fn restore(
    connection: &ConnectionId,
    seen: &Seen,
    known: &Line,
    now: Millis,
) -> Result<Option<Transaction>, BodyError> {
    if seen.generation(known.mark) >= known.status.generation {
        return Ok(None);
    }
    let known = Line {
        written_at: now,
        ..known.clone()
    };
    Ok(Some(put(connection, seen, &seen.with(known))?.into()))
}

fn put(connection: &ConnectionId, seen: &Seen, tokens: &StoredTokens) -> Result<Commit, BodyError> {
    let key = Key::Token(connection.clone());
    Commit::put(key, seen.tokens.expected, tokens)
}

/// Whether the line is still the one that was spent. Another key over the same
/// tokens does not count.
fn unchanged(seen: &Seen, spent: &Spent) -> bool {
    let line = seen.line(spent.line.mark);
    line.is_some_and(|line| line.status == spent.line.status)
}

fn troubled(line: &Line, end: &End, now: Millis) -> Line {
    let before = line.status.trouble.as_ref().map_or(0, |t| t.count);
    let count = before.saturating_add(1);
    let (until, code) = match end {
        End::Refused { code } => (None, code.clone()),
        End::Failed { code, wait_ms } => {
            let rest = rest_ms(count, *wait_ms);
            (Some(now.plus(rest)), code.clone())
        }
        End::Granted(_) => return line.clone(),
    };
    Line {
        status: Status {
            trouble: Some(Trouble {
                count,
                at: now,
                until,
                code,
            }),
            ..line.status.clone()
        },
        written_at: now,
        ..line.clone()
    }
}
