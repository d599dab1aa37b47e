"""Actions of rules on their rows: republish, log, append to a stream."""
