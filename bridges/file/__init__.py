"""Rows into files: a line each, with rotation."""
