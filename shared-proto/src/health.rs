//! A connection's state machine.
