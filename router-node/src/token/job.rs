//! One refresh: read, judge, take the lock, call, store. The rules are pure
//! ([`shared_proto::token`]); here is what waits.

use std::sync::Arc;
use std::time::Duration;

use shared_proto::clock::Millis;
use shared_proto::mirror::commit::{Committed, Expected, TransactError, Transaction};
use shared_proto::mirror::key::Key;
use shared_proto::mirror::record::{Body, Revision};
use shared_proto::mirror::{LoadError, Unreachable};
use shared_proto::token::{
    Answer, Ask, CALL_MS, Cause, End, Judgement, LOCK_MS, Line, Place, Read, Seen, Settle, Spent,
    Status, StoredTokens, Tokens, Unusable, judge, restore, settle, take,
};
use tokio::time::timeout;

use super::{Setup, Shared, call, nonce};
use crate::timer::{Backoff, jittered};

/// A call to the store that takes longer counts as failed.
const STORE_DEADLINE: Duration = Duration::from_secs(1);
/// Times that others may come first before the store counts as away.
const ROUNDS: usize = 16;
/// Tries to store that a refresh failed; the lock lapses by itself.
const FAILURE_TRIES: u32 = 3;
/// Waits between tries to store.
const AGAIN: Backoff = Backoff::between(Duration::from_millis(100), Duration::from_secs(2));

/// What a refresh is made from.
pub(super) struct Job {
    pub(super) shared: Shared,
    pub(super) setup: Arc<Setup>,
    /// The newest line that is known here.
    pub(super) known: Option<Line>,
    pub(super) cause: Cause,
    /// The generation that is not good enough.
    pub(super) generation: u64,
    pub(super) forgiven_at: Option<Millis>,
}

/// What became of it.
pub(super) struct Done {
    /// The record as it is stored now, where that was seen.
    pub(super) stored: Option<(Revision, StoredTokens)>,
    pub(super) end: Ended,
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// Nothing was to be done.
    Judged(Judgement),
    /// New tokens are stored, or lost ones again.
    Refreshed,
    /// The endpoint refused the refresh token, and that is stored.
    Refused,
    /// The refresh failed, and that is stored.
    Failed,
    /// The store does not answer.
    Away,
    /// What is stored can't be worked with here.
    Locked(&'static str),
}

impl From<Unusable> for Ended {
    fn from(why: Unusable) -> Self {
        match why {
            Unusable::Away => Self::Away,
            Unusable::Newer => Self::Locked("a newer version of this program wrote them"),
        }
    }
}

impl Job {
    /// Runs it to its end. Once a token endpoint has granted new tokens, that is
    /// when they are stored.
    pub(super) async fn run(self) -> Done {
        let mut last = None;
        let end = match self.rounds(&mut last).await {
            Ok(end) | Err(end) => end,
        };
        let stored = last.and_then(|seen| revision_of(&seen).zip(seen.tokens.state));
        Done { stored, end }
    }

    async fn rounds(&self, last: &mut Option<Seen>) -> Result<Ended, Ended> {
        let connection = &self.setup.connection;
        for _ in 0..ROUNDS {
            let seen = last.insert(self.read().await?);
            if self.known_again(seen).await? {
                return Ok(Ended::Refreshed);
            }
            let line = match seen.line(self.setup.mark) {
                Some(line) => line.clone(),
                None => self.configured()?,
            };
            let now = self.shared.mirror.now();
            let ask = Ask {
                cause: self.cause,
                generation: self.generation,
                holder: &self.shared.holder,
                forgiven_at: self.forgiven_at,
            };
            let judged = judge(&line.status, seen.lock(), &ask, now);
            if judged != Judgement::Spend {
                return Ok(Ended::Judged(judged));
            }
            let tokens = self.open(&line)?;
            let taking = take(connection, seen, &line, &self.shared.holder, now);
            let taking = taking.map_err(|_| unwritable())?;
            let Some(taken) = self.commit(taking).await? else {
                continue;
            };
            let Some(lock) = taken.first().map(|committed| committed.revision) else {
                return Err(Ended::Away);
            };
            seen.lock = Read {
                expires_at: Some(now.plus(LOCK_MS)),
                ..Read::nothing(Expected::Revision(lock))
            };
            if let Some(committed) = taken.get(1) {
                seen.tokens.expected = Expected::Revision(committed.revision);
                let before = seen.tokens.state.take().unwrap_or_default();
                seen.tokens.state = Some(before.with(line.clone()));
            }
            // A process that was frozen meanwhile has no time left.
            let sent_at = self.shared.mirror.now();
            if sent_at.plus(CALL_MS) >= now.plus(LOCK_MS) {
                continue;
            }
            let spent = Spent { line, lock };
            return self.spend(seen, spent, &tokens, sent_at).await;
        }
        Err(Ended::Away)
    }

    /// Tells the store again what it has lost. Whether it had, and has it.
    async fn known_again(&self, seen: &mut Seen) -> Result<bool, Ended> {
        let Some(known) = &self.known else {
            return Ok(false);
        };
        let connection = &self.setup.connection;
        loop {
            let now = self.shared.mirror.now();
            let again = restore(connection, seen, known, now).map_err(|_| unwritable())?;
            let Some(again) = again else {
                return Ok(false);
            };
            let committed = self.commit(again).await?;
            *seen = self.read().await?;
            if committed.is_some() {
                tracing::info!(%connection, "the store had lost tokens; it has them again");
                return Ok(true);
            }
        }
    }

    /// Calls the endpoint and stores what comes of it.
    async fn spend(
        &self,
        seen: &mut Seen,
        spent: Spent,
        tokens: &Tokens,
        sent_at: Millis,
    ) -> Result<Ended, Ended> {
        let (answer, wait_ms) = call::call(&self.setup, &tokens.refresh, sent_at).await;
        let (end, ended) = match answer {
            Answer::Granted { tokens, expires_at } => {
                let status = Status {
                    generation: spent.line.status.generation.saturating_add(1),
                    expires_at,
                    obtained_at: Some(sent_at),
                    trouble: None,
                };
                (End::Granted(self.line(status, &tokens)?), Ended::Refreshed)
            }
            Answer::Refused { code } => {
                let code = code.to_owned();
                (End::Refused { code }, Ended::Refused)
            }
            Answer::Failed { code } => (End::Failed { code, wait_ms }, Ended::Failed),
        };
        self.store(seen, &spent, &end, ended).await
    }

    /// Stores how a call ended. New tokens are tried for as long as it takes:
    /// nobody else has them.
    async fn store(
        &self,
        seen: &mut Seen,
        spent: &Spent,
        end: &End,
        ended: Ended,
    ) -> Result<Ended, Ended> {
        let connection = &self.setup.connection;
        let granted = matches!(end, End::Granted(_));
        let mut failures = 0;
        loop {
            if let End::Granted(line) = end
                && seen.line(line.mark) == Some(line)
            {
                // An earlier try had been made after all.
                self.note(end, "");
                return Ok(ended);
            }
            let now = self.shared.mirror.now();
            let settled = settle(connection, &self.renewed(seen), spent, end, now);
            let (commit, tokens) = match settled.map_err(|_| unwritable())? {
                Settle::Commit(commit, tokens) => (commit, tokens),
                Settle::Superseded => {
                    self.note(end, "superseded");
                    return Ok(Ended::Judged(Judgement::Current));
                }
            };
            let answered = self.commit(commit).await;
            if let Ok(Some(committed)) = &answered
                && let Some(first) = committed.first()
            {
                self.note(end, "");
                seen.tokens.expected = Expected::Revision(first.revision);
                seen.tokens.state = Some(tokens);
                return Ok(ended);
            }
            match self.read().await {
                // Others came first: it is judged again at once.
                Ok(read) if answered.is_ok() && granted => {
                    *seen = read;
                    continue;
                }
                Ok(read) => *seen = read,
                Err(_) => {}
            }
            if failures >= FAILURE_TRIES && !granted {
                return Err(Ended::Away);
            }
            if failures == 0 {
                tracing::warn!(%connection, granted, "the store does not take what came of a token refresh; it is tried again");
            }
            tokio::time::sleep(jittered(AGAIN.after(failures))).await;
            failures = failures.saturating_add(1);
        }
    }

    /// Counts and logs how a call ended.
    fn note(&self, end: &End, instead: &'static str) {
        let connection = &self.setup.connection;
        let result = match end {
            _ if !instead.is_empty() => {
                tracing::info!(%connection, "another node refreshed the tokens meanwhile");
                instead
            }
            End::Granted(line) => {
                let expires_at = line.status.expires_at.map(Millis::to_rfc3339);
                let generation = line.status.generation;
                tracing::info!(%connection, generation, expires_at, "the tokens were refreshed");
                "refreshed"
            }
            End::Refused { code } => {
                tracing::error!(%connection, %code, "the token endpoint refused the refresh token; the account needs a new login");
                "refused"
            }
            End::Failed { code, wait_ms } => {
                tracing::warn!(%connection, %code, asked_wait_ms = wait_ms, "the tokens could not be refreshed; it is tried again");
                "failed"
            }
        };
        self.shared.metrics.refresh(&self.setup.provider, result);
    }

    /// What is stored, what was sealed under an older key sealed anew.
    fn renewed(&self, seen: &Seen) -> Seen {
        let mut renewed = seen.clone();
        if let (Some(keyring), Some(tokens)) = (&self.shared.keyring, &seen.tokens.state) {
            let connection = &self.setup.connection;
            renewed.tokens.state = Some(keyring.renewed(connection, tokens, &mut nonce));
        }
        renewed
    }

    /// Both records, the tokens first.
    async fn read(&self) -> Result<Seen, Unusable> {
        let connection = self.setup.connection.clone();
        let tokens = self.load(Key::Token(connection.clone())).await?;
        let lock = self.load(Key::Refresh(connection)).await?;
        Ok(Seen { tokens, lock })
    }

    async fn load<B: Body>(&self, key: Key) -> Result<Read<B>, Unusable> {
        let loading = timeout(STORE_DEADLINE, self.shared.mirror.load(&key)).await;
        Read::new(loading.unwrap_or_else(|_| Err(LoadError::Unreachable(late()))))
    }

    /// `None` when others came first.
    async fn commit(&self, transaction: Transaction) -> Result<Option<Vec<Committed>>, Ended> {
        let committing = self.shared.mirror.transact(transaction);
        let answered = timeout(STORE_DEADLINE, committing).await;
        match answered.unwrap_or_else(|_| Err(late().into())) {
            Ok(committed) => Ok(Some(committed)),
            Err(TransactError::Conflict { .. }) => Ok(None),
            Err(TransactError::Unreachable(_) | TransactError::Replicas { .. }) => Err(Ended::Away),
            Err(TransactError::Refused(why)) => {
                tracing::warn!(connection = %self.setup.connection, %why, "the store refuses tokens");
                Err(Ended::Away)
            }
            Err(TransactError::TooLarge { .. }) => Err(unwritable()),
        }
    }

    /// The line of the credential as configured.
    fn configured(&self) -> Result<Line, Ended> {
        self.line(self.setup.status(), &self.setup.configured)
    }

    fn line(&self, status: Status, tokens: &Tokens) -> Result<Line, Ended> {
        let keyring = self.shared.keyring.as_ref();
        let place = self.place(&status);
        let sealed = keyring
            .zip(nonce())
            .and_then(|(keyring, nonce)| keyring.seal(place, tokens, nonce).ok());
        Ok(Line {
            mark: self.setup.mark,
            status,
            sealed: sealed.ok_or(Ended::Locked("they can't be encrypted"))?,
            written_at: self.shared.mirror.now(),
        })
    }

    fn open(&self, line: &Line) -> Result<Tokens, Ended> {
        let keyring = self.shared.keyring.as_ref();
        let opened =
            keyring.and_then(|keys| keys.open(self.place(&line.status), &line.sealed).ok());
        opened.ok_or(Ended::Locked("they can't be decrypted"))
    }

    fn place(&self, status: &Status) -> Place<'_> {
        Place {
            connection: &self.setup.connection,
            mark: self.setup.mark,
            generation: status.generation,
        }
    }
}

fn revision_of(seen: &Seen) -> Option<Revision> {
    match seen.tokens.expected {
        Expected::Revision(revision) => Some(revision),
        Expected::Absent | Expected::Corrupt => None,
    }
}

fn unwritable() -> Ended {
    Ended::Locked("they can't be written")
}

fn late() -> Unreachable {
    Unreachable("no answer in time".into())
}
