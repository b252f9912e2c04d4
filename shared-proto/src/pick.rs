//! In which order targets are tried.
