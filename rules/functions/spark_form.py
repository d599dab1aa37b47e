"""Form of a function in Spark SQL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# The integers that are exact as double and that no other integer becomes.
EXACT: Final = "BETWEEN -9007199254740991 AND 9007199254740991"


@dataclass(frozen=True, slots=True)
class SparkForm:
    """Spark SQL of a function for arguments of some types.

    ``takes`` names the type of each argument: ``string``, ``long``, ``float``, ``number`` (an integer or a float, as
    JSON numbers of an unknown kind are), ``boolean``; ``double`` takes any of the three numeric ones, as a double;
    ``printable`` takes what has the same text in Spark, as that text; a word in single quotes takes that literal only.
    ``value`` is Spark SQL with ``{0}``, ``{1}`` for the arguments, and must not fail whatever they are. ``unless`` says
    where that is not what the function gives, or where the function fails: such records are left to the compiled rule.
    The function fails on undefined arguments, unless ``takes_undefined``: then they are NULL in ``value``.
    """

    takes: tuple[str, ...]
    value: str
    gives: str
    unless: str = ""
    takes_undefined: bool = False


def forms(*takes: str, value: str, gives: str = "", unless: str = "") -> tuple[SparkForm, ...]:
    """A form of one argument for each of some types; it gives that type where ``gives`` is not said."""
    return tuple(SparkForm((kind,), value, gives or kind, unless) for kind in takes)


def type_tests(*holds_for: str) -> tuple[SparkForm, ...]:
    """The forms of a function that asks for the type of its argument, which is known when the rule is compiled."""
    kinds = {"string", "long", "float", "boolean"} | (
        {"number"} if set(holds_for) >= {"long", "float"} else set()
    )
    if not {"long", "float"} & set(holds_for):
        kinds.add("number")
    return tuple(
        SparkForm(
            (kind,),
            "({0} IS NOT NULL)" if kind in holds_for else "FALSE",
            "boolean",
            takes_undefined=True,
        )
        for kind in sorted(kinds)
    )


# Condition under which characters, code points and bytes of an argument may differ.
NOT_ASCII: Final = "(octet_length({0}) <> length({0}) OR contains({0}, '\\r'))"


def spark_text(text: str) -> str:
    """A string of characters of the basic plane as a literal of Spark SQL."""
    return "'" + "".join(f"\\u{ord(character):04x}" for character in text) + "'"
