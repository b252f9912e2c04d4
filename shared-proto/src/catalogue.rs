//! The built-in providers.
