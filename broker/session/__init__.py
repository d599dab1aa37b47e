"""One client's state, which outlives its connections: subscriptions, in-flight messages, queue, will. No I/O."""
