//! The signs by which failures are told apart: families of texts and of codes.
//! Texts are lowercase and looked for anywhere, codes are compared whole.

use super::pattern::Family;

mod account;
mod limits;
mod request;

pub(super) use account::*;
pub(super) use limits::*;
pub(super) use request::*;

/// Every family, for the one pass over a text that finds the parts of all patterns.
pub(super) fn all() -> impl Iterator<Item = Family> {
    [ACCOUNT, LIMITS, REQUEST].into_iter().flatten().copied()
}

#[cfg(test)]
mod tests {
    /// A family that is not listed would never be found.
    #[test]
    fn every_family_is_listed() {
        let sources = [
            include_str!("families/account.rs"),
            include_str!("families/limits.rs"),
            include_str!("families/request.rs"),
        ];
        let written: usize = sources
            .iter()
            .map(|source| source.matches("Family::new(").count())
            .sum();
        assert_eq!(super::all().count(), written);
    }
}
