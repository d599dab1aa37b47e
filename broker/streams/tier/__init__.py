"""Tiers of streams: sealed segments of their records in an object store, and reading them from there."""
