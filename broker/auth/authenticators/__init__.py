"""Authenticators, a module each."""
