//! Leases: vectors, orders of errors, properties, the model and the simulation.
