"""Variform: small expressions over bindings, compiled once to Python. Does no I/O and imports no other package."""
