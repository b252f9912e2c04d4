//! TMP
