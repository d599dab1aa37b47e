"""The saturation log: the tasks, functions and connections that kept the node busy, written while it is saturated.

A thread of its own looks, since the loop is what is busy. An idle node writes nothing. While the event loop is late, or
memory or the store's backlog passes its threshold, an entry is written at intervals: samples of the loop's stack over a
moment, the tasks that hold the most, and the connections with the longest queues and the highest rates. Entries are
lines of JSON in files that are rotated.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

from typing_extensions import TypedDict

from broker.connection.connection import Connection
from broker.core.errors import NotFound
from broker.core.times import rfc3339
from broker.observe.load import LoopLag, Machine
from broker.observe.log import get_logger
from broker.observe.metrics import Metrics
from broker.observe.rotating_file import RotatingFile
from broker.observe.settings import SaturationLogSettings
from broker.storage.writer import Writer

_log = get_logger(__name__)

FILE: Final = "saturation.jsonl"
# Seconds between two checks of the thresholds; a loop that is late for less than its threshold is not seen.
_LOOK_S: Final = 0.1
# The time over which the stack of the loop is sampled for an entry, and the pause between samples, in seconds.
_SAMPLED_S: Final = 0.3
_SAMPLE_S: Final = 0.01
# Calls of a stack, from the innermost.
_STACK: Final = 30
# Tasks whose frames are measured, and connections that are read, for one entry.
_MAX_TASKS: Final = 5_000
_MAX_CONNECTIONS: Final = 20_000
# Bytes at the end of each file that a list reads.
_MAX_READ_BYTES: Final = 64 * 1024 * 1024
# Innermost calls of a loop that waits: uvloop has no frames of its own, asyncio has its selector's.
_IDLE: Final = ("Runner.run ", "EpollSelector.select ")
_ROOT: Final = Path(__file__).parents[2]


class SaturatedTask(TypedDict):
    """A task of the event loop, or a callback without one: its share of the samples, the bytes of the objects that its
    frames hold, where it is, and the calls that led there, innermost first."""

    name: str
    share: float
    held_bytes: int
    function: str
    stack: list[str]


class SaturatedConnection(TypedDict):
    """A connection: bytes and messages that wait for its client, and messages per second from and to it."""

    clientid: str
    address: str
    queued_bytes: int
    queued_messages: int
    messages_in_per_s: float
    messages_out_per_s: float


class SaturationRow(TypedDict):
    """An entry of the saturation log in short: `reasons` are the thresholds that were passed (`event_loop`, `memory`,
    `store_backlog`), `culprit` the task or callback with the largest share of the samples and its function."""

    id: str
    at: str
    reasons: list[str]
    loop_lag_s: float
    memory_bytes: int
    store_backlog_bytes: int
    culprit: str


class SaturationEntry(SaturationRow):
    """An entry of the saturation log: `subsystems` are shares of the samples by package, `memory` the bytes that parts
    of the broker report, `tasks` those with the largest share and those that hold the most, `connections` those with
    the longest queues and the highest rates, `threads` the calls of the other threads."""

    memory_limit_bytes: int
    store_backlog_records: int
    task_count: int
    connection_count: int
    subsystems: dict[str, float]
    memory: dict[str, int]
    tasks: list[SaturatedTask]
    connections: list[SaturatedConnection]
    threads: dict[str, list[str]]


class SaturationLog:
    """Watches a node from a thread, and reads what it has written."""

    def __init__(
        self,
        settings: SaturationLogSettings,
        folder: Path,
        loop: asyncio.AbstractEventLoop,
        machine: Machine,
        writer: Writer,
        connections: Callable[[], Iterable[Connection]],
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._loop = loop
        self._lag = LoopLag(loop)
        self._machine = machine
        self._writer = writer
        self._connections = connections
        self._metrics = metrics
        self._entries = metrics.counter(
            "saturation_entries", "entries that were written to the saturation log"
        )
        self._file = RotatingFile(
            folder / FILE,
            max_bytes=settings.max_file_bytes,
            max_files=settings.max_files,
            rotation="none",
        )
        self._ends = threading.Event()
        self._loop_thread = 0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch, on the loop."""
        if not self._settings.enable:
            return
        self._loop_thread = threading.get_ident()
        self._lag.start()
        self._thread = threading.Thread(target=self._watch, name="saturation watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Watch no more."""
        self._lag.stop()
        self._ends.set()
        if self._thread is not None:
            self._thread.join(timeout=1.0)
            self._file.close()

    # -- read --

    async def entries(self) -> list[SaturationRow]:
        """The entries in short, newest first."""

        def read() -> list[Any]:
            entries: Iterator[Any] = self._newest()
            members = SaturationRow.__annotations__
            return [{name: entry[name] for name in members} for entry in entries]

        return await asyncio.to_thread(read)

    async def entry(self, id: str) -> SaturationEntry:
        """One entry.

        Raises:
            NotFound: there is none of that id.
        """
        entry = await asyncio.to_thread(
            lambda: next((entry for entry in self._newest() if entry["id"] == id), None)
        )
        if entry is None:
            raise NotFound("saturation log entry", id)
        return entry

    def _newest(self) -> Iterator[SaturationEntry]:
        files = sorted(
            self._folder.glob(f"{FILE}*"),
            key=lambda path: path.name.removeprefix(FILE) or "~",
            reverse=True,
        )
        oldest_ns = time.time_ns() - int(self._settings.max_age * 1e9)
        for path in files:
            with suppress(OSError):
                with path.open("rb") as file:
                    file.seek(max(0, file.seek(0, os.SEEK_END) - _MAX_READ_BYTES))
                    lines = file.read().splitlines()
                for line in reversed(lines):
                    with suppress(ValueError):  # the last line of a file may have been cut off
                        entry: SaturationEntry = json.loads(line)
                        if int(entry["id"]) >= oldest_ns:
                            yield entry

    # -- on the thread --

    def _watch(self) -> None:
        settings = self._settings
        next_s = 0.0
        while not self._ends.wait(_LOOK_S):
            if time.monotonic() < next_s:
                continue
            reasons = self._reasons()
            if not reasons:
                continue
            try:
                entry = self._made(reasons)
                self._write(entry)
            except Exception:  # noqa: BLE001  a look at a running loop may meet anything; the next one is soon
                _log.exception("saturation_log.failed")
            else:
                _log.info(
                    "node.saturated", reasons=reasons, culprit=entry["culprit"], entry=entry["id"]
                )
            next_s = time.monotonic() + settings.interval

    def _reasons(self) -> list[str]:
        settings = self._settings
        values = (
            ("event_loop", self._lag.late_s, settings.max_loop_lag),
            ("memory", self._memory_share, settings.max_memory),
            ("store_backlog", lambda: self._writer.backlog_share, settings.max_store_backlog),
        )
        return [name for name, read, limit in values if limit and read() > limit]

    def _memory_share(self) -> float:
        limit_bytes = self._machine.memory_limit_bytes
        return self._machine.memory_bytes() / limit_bytes if limit_bytes else 0.0

    def _write(self, entry: SaturationEntry) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file.append(json.dumps(entry).encode() + b"\n", time.time(), sync=False)
        self._entries.value += 1
        oldest_s = time.time() - self._settings.max_age
        for path in self._folder.glob(f"{FILE}.*"):
            with suppress(OSError):
                if path.stat().st_mtime < oldest_s:
                    path.unlink()

    def _made(self, reasons: list[str]) -> SaturationEntry:
        """The entry of this moment; takes as long as the stack is sampled."""
        now_ns = time.time_ns()
        lag_s = self._lag.late_s()
        connections = list(self._connections())[:_MAX_CONNECTIONS]
        counts = [(c, c.messages_in, c.box.messages_out) for c in connections]
        began_s = time.monotonic()
        samples, subsystems, stacks = self._sampled()
        elapsed_s = time.monotonic() - began_s
        top = self._settings.top
        tasks = self._tasks(samples, stacks, top)
        return {
            "id": str(now_ns),
            "at": rfc3339(now_ns),
            "reasons": reasons,
            "loop_lag_s": round(lag_s, 3),
            "memory_bytes": self._machine.memory_bytes(),
            "store_backlog_bytes": self._writer.backlog_bytes,
            "culprit": f"{tasks[0]['name']}: {tasks[0]['function']}"
            if tasks and tasks[0]["share"]
            else "",
            "memory_limit_bytes": self._machine.memory_limit_bytes,
            "store_backlog_records": self._writer.backlog_records,
            "task_count": len(_all_tasks(self._loop)),
            "connection_count": len(connections),
            "subsystems": _shares(subsystems),
            "memory": self._memory(),
            "tasks": tasks,
            "connections": _busiest(counts, elapsed_s, top),
            "threads": self._threads(),
        }

    def _sampled(self) -> tuple[Counter[str], Counter[str], dict[str, list[str]]]:
        """Samples of the loop over a moment: by task, by package, and the last stack of each task."""
        samples: Counter[str] = Counter()
        subsystems: Counter[str] = Counter()
        stacks: dict[str, list[str]] = {}
        end_s = time.monotonic() + _SAMPLED_S
        while True:
            frame = sys._current_frames().get(self._loop_thread)
            calls = _calls(frame)
            if calls and not _is_idle(calls[0]):
                task = asyncio.current_task(self._loop)
                name = task.get_name() if task is not None else "callback"
                samples[name] += 1
                subsystems[_subsystem(calls)] += 1
                stacks[name] = calls
            del frame
            if time.monotonic() >= end_s or self._ends.wait(_SAMPLE_S):
                return samples, subsystems, stacks

    def _tasks(
        self, samples: Counter[str], stacks: Mapping[str, list[str]], top: int
    ) -> list[SaturatedTask]:
        """The tasks with the most samples, then the tasks whose frames hold the most."""
        total = max(1, samples.total())
        frames: dict[str, tuple[int, list[str]]] = {}
        for task in _all_tasks(self._loop)[:_MAX_TASKS]:
            frames[task.get_name()] = _held(task)
        names = [name for name, _ in samples.most_common(top)]
        names += sorted(frames.keys() - set(names), key=lambda name: -frames[name][0])[:top]
        tasks: list[SaturatedTask] = []
        for name in names:
            held_bytes, waits_in = frames.get(name, (0, []))
            stack = stacks.get(name) or waits_in
            tasks.append(
                {
                    "name": name,
                    "share": round(samples[name] / total, 3),
                    "held_bytes": held_bytes,
                    "function": stack[0] if stack else "",
                    "stack": stack,
                }
            )
        return tasks

    def _memory(self) -> dict[str, int]:
        """Bytes that parts of the broker report, largest first."""
        values: dict[str, int] = {}
        for metric in list(self._metrics):
            if metric.name.endswith("_bytes") and not metric.labels:
                with suppress(Exception):  # one that the loop changes at this moment
                    values[metric.name] = int(metric.read())
        return dict(sorted(values.items(), key=lambda pair: -pair[1]))

    def _threads(self) -> dict[str, list[str]]:
        """Calls of all other threads of the broker, innermost first."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        own = {self._loop_thread, threading.get_ident()}
        frames = sys._current_frames()
        return {
            names.get(id, str(id)): _calls(frame) for id, frame in frames.items() if id not in own
        }


def _all_tasks(loop: asyncio.AbstractEventLoop) -> list[asyncio.Task[Any]]:
    """All tasks; none where too many come and go at this moment."""
    try:
        return list(asyncio.all_tasks(loop))
    except RuntimeError:
        return []


def _held(task: asyncio.Task[Any]) -> tuple[int, list[str]]:
    """Bytes of the objects that a task's frames hold, not of those behind these; and its calls, innermost first."""
    size_bytes = 0
    calls: list[str] = []
    awaited: Any = task.get_coro()
    while awaited is not None and len(calls) < _STACK:
        frame = getattr(awaited, "cr_frame", None)
        if frame is None:
            break
        calls.append(_call(frame))
        for value in list(frame.f_locals.values()):
            with suppress(Exception):  # an object whose size cannot be asked for
                size_bytes += sys.getsizeof(value)
        awaited = getattr(awaited, "cr_await", None)
    return size_bytes, calls[::-1]


def _calls(frame: FrameType | None) -> list[str]:
    calls: list[str] = []
    while frame is not None and len(calls) < _STACK:
        calls.append(_call(frame))
        frame = frame.f_back
    return calls


def _call(frame: FrameType) -> str:
    code = frame.f_code
    path = Path(code.co_filename)
    shown = path.relative_to(_ROOT) if path.is_relative_to(_ROOT) else Path(*path.parts[-2:])
    return f"{code.co_qualname} ({shown}:{frame.f_lineno})"


def _is_idle(call: str) -> bool:
    """True if the loop waits for something to do."""
    return call.startswith(_IDLE)


def _subsystem(calls: Sequence[str]) -> str:
    """The package of the innermost call that is one of the product's: `broker/connection`, `rules`."""
    for call in calls:
        path = call.rpartition("(")[2]
        parts = path.split("/")
        if parts[0] == "broker" and len(parts) > 2:
            return f"broker/{parts[1]}"
        if parts[0] in ("rules", "schema_validation", "transforms", "bridges", "ui"):
            return parts[0]
    return "other"


def _shares(samples: Counter[str]) -> dict[str, float]:
    total = max(1, samples.total())
    return {name: round(count / total, 3) for name, count in samples.most_common()}


def _busiest(
    counts: Sequence[tuple[Connection, int, int]], elapsed_s: float, top: int
) -> list[SaturatedConnection]:
    """The connections with the longest queues, and those with the highest rates."""
    rows: list[SaturatedConnection] = []
    for c, messages_in, messages_out in counts:
        with suppress(Exception):  # it ends at this moment
            rows.append(
                {
                    "clientid": c.client.client_id,
                    "address": f"{c.link.peer_host}:{c.link.peer_port}",
                    "queued_bytes": c.link.unsent_bytes()
                    + c.session.queue_bytes
                    + c.session.qos0_queue.size_bytes,
                    "queued_messages": len(c.session.queue) + c.session.qos0_queue.messages,
                    "messages_in_per_s": round((c.messages_in - messages_in) / elapsed_s, 1),
                    "messages_out_per_s": round((c.box.messages_out - messages_out) / elapsed_s, 1),
                }
            )
    by_queue = sorted(rows, key=lambda row: -row["queued_bytes"])[:top]
    by_rate = sorted(rows, key=lambda row: -(row["messages_in_per_s"] + row["messages_out_per_s"]))[
        :top
    ]
    return by_queue + [row for row in by_rate if row not in by_queue]
