"""The commit log of a cell on NATS JetStream."""
