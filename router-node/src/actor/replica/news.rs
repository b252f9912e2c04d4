//! What a replica hears of the mirror.

use shared_proto::mirror::commit::Expected;
use shared_proto::mirror::record::Revision;

/// What the mirror holds of one thing.
pub(crate) enum Holds<M> {
    /// This state.
    State(M, Revision),
    /// Something that this version can't read, and how a commit on top of it
    /// has to expect it. The state stays as it is known here.
    Unreadable(Expected),
    /// Nothing; the revision of its deletion where that is known.
    Nothing(Option<Revision>),
}

impl<M> Holds<M> {
    pub(super) fn revision(&self) -> Option<Revision> {
        match self {
            Self::State(_, revision) | Self::Unreadable(Expected::Revision(revision)) => {
                Some(*revision)
            }
            Self::Nothing(deleted) => *deleted,
            Self::Unreadable(Expected::Absent | Expected::Corrupt) => None,
        }
    }

    pub(super) fn expected(&self) -> Expected {
        match self {
            Self::State(_, revision) => Expected::Revision(*revision),
            Self::Unreadable(expected) => *expected,
            Self::Nothing(_) => Expected::Absent,
        }
    }
}

/// What was heard of the mirror.
pub(crate) struct News<M> {
    /// What it holds.
    pub(crate) holds: Holds<M>,
    /// From where.
    pub(crate) source: Source,
}

/// Where news comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The change log: only what is newer than what is known is news.
    Log,
    /// A snapshot: what it says holds, older or not.
    Snapshot {
        /// The store is known to have gone back.
        rewound: bool,
        /// Whether this owner has heard from the store itself since the
        /// reading began: then an older record is the snapshot's age.
        fresh: bool,
    },
}
