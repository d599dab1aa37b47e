"""Storage of state that outlives a connection or the process."""
