"""Compiling a schema may take minutes and hold the interpreter all the while: patterns over Unicode classes do, 30 KB.

Such a source is first compiled in a process of its own with a deadline; what is too slow there is refused here. The
rest compiles within milliseconds (1 MiB of JSON Schema 90 ms, of Avro 20 ms).
"""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import time

from schema_validation.serdes.base import SourceError

# Longest compilation of a schema that would hold up the broker, and of the try in a process, its start included.
DEADLINE_S = 1.5
# Address space of the process.
MEMORY_BYTES = 1024 * 1024 * 1024

_PATTERNS = re.compile(r'"pattern(?:Properties)?"\s*:')
# Constructs that make a compiled pattern large: classes of Unicode, counted repetition, flags.
_COSTLY = re.compile(r"\\\\[pPwWdDsS]|\{\d+,?\d*\}|\(\?")
_FEW = 3
# Longest compilation in the broker's own process, which stops for it.
_MOST_HELD_S = 0.5


def check_compiles_in_time(source: str) -> None:
    """Refuse a JSON Schema that takes too long to compile.

    Raises:
        SourceError: it does. Blocks for ``DEADLINE_S`` at most; call it off the event loop.
    """
    if len(_PATTERNS.findall(source)) == 0 or len(_COSTLY.findall(source)) <= _FEW:
        return
    command = [sys.executable, "-m", "schema_validation.compile_limit"]
    try:
        done = subprocess.run(
            command, input=source.encode(), capture_output=True, timeout=DEADLINE_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise _too_slow() from None
    if done.returncode == 0 and float(done.stdout) > _MOST_HELD_S:
        raise _too_slow()
    if done.returncode < 0:
        raise _too_slow()


def _too_slow() -> SourceError:
    return SourceError(
        f"its patterns take longer than {_MOST_HELD_S:g} s to compile, which would hold up the broker; "
        "use fewer Unicode classes (\\w, \\d, \\p) and counted repetitions ({m,n})"
    )


def _main() -> int:
    """Compile what is on standard input; print the seconds. Errors are reported where the broker compiles it."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (int(DEADLINE_S) + 1, int(DEADLINE_S) + 1))
    from schema_validation.serdes.json_schema import JsonSchemaSerde

    source = sys.stdin.buffer.read().decode()
    started = time.perf_counter()
    try:
        JsonSchemaSerde(source)
    except SourceError:
        return 1
    print(time.perf_counter() - started)
    return 0


if __name__ == "__main__":
    sys.exit(_main())
