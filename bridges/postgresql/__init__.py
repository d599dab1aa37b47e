"""Rows into tables of PostgreSQL, batch by batch."""
