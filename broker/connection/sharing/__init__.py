"""Share groups at work: their members, what waits for them, their places in logs, and their records."""
