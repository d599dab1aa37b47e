"""The time that expressions may take: no message, and no saved expression, holds up the loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import thread_time_ns
from typing import Final

from transforms.variform.errors import EvalError

# Maximum milliseconds that the expressions of one transformation, or one expression elsewhere, take for a message.
MAX_MS: Final = 50
# Calls in an expression, and operations in a transformation, up to which a short message takes less by far.
FEW: Final = 16
# Bytes of a payload from which on one call can take milliseconds.
LARGE: Final = 64 * 1024

_ENDS_NS: Final = ContextVar("ends_ns", default=0)
ends_ns: Final = _ENDS_NS.get
"""The end of the time limit on the clock of this thread, or 0: outside of one there is nothing to check."""


@contextmanager
def time_limit() -> Iterator[None]:
    """Limit the processor time of this thread, in which others have no part. One inside another is part of it. What may
    take long asks ``check_time`` where ``ends_ns`` is not 0."""
    if ends_ns():
        yield
        return
    token = _ENDS_NS.set(thread_time_ns() + MAX_MS * 1_000_000)
    try:
        yield
    finally:
        _ENDS_NS.reset(token)


def check_time() -> None:
    """Raise ``EvalError`` if the time is over."""
    if thread_time_ns() > ends_ns():
        raise EvalError("timeout", f"the expressions take longer than {MAX_MS} ms for one message")
