"""One sentence for users out of the traces of Spark and Python."""

from __future__ import annotations

import re

from broker.core.store_clients import store_says

_OUR_ERRORS = ("pyspark_sluice.", "bridges.spark.", "broker.core.")
_DEAD_PYTHON = ("Python worker exited", "Stream closed", "EOFException", "Connection reset")
_PYTHON_ERROR = re.compile(
    r"(?!org\.|java\.|py4j\.|pyspark\.)((?:\w+\.)*)(\w+(?:Error|Exception|Invalid)): (.+)"
)
_NO_MODULE = re.compile(r"No module named '(\w+)")
# Words of Spark about a Python process that it started and that did not answer within 10 s.
NOT_CONNECTED = "Python worker failed to connect back"
_KNOWN = (
    (
        re.compile(NOT_CONNECTED),
        "a Python process of Spark did not start within 10 s: the machine is busy, or that Python does not run.",
    ),
    (
        re.compile(r'Cannot run program "(?P<python>[^"]+)"'),
        "Python {python!r} cannot be started. Try: PYSPARK_PYTHON with the path of a Python on every host.",
    ),
    (
        re.compile(r"PYTHON_VERSION_MISMATCH\] .*?: (?P<found>[\d.]+)\D+?(?P<expected>[\d.]+),"),
        "expected Python {expected}, as the driver has, got {found}. Try: PYSPARK_PYTHON with its path.",
    ),
)
_ERROR_NUMBER = re.compile(r"\[[Ee]rrno \d+\] ")


def sentence_of(trace: str, path: str = "") -> str:
    """The cause out of one of Spark's long traces: an error of ours, else one of the store that the table at ``path``
    is in, else one of Python, else the innermost one, else the first line."""
    lines = [line.strip() for line in trace.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith(_OUR_ERRORS)]
    causes = [line for line in lines if line.startswith(("Caused by: ", ": "))]
    sentences = [
        text.format(**matched.groupdict())
        for pattern, text in _KNOWN
        if (matched := pattern.search(trace))
    ]
    if sentences:
        chosen = sentences[0]
    elif ours:
        chosen = ours[-1].split(": ", 1)[-1]
    elif "://" in path and (said := store_says(trace, path)):
        chosen = said
    elif python := [matched for line in lines if (matched := _PYTHON_ERROR.match(line))]:
        chosen = _plain(*python[-1].groups())
    elif causes:
        chosen = causes[-1].removeprefix("Caused by: ").removeprefix(": ")
    else:
        chosen = lines[0] if lines else "no reason given"
    if any(mark in trace for mark in _DEAD_PYTHON):
        chosen = f"a Python process of Spark ended ({chosen})"
    return chosen[:500]


def _plain(where: str, error: str, text: str) -> str:
    """The meaning of a Python error for a table: ``where`` is the module that the error is of."""
    if package := _NO_MODULE.search(text):
        lacks = f"a Python process of Spark lacks package {package[1]!r}"
        return f"{lacks}. Try: pip install 'sluicemq[spark]' on every host."
    if where.startswith(("sqlalchemy.", "pyiceberg.")):
        return f"the table's catalog cannot be used: {text}"
    if error in ("OSError", "PermissionError"):
        return f"the table's files cannot be written: {_ERROR_NUMBER.split(text)[-1]}"
    return f"{error}: {text}"
