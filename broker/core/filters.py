"""Which filters take in, or meet, which others; both are given as levels."""

from __future__ import annotations


def covers(wide: tuple[str, ...], narrow: tuple[str, ...]) -> bool:
    """Whether every topic that the narrow filter matches is matched by the wide one.

    A ``+`` or ``#`` first does not match topics that begin with ``$`` (MQTT 5.0, 4.7.2), so ``#`` does not cover
    ``$SYS/#``.
    """
    if _passes_over(wide, narrow):
        return False
    for position, level in enumerate(wide):
        if level == "#":
            return True
        if position >= len(narrow):
            return False
        other = narrow[position]
        if other == "#" or (other == "+" and level != "+") or level not in ("+", other):
            return False
    return len(wide) == len(narrow)


def overlaps(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether some topic is matched by both filters; one that begins with ``$`` is not matched by ``+`` or ``#``."""
    if _passes_over(one, other) or _passes_over(other, one):
        return False
    for left, right in zip(one, other, strict=False):
        if "#" in (left, right):
            return True
        if left != right and "+" not in (left, right):
            return False
    longer = one if len(one) > len(other) else other
    return len(one) == len(other) or longer[min(len(one), len(other))] == "#"


def _passes_over(wide: tuple[str, ...], narrow: tuple[str, ...]) -> bool:
    return wide[0] in ("+", "#") and narrow[0].startswith("$")
