"""What outlives a connection or the process."""
