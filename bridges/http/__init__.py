"""Rows as requests to HTTP services."""
