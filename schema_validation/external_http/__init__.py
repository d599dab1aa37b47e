"""Schemas whose payloads another process codes, asked over HTTP."""
