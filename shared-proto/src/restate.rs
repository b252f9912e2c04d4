//! Statuses that don't mean what they say.
