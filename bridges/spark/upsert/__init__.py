"""Tables with a key: one row a key, the one of the last record."""
