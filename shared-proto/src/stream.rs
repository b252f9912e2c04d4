//! What an upstream's stream means.
