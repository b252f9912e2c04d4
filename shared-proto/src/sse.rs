//! Server-sent events, decoded from bytes.
