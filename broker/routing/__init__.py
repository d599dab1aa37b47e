"""Receivers of a message: topic filters, share groups, retained messages."""
