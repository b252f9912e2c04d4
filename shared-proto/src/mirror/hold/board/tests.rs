//! The board against a plain list.
