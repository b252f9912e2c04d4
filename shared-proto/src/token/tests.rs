//! Tests of tokens.
