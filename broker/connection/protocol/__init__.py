"""Handling of each packet: from received bytes to their effects."""
