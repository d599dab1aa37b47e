"""One sentence for people out of the traces of Spark and Python."""

from __future__ import annotations

import re

_OUR_ERRORS = ("pyspark_sluice.", "bridges.spark.", "broker.core.")
_DEAD_PYTHON = ("Python worker exited", "Stream closed", "EOFException", "Connection reset")
_PYTHON_ERROR = re.compile(r"(?!org\.|java\.|py4j\.|pyspark\.)((?:\w+\.)*)(\w+(?:Error|Exception|Invalid)): (.+)")
_NO_MODULE = re.compile(r"No module named '(\w+)")
_ERROR_NUMBER = re.compile(r"\[[Ee]rrno \d+\] ")


def sentence_of(trace: str) -> str:
    """The cause out of one of Spark's long traces: an error of ours, else one of Python, else the innermost one, else
    the first line."""
    lines = [line.strip() for line in trace.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith(_OUR_ERRORS)]
    causes = [line for line in lines if line.startswith(("Caused by: ", ": "))]
    if ours:
        chosen = ours[-1].split(": ", 1)[-1]
    elif python := [found for line in lines if (found := _PYTHON_ERROR.match(line))]:
        chosen = _plain(*python[-1].groups())
    elif causes:
        chosen = causes[-1].removeprefix("Caused by: ").removeprefix(": ")
    else:
        chosen = lines[0] if lines else "no reason given"
    if any(mark in trace for mark in _DEAD_PYTHON):
        chosen = f"a Python process of Spark ended ({chosen})"
    return chosen[:500]


def _plain(where: str, error: str, text: str) -> str:
    """What an error of Python means for a table: ``where`` is the module that the error is of."""
    if package := _NO_MODULE.search(text):
        return (
            f"a Python process of Spark lacks package {package[1]!r}. Try: pip install 'sluicemq[spark]' on every host."
        )
    if where.startswith(("sqlalchemy.", "pyiceberg.")):
        return f"the table's catalog cannot be used: {text}"
    if error in ("OSError", "PermissionError"):
        return f"the table's files cannot be written: {_ERROR_NUMBER.split(text)[-1]}"
    return f"{error}: {text}"
