"""The worker process: runs programs one after another, and may be killed at any time.

Started as ``python -m rules.jq.worker MEMORY_BYTES PROGRESS_FD``. It reads frames (four bytes of length, MessagePack)
from standard input: ``[batch, [[program, text, timeout_s], ...]]``; and answers on standard output with ``[[index,
outputs or null, error], ...]``, in one or several frames; a program whose text is empty is compiled only. Before each
program it notes in the shared file which one it begins and when, so that its owner knows whom to blame when the
process has to be killed or dies.

It runs with an address space that is limited, with low priority, without an environment, dies with its parent, and ends
itself when its owner did not do so in time.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
import signal
import struct
import sys
import time
from typing import BinaryIO, Final

import msgspec

from broker.core.process import ask_to_die_with_parent
from rules.jq.program import JqError, Program, ProgramError, program_of

# The batch, the index in it, and when it was begun (nanoseconds of the monotonic clock).
PROGRESS: Final = struct.Struct("=QQQ")
LENGTH: Final = struct.Struct(">I")
_FLUSH_AFTER_NS: Final = 5_000_000
_FLUSH_AFTER_BYTES: Final = 1 << 20
# Delay after the owner's deadline at which the process ends itself.
_GRACE_S: Final = 2.0
_NICENESS: Final = 5

_Answer = tuple[int, str | None, str]


def main() -> None:
    """Serve until standard input ends."""
    memory_bytes = int(sys.argv[1])
    progress_fd = int(sys.argv[2])
    progress = mmap.mmap(progress_fd, PROGRESS.size)
    _live_and_die_with_parent()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_bytes:
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    _serve(sys.stdin.buffer, sys.stdout.buffer, progress)


def _live_and_die_with_parent() -> None:
    os.environ.clear()
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    ask_to_die_with_parent()  # not on every system; the alarm does it there
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _serve(requests: BinaryIO, answers: BinaryIO, progress: mmap.mmap) -> None:
    decode = msgspec.msgpack.Decoder().decode
    while len(head := requests.read(LENGTH.size)) == LENGTH.size:
        batch, asked = decode(requests.read(LENGTH.unpack(head)[0]))
        done: list[_Answer] = []
        size = 0
        flushed_ns = time.monotonic_ns()
        for index, (program, text, timeout_s) in enumerate(asked):
            now_ns = time.monotonic_ns()
            if size > _FLUSH_AFTER_BYTES or now_ns - flushed_ns > _FLUSH_AFTER_NS:
                _send(answers, done)
                done = []
                size = 0
                flushed_ns = now_ns
            progress[:] = PROGRESS.pack(batch, index, now_ns)
            signal.setitimer(signal.ITIMER_REAL, timeout_s + _GRACE_S)
            answer = _run(index, program, text)
            size += len(answer[1] or "")
            done.append(answer)
        signal.setitimer(signal.ITIMER_REAL, 0)
        _send(answers, done)


def _run(index: int, program: str, text: str) -> _Answer:
    try:
        if not text:
            return index, _checked(program_of(program)), ""
        outputs = program_of(program).run(text)
        if len(outputs) > MAX_OUTPUT_CHARACTERS:
            return index, None, f"the outputs are longer than {MAX_OUTPUT_CHARACTERS} characters"
        return index, outputs, ""
    except JqError as error:
        return index, None, str(error)
    except MemoryError:
        return index, None, OUT_OF_MEMORY
    except RecursionError:
        return index, None, "the program nests too deep"


def _checked(program: Program) -> str:
    """Error of a program, as JSON: sentence, line and column; ``[]`` when it compiles."""
    try:
        program.check()
    except ProgramError as error:
        return msgspec.json.encode([error.sentence, error.line, error.column]).decode()
    return "[]"


# Longest outputs that the broker reads, in 40 ms and some 40 MiB of its memory.
MAX_OUTPUT_CHARACTERS: Final = 2 * 1024 * 1024
OUT_OF_MEMORY: Final = "the program needed more memory than a worker may have"


def _send(answers: BinaryIO, done: list[_Answer]) -> None:
    if done:
        frame = msgspec.msgpack.encode(done)
        answers.write(LENGTH.pack(len(frame)) + frame)
        answers.flush()


if __name__ == "__main__":
    main()
