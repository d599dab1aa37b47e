"""From a rule's row to a sink: buffers, batches, retries, fallbacks, dead letters."""
