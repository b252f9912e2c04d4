//! Which call a tool call fragment belongs to.
//!
//! The key is the fragment's index, else its id, else its position in the
//! array. A call keeps the first id it got. One exception is needed for
//! servers that give every call index 0: a named fragment with another id opens
//! a new call once the call before is whole.

use crate::stream::arguments::Balance;
use crate::stream::dialect::MAX_TRACKED;

use super::bit;
use super::wire::{Fragment, Function};

/// Where a choice stands in its chunk, and which one it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) position: usize,
    pub(crate) index: u64,
}

/// One tool call as the client knows it.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    choice: u64,
    /// The index the client is told.
    pub(crate) index: u64,
    /// The index the upstream uses, if it uses one.
    upstream: Option<u64>,
    /// The first id.
    pub(crate) id: Option<String>,
    balance: Balance,
}

/// The tool calls of all choices, in order of appearance.
#[derive(Clone, Debug, Default)]
pub(crate) struct Calls(Vec<Call>);

impl Calls {
    /// Whether a call of choice `choice` is not whole.
    pub(crate) fn open_in(&self, choice: u64) -> bool {
        self.0
            .iter()
            .any(|call| call.choice == choice && !call.balance.closed())
    }

    /// Whether a call of a choice outside `finished` was cut: its arguments are
    /// open or, `strictly`, there are none yet.
    pub(crate) fn any_open(&self, finished: u64, strictly: bool) -> bool {
        self.0.iter().any(|call| {
            let done = if strictly {
                call.balance.whole()
            } else {
                call.balance.closed()
            };
            finished & bit(call.choice) == 0 && !done
        })
    }

    /// The call `fragment` belongs to, with the fragment's arguments added.
    /// `None` once too many calls are open to follow another.
    pub(crate) fn resolve(
        &mut self,
        choice: u64,
        position: usize,
        alone: bool,
        fragment: &Fragment<'_>,
    ) -> Option<&Call> {
        let found = match (fragment.index.0, fragment.id.as_str()) {
            (Some(index), id) => self.by_index(choice, index, id, fragment.named()),
            (None, Some(id)) => self.by_id(choice, id, fragment.named()),
            (None, None) => self.by_position(choice, position, alone, fragment.named()),
        };
        let slot = match found {
            Some(slot) => slot,
            None => self.open(choice, fragment.index.0)?,
        };
        let call = self.0.get_mut(slot)?;
        if call.id.is_none() {
            call.id = fragment
                .id
                .as_str()
                .map(|id| id.chars().take(256).collect());
        }
        call.upstream = call.upstream.or(fragment.index.0);
        if let Some(text) = fragment.function.0.as_ref() {
            call.balance.feed(text.arguments.as_str().unwrap_or(""));
        }
        Some(call)
    }

    /// The one call of the older `function_call` form.
    pub(crate) fn legacy(&mut self, choice: u64, function: &Function<'_>) {
        let slot = self
            .last(choice, |call| call.upstream == Some(u64::MAX))
            .or_else(|| self.open(choice, Some(u64::MAX)));
        if let Some(call) = slot.and_then(|slot| self.0.get_mut(slot)) {
            call.balance.feed(function.arguments.as_str().unwrap_or(""));
        }
    }

    fn by_index(&self, choice: u64, index: u64, id: Option<&str>, named: bool) -> Option<usize> {
        let slot = self
            .last(choice, |call| call.upstream == Some(index))
            .or_else(|| {
                self.last(choice, |call| {
                    call.upstream.is_none() && id.is_some() && call.id.as_deref() == id
                })
            })?;
        let call = self.0.get(slot)?;
        let other = id.is_some() && call.id.is_some() && call.id.as_deref() != id;
        if named && other && call.balance.whole() {
            return self.last(choice, |call| call.id.as_deref() == id);
        }
        Some(slot)
    }

    fn by_id(&self, choice: u64, id: &str, named: bool) -> Option<usize> {
        self.last(choice, |call| call.id.as_deref() == Some(id))
            .or_else(|| {
                // Without a name it can only go on with a call whose id it changed.
                (!named).then(|| self.last(choice, |_| true)).flatten()
            })
    }

    fn by_position(&self, choice: u64, position: usize, alone: bool, named: bool) -> Option<usize> {
        let at = self
            .0
            .iter()
            .enumerate()
            .filter(|(_, call)| call.choice == choice)
            .nth(position)
            .map(|(slot, _)| slot);
        if !alone {
            return at;
        }
        let latest = self.last(choice, |_| true)?;
        let whole = self.0.get(latest).is_some_and(|call| call.balance.whole());
        (!named || !whole).then_some(latest)
    }

    fn open(&mut self, choice: u64, upstream: Option<u64>) -> Option<usize> {
        if self.0.len() >= MAX_TRACKED {
            return None;
        }
        let taken = |index: u64| {
            self.0
                .iter()
                .any(|call| call.choice == choice && call.index == index)
        };
        let next = || {
            let indices = self
                .0
                .iter()
                .filter(|call| call.choice == choice)
                .map(|call| call.index);
            indices.max().map_or(0, |index| index.saturating_add(1))
        };
        let index = upstream.filter(|index| !taken(*index)).unwrap_or_else(next);
        self.0.push(Call {
            choice,
            index,
            upstream,
            id: None,
            balance: Balance::default(),
        });
        self.0.len().checked_sub(1)
    }

    fn last(&self, choice: u64, fits: impl Fn(&Call) -> bool) -> Option<usize> {
        self.0
            .iter()
            .rposition(|call| call.choice == choice && fits(call))
    }
}
