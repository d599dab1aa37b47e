"""One worker process as its owner sees it: how it is started, what is sent, what its end means."""

from __future__ import annotations

import mmap
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from rules.jq.evaluation import Request
from rules.jq.worker import LENGTH, OUT_OF_MEMORY, PROGRESS

DEFAULT_MEMORY_BYTES: Final = 256 * 1024 * 1024
_MEMORY_SIGNS: Final = (b"cannot allocate memory", b"MemoryError", b"out of memory")

Answers = list[tuple[int, str | None, str]]
decode_answers: Final = msgspec.msgpack.Decoder(Answers).decode


class Progress:
    """The shared file in which a worker notes what it works on."""

    def __init__(self) -> None:
        with tempfile.TemporaryFile() as file:
            file.truncate(PROGRESS.size)
            self.fd = os.dup(file.fileno())
        self._map = mmap.mmap(self.fd, PROGRESS.size)

    def read(self, batch: int) -> tuple[int, float] | None:
        """The index that is being worked on and when it was begun (monotonic seconds); None before the first."""
        current, index, started_ns = PROGRESS.unpack(self._map[:])
        return (index, started_ns / 1e9) if current == batch else None

    def close(self) -> None:
        """Give up the file."""
        self._map.close()
        os.close(self.fd)


def command(memory_bytes: int, progress: Progress) -> list[str]:
    """What starts a worker; ``progress.fd`` must be passed on."""
    return [sys.executable, "-m", "rules.jq.worker", str(memory_bytes), str(progress.fd)]


def environment() -> dict[str, str]:
    """As much of the environment as Python needs to start with this program's modules; the worker drops that too."""
    return {"PYTHONPATH": str(Path(__file__).resolve().parents[2]), "PYTHONUTF8": "1", "PYTHONNOUSERSITE": "1"}


def frame(batch: int, requests: Sequence[Request]) -> bytes:
    """The bytes that ask a worker to run programs."""
    body = msgspec.msgpack.encode((batch, [(one.program, one.text, one.timeout_s) for one in requests]))
    return LENGTH.pack(len(body)) + body


def why_it_ended(request: Request, returncode: int | None, errors: bytes) -> str:
    """What the end of a process means for the program that it ran, as a sentence."""
    if any(sign in errors for sign in _MEMORY_SIGNS) or returncode == -signal.SIGKILL:
        return OUT_OF_MEMORY
    if returncode == -signal.SIGALRM:
        return too_long(request)
    if returncode is not None and returncode < 0:
        return f"the program crashed its worker ({signal.Signals(-returncode).name})"
    return f"the worker of the program ended with status {returncode}"


def too_long(request: Request) -> str:
    """The sentence for a program whose time is over."""
    return f"the program ran longer than {request.timeout_s:g} s and was ended"
