//! What an upstream's whole answer means.
