"""Recovery strategies: what is stored in normal operation and what is replayed after a failure."""
