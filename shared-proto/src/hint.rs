//! When an upstream says it will serve again.
