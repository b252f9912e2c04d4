//! The signs by which failures are told apart: families of texts and of codes.
//! Texts are lowercase and looked for anywhere, codes are compared whole.

mod account;
mod limits;
mod request;

pub(super) use account::*;
pub(super) use limits::*;
pub(super) use request::*;
