"""Errors of the source; each message names the cause and the remedy."""

from __future__ import annotations


class SourceError(Exception):
    """The stream cannot be read as asked; trying the same again does not help."""


class Unreachable(SourceError):
    """The broker did not answer until the deadline; the same may succeed later."""


class RangeGone(SourceError):
    """Offsets that the stream does not hold: trimmed by retention, or not appended yet."""
