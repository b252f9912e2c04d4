//! A provider's circuit breaker.
