"""Requests to the broker's own HTTP port as messages and as what rules read."""
