"""Bridges: what carries messages and rows out of the broker, and into it."""
