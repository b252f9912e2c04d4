//! Saving a change: read, merge, judge, compare-and-set; again when somebody
//! else came first, so that no change undoes another.

use std::sync::Arc;
use std::time::Duration;

use coordinator::config::ProcessEnv;
use shared_proto::config::{Config, Patch, Problem, Saved};
use shared_proto::mirror::commit::{Commit, CommitError, Expected, Refusal};
use shared_proto::mirror::key::Key;
use shared_proto::mirror::record::{BodyError, Revision, Why};
use shared_proto::mirror::{LoadError, Mirror};
use tokio::time::timeout;

use super::super::Node;
use super::etag;

/// All rounds of one change together.
const DEADLINE: Duration = Duration::from_secs(2);
/// A change waits this long for those before it on this node.
const TURN_DEADLINE: Duration = Duration::from_secs(5);
/// What was saved is in force here within this time, or the answer comes before.
const IN_FORCE_DEADLINE: Duration = Duration::from_secs(5);

/// What is to be saved.
pub(crate) struct Saving<'a> {
    /// The change.
    pub(crate) patch: &'a Patch,
    /// The states, as `ETag`s, of which one has to be the present one.
    pub(crate) only_if: Option<&'a str>,
}

/// A change that is saved.
pub(crate) struct Done {
    /// The state that it led to.
    pub(crate) etag: String,
    /// The configuration before it.
    pub(crate) before: Arc<Config>,
    /// The configuration with it.
    pub(crate) after: Config,
    /// What works differently from what was sent, in the words of the body.
    pub(crate) warnings: Vec<Problem>,
}

/// Why nothing was saved.
pub(crate) enum Unsaved {
    /// The state is none of those asked for; this is the present one.
    Stale(String),
    /// What is wrong with it, in the words of the body.
    Invalid(Vec<Problem>),
    /// A newer version of this program saved settings that this one can't change.
    Newer,
    /// There would be more than a record holds.
    TooLarge,
    /// Others came first, time after time.
    Busy,
    /// The store does not answer, or takes nothing.
    Away,
}

/// What the store holds.
struct Found {
    saved: Saved,
    expected: Expected,
}

impl Found {
    const fn revision(&self) -> Option<Revision> {
        match self.expected {
            Expected::Revision(revision) => Some(revision),
            Expected::Absent | Expected::Corrupt => None,
        }
    }
}

/// Saves a change, and waits until this node acts on it.
pub(crate) async fn save(node: &Node, saving: &Saving<'_>) -> Result<Done, Unsaved> {
    let turn = timeout(TURN_DEADLINE, node.settings.turn.acquire()).await;
    let Ok(Ok(turn)) = turn else {
        return Err(Unsaved::Busy);
    };
    let rounds = timeout(DEADLINE, rounds(node, saving)).await;
    let (done, revision) = rounds.unwrap_or(Err(Unsaved::Away))?;
    drop(turn);
    if let Some(revision) = revision {
        let reached = node.settings.reaches(revision);
        if timeout(IN_FORCE_DEADLINE, reached).await.is_err() {
            tracing::warn!("saved settings are not in force here yet: the change log is late");
        }
    }
    Ok(done)
}

async fn rounds(node: &Node, saving: &Saving<'_>) -> Result<(Done, Option<Revision>), Unsaved> {
    loop {
        let found = load(&*node.mirror).await?;
        let tag = etag(found.revision());
        if saving.only_if.is_some_and(|wanted| !names(wanted, &tag)) {
            return Err(Unsaved::Stale(tag));
        }
        let next = found.saved.patched(saving.patch);
        let before = Arc::clone(&node.routing().config);
        let told = |fault| saving.patch.told(fault);
        let (after, mut warnings) = before
            .with_saved(&next, &ProcessEnv)
            .map_err(|problems| Unsaved::Invalid(problems.into_iter().map(told).collect()))?;
        warnings.retain(|warning| saving.patch.concerns(warning));
        let warnings = warnings.into_iter().map(told).collect();
        let done = |etag| Done {
            etag,
            before,
            after,
            warnings,
        };
        if next == found.saved && found.revision().is_some() {
            return Ok((done(tag), found.revision()));
        }
        let commit = Commit::put(Key::Settings, found.expected, &next);
        let commit = commit.map_err(|_| Unsaved::TooLarge)?;
        match node.mirror.commit(commit).await {
            Ok(committed) => {
                let revision = Some(committed.revision);
                return Ok((done(etag(revision)), revision));
            }
            // Read again: it may be another state, or none.
            Err(CommitError::Conflict { .. }) => {}
            Err(CommitError::Unreachable(_)) => return Err(Unsaved::Away),
            Err(CommitError::TooLarge { .. }) => return Err(Unsaved::TooLarge),
            Err(CommitError::Refused(refusal)) => return Err(refused(&refusal)),
        }
    }
}

async fn load(mirror: &dyn Mirror) -> Result<Found, Unsaved> {
    match mirror.load(&Key::Settings).await {
        Ok(Some(record)) => {
            let saved = match record.decode() {
                Ok(saved) => saved,
                Err(BodyError::Newer { .. }) => return Err(Unsaved::Newer),
                // A body that makes no sense is as good as none.
                Err(_) => Saved::default(),
            };
            let expected = Expected::Revision(record.revision);
            Ok(Found { saved, expected })
        }
        Ok(None) => Ok(Found {
            saved: Saved::default(),
            expected: Expected::Absent,
        }),
        Err(LoadError::Unreadable(unreadable)) => match unreadable.why {
            Why::Newer { .. } => Err(Unsaved::Newer),
            Why::Corrupt(_) => Ok(Found {
                saved: Saved::default(),
                expected: Expected::Corrupt,
            }),
        },
        Err(LoadError::Unreachable(_)) => Err(Unsaved::Away),
    }
}

fn refused(refusal: &Refusal) -> Unsaved {
    match refusal {
        Refusal::OlderVersion { .. } | Refusal::Unreadable(_) => Unsaved::Newer,
        Refusal::Full { .. }
        | Refusal::KeyTooLong { .. }
        | Refusal::Malformed(_)
        | Refusal::NoReplicas { .. }
        | Refusal::NothingToDelete => Unsaved::Away,
    }
}

/// Whether `If-Match` names the state `tag`.
fn names(wanted: &str, tag: &str) -> bool {
    let mut names = wanted.split(',').map(str::trim);
    names.any(|name| name == "*" || name == tag)
}
