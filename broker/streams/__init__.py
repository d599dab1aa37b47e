"""Named append-only logs: what they capture, how long they keep it, and how ranges of them are read."""
