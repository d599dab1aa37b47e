"""The framework that every connector shares: life cycle, health, buffers, batches, retries, dead letters, counters."""
