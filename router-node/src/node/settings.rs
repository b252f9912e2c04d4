//! Settings that were saved through the API: what is known of them here, and
//! how they come into force.
//!
//! They arrive as everything shared does, in the order of the change log, and
//! come into force by the way of a changed file. The follower waits until they
//! are, so that whoever waits for a revision here knows that it is acted on.
//! A record that this node can't use is left alone, with one warning, and what
//! is in force stays.

mod save;

use std::sync::Arc;
use std::time::Duration;

use coordinator::config::ProcessEnv;
use serde_json::{Map, Value};
use shared_proto::config::{Area, Config, Problem, Saved};
use shared_proto::mirror::Snapshot;
use shared_proto::mirror::commit::{Commit, CommitError, Expected};
use shared_proto::mirror::key::Key;
use shared_proto::mirror::record::{Record, Revision};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::timeout;

use super::{Node, Registry, reload};
use crate::timer::{Backoff, jittered};

pub(crate) use save::{Saving, Unsaved, save};

/// A store call that takes longer counts as failed.
const STORE_DEADLINE: Duration = Duration::from_secs(1);
/// Waits between tries to put again what the store has lost.
const RETRY: Backoff = Backoff::between(Duration::from_millis(250), Duration::from_secs(8));

/// What is known of the saved settings, and who brings them into force.
pub(crate) struct Settings {
    known: watch::Sender<Arc<Known>>,
    news: mpsc::Sender<News>,
    /// Changes made over this node go one after the other.
    turn: Semaphore,
}

/// The saved settings as last told.
#[derive(Default)]
pub(crate) struct Known {
    /// Of their record; `None` where nothing was ever saved.
    pub(super) revision: Option<Revision>,
    /// What the record holds, if it can be read.
    saved: Option<Saved>,
    /// What is in force.
    pub(super) in_force: Saved,
}

/// What the follower read of them.
pub(super) enum Told {
    /// The record is now this.
    Changed(Record),
    /// All was read again, and this is what is there.
    Found(Option<Record>),
    /// All was read again, and what is there can't be read.
    Unreadable,
}

/// What somebody told, and waits for.
pub(super) struct News {
    told: Told,
    done: oneshot::Sender<()>,
}

/// Where news comes in.
pub(super) struct Inbox(mpsc::Receiver<News>);

impl Inbox {
    /// The next news. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> News {
        match self.0.recv().await {
            Some(news) => news,
            // The node, which has the other end, is gone.
            None => std::future::pending().await,
        }
    }
}

impl Settings {
    pub(super) fn new(known: Known) -> (Self, Inbox) {
        let (news, inbox) = mpsc::channel(1);
        let settings = Self {
            known: watch::Sender::new(Arc::new(known)),
            news,
            turn: Semaphore::new(1),
        };
        (settings, Inbox(inbox))
    }

    /// What is known now. What is in force is at least as new.
    pub(crate) fn known(&self) -> Arc<Known> {
        Arc::clone(&self.known.borrow())
    }

    /// Tells what the store holds, and waits until it is in force.
    pub(super) async fn tell(&self, told: Told) {
        let (done, taken_in) = oneshot::channel();
        if self.news.send(News { told, done }).await.is_ok() {
            // An error means that the node ends.
            taken_in.await.ok();
        }
    }

    /// Waits until `revision` is in force here, as far as it can be.
    async fn reaches(&self, revision: Revision) {
        let mut known = self.known.subscribe();
        let reached = |known: &Arc<Known>| known.revision >= Some(revision);
        // An error means that the node ends.
        known.wait_for(reached).await.ok();
    }

    fn publish(&self, known: Known) {
        self.known.send_replace(Arc::new(known));
    }
}

impl Known {
    /// What names this state to clients.
    pub(crate) fn etag(&self) -> String {
        etag(self.revision)
    }
}

/// The revision as an `ETag`; 0 where nothing was ever saved.
fn etag(revision: Option<Revision>) -> String {
    format!("\"{}\"", revision.map_or(0, Revision::number))
}

/// The configuration that a node begins with: `config` with what the store
/// holds of saved settings.
pub(super) fn at_start(config: Arc<Config>, snapshot: Option<&Snapshot>) -> (Arc<Config>, Known) {
    let mut records = snapshot.into_iter().flat_map(|snapshot| &snapshot.records);
    let Some(record) = records.find(|record| record.key == Key::Settings) else {
        return (config, Known::default());
    };
    let mut known = Known {
        revision: Some(record.revision),
        ..Known::default()
    };
    let Some((saved, with)) = usable(record, &config, &mut known) else {
        return (config, known);
    };
    tracing::info!(sections = ?saved.sections(), "saved settings are in force");
    known.in_force = saved;
    (Arc::new(with), known)
}

/// What `record` holds, if it can be used; `known` learns of it anyway.
fn usable(record: &Record, config: &Config, known: &mut Known) -> Option<(Saved, Config)> {
    let saved = match record.decode::<Saved>() {
        Ok(saved) => saved,
        Err(error) => {
            tracing::warn!(%error, "the saved settings can't be read; those in force stay");
            return None;
        }
    };
    known.saved = Some(saved.clone());
    match config.with_saved(&saved, &ProcessEnv) {
        Ok((config, _)) => Some((saved, config)),
        Err(problems) => {
            warn_of(&problems);
            None
        }
    }
}

/// Says once why what was saved is not used.
pub(super) fn warn_of(problems: &[Problem]) {
    let first = problems.first().map(ToString::to_string);
    tracing::warn!(
        problems = problems.len(),
        first = first.as_deref().unwrap_or(""),
        "the saved settings can't be used; those in force stay"
    );
}

/// Brings what was told into force.
pub(super) async fn take_in(node: &Arc<Node>, registry: &mut Registry, news: News) {
    let known = node.settings.known();
    match news.told {
        Told::Changed(record) => change(node, registry, &record).await,
        Told::Found(Some(record)) if Some(record.revision) > known.revision => {
            change(node, registry, &record).await;
        }
        Told::Found(found) => {
            let found = found.map(|record| record.revision);
            if let Some(saved) = known.saved.clone().filter(|_| found < known.revision) {
                let expected = found.map_or(Expected::Absent, Expected::Revision);
                // Beside, since it may have to wait for the store.
                let putting = put_again(Arc::clone(node), saved, expected);
                drop(tokio::task::spawn_local(putting));
            }
        }
        Told::Unreadable => {}
    }
    // Whoever told may have gone.
    news.done.send(()).ok();
}

async fn change(node: &Arc<Node>, registry: &mut Registry, record: &Record) {
    let before = node.routing();
    let mut known = Known {
        revision: Some(record.revision),
        saved: None,
        in_force: node.settings.known().in_force.clone(),
    };
    if let Some((saved, config)) = usable(record, &before.config, &mut known) {
        let sections = changed(&before.config, &config);
        reload::take_over(node, registry, Arc::new(config)).await;
        tracing::info!(?sections, "changed settings are in force");
        known.in_force = saved;
    }
    node.settings.publish(known);
}

/// The sections in which two configurations' settings differ.
fn changed(before: &Config, after: &Config) -> Vec<String> {
    let mut names = Vec::new();
    for (area, head) in [(Area::Resilience, "resilience."), (Area::General, "")] {
        let before: Map<String, Value> = before.shown(area);
        let after = after.shown(area).into_iter();
        let differing = after.filter(|(key, value)| before.get(key) != Some(value));
        names.extend(differing.map(|(key, _)| format!("{head}{key}")));
    }
    names
}

/// The store has gone back: what it acknowledged once is put again, unless
/// somebody was quicker.
async fn put_again(node: Arc<Node>, saved: Saved, expected: Expected) {
    let mut failures = 0;
    loop {
        let commit = match Commit::put(Key::Settings, expected, &saved) {
            Ok(commit) => commit,
            Err(error) => return tracing::warn!(%error, "the saved settings can't be put again"),
        };
        match timeout(STORE_DEADLINE, node.mirror.commit(commit)).await {
            Ok(Ok(_)) => {
                return tracing::info!("the store had lost the saved settings; they are put again");
            }
            Ok(Err(CommitError::Conflict { .. })) => return,
            Ok(Err(error @ (CommitError::Refused(_) | CommitError::TooLarge { .. }))) => {
                return tracing::warn!(%error, "the saved settings can't be put again");
            }
            Ok(Err(CommitError::Unreachable(_))) | Err(_) => {
                tokio::time::sleep(jittered(RETRY.after(failures))).await;
                failures = failures.saturating_add(1);
            }
        }
    }
}
