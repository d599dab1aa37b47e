"""Logs: an event's name and fields, on standard error, as text or JSON.

::

    log = get_logger(__name__)
    log.warning("session.dropped", client_id=client_id, reason="takeover")

Repeated events are throttled: a limited number of lines a minute is written of one event of one logger, and the next
one after that says how many were left out. Secrets are not written, whatever field they come in; nor are payloads,
only their sizes. Error: someone must act. Warning: degraded and recovering. Info: life cycle. Normal traffic logs
nothing.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, TextIO

from broker.config.secrets import MASK, Secret
from broker.core.times import rfc3339
from broker.observe.rotating_file import RotatingFile

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["text", "json"]

_LEVELS: Mapping[str, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_SECRET_WORDS = (
    "password",
    "passwd",
    "secret",
    "token",
    "authorization",
    "api_key",
    "private_key",
    "cookie",
)
_QUIET = ("asyncio", "httpx", "httpcore", "py4j", "uvicorn")
_LONGEST_VALUE = 2_000
# Characters; any client may choose an identifier of 65,535 bytes, and has it logged before it has logged in.
_LONGEST_CLIENT_ID = 200
_STANDARD_ATTRIBUTES = frozenset(logging.makeLogRecord({}).__dict__) | {
    "message",
    "asctime",
    "taskName",
    "left_out",
}


class Logger:
    """Writes events. A thin face of a logger of the standard library, so that handlers and levels work as usual."""

    __slots__ = ("_logger",)

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, event: str, /, **fields: Any) -> None:
        """Log details for debugging; off by default."""
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: Any) -> None:
        """Life cycle: started, listening, stopped."""
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: Any) -> None:
        """Degraded, and recovering without an operator."""
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: Any) -> None:
        """Someone must act."""
        self._log(logging.ERROR, event, fields)

    def exception(self, event: str, /, **fields: Any) -> None:
        """An unexpected error, with its traceback; called while it is handled."""
        self._log(logging.ERROR, event, fields, with_traceback=True)

    def _log(
        self, level: int, event: str, fields: dict[str, Any], *, with_traceback: bool = False
    ) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(
                level, "%s", event, extra={"fields": fields}, exc_info=with_traceback, stacklevel=3
            )


def get_logger(name: str) -> Logger:
    """The logger of a module; call it with ``__name__``."""
    return Logger(logging.getLogger(name))


def setup(
    level: Level = "info",
    format: Format = "text",
    *,
    stream: TextIO | None = None,
    file: RotatingFile | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Send all logs to ``stream`` (standard error) and to a file. May be called again; the last call counts."""
    handler = _Handler(stream or sys.stderr)
    handler.file = file
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    handler.addFilter(Throttle(clock=clock))
    root = logging.getLogger()
    for earlier in [
        handler_before for handler_before in root.handlers if isinstance(handler_before, _Handler)
    ]:
        root.removeHandler(earlier)
        if earlier.file is not None:
            earlier.file.close()
    root.addHandler(handler)
    logging.raiseExceptions = (
        False  # a line that cannot be written would print the current exception, secrets with it
    )
    root.setLevel(_LEVELS[level])
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, _LEVELS[level]))


_on_every_line: dict[str, Any] = {}


def mark_lines(**fields: Any) -> None:
    """Write these fields on every line of this process from now on."""
    _on_every_line.update(fields)


@contextmanager
def silenced() -> Iterator[None]:
    """Write nothing while this is open: for a trial that reports its problems in another way."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


class _Handler(logging.StreamHandler[TextIO]):
    """A type of its own, so that ``setup`` finds the handler it added before.

    A line that the file does not take, such as on a full disk, is on the stream alone.
    """

    file: RotatingFile | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record to the stream, and to the file."""
        super().emit(record)
        if self.file is not None:
            line = f"{self.format(record)}\n".encode(errors="backslashreplace")
            with suppress(OSError):
                self.file.append(line, record.created, sync=False)


@dataclass(slots=True)
class _Window:
    began_s: float
    written: int = 0
    left_out: int = 0


class Throttle(logging.Filter):
    """Lets through ``most`` records of one logger and event in ``every_s`` seconds, and counts the others.

    Remembers at most ``MAX_EVENTS`` events; above that it starts afresh, which writes too much, not too little.
    """

    MAX_EVENTS = 2_048

    def __init__(
        self, most: int = 20, every_s: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._most = most
        self._every_s = every_s
        self._clock = clock
        self._windows: dict[tuple[str, int, str], _Window] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write the record. Sets ``left_out`` on the first one after some were not written."""
        key = (record.name, record.levelno, _event(record))
        now_s = self._clock()
        window = self._windows.get(key)
        if window is None or now_s - window.began_s >= self._every_s:
            record.left_out = window.left_out if window is not None else 0
            if len(self._windows) >= self.MAX_EVENTS:
                self._windows.clear()
            self._windows[key] = _Window(now_s, written=1)
            return True
        if window.written >= self._most:
            window.left_out += 1
            return False
        window.written += 1
        record.left_out = 0
        return True


class TextFormatter(logging.Formatter):
    """``2026-01-02T03:04:05.678Z WARNING session.dropped client_id=a reason="the reason"``."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={_as_word(value)}" for name, value in _fields(record).items())
        line = f"{rfc3339(int(record.created * 1e9))} {record.levelname} {_as_line(_text(record))}{fields}"
        if not record.exc_info:
            return line
        return "\n".join(
            [line, *map(_printable, self.formatException(record.exc_info).split("\n"))]
        )


class JsonFormatter(logging.Formatter):
    """One JSON object a line, with ``time``, ``level``, ``logger``, ``event`` and the fields."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": rfc3339(int(record.created * 1e9)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": _text(record),
        }
        for name, value in _fields(record).items():
            entry[name if name not in entry else f"{name}_"] = value
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return _json(entry)


def redacted(name: str, value: Any) -> Any:
    """A field's value as it may be written: secrets masked, payloads as their size, long texts cut."""
    if isinstance(value, Secret) or any(word in name.lower() for word in _SECRET_WORDS):
        return MASK
    if isinstance(value, (bytes, bytearray, memoryview)) or name == "payload":
        return f"<{len(value)} bytes>" if hasattr(value, "__len__") else "<payload>"
    if isinstance(value, Mapping):
        return {str(key): redacted(str(key), item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [redacted(name, item) for item in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    text = str(value)
    longest = _LONGEST_CLIENT_ID if name == "client_id" else _LONGEST_VALUE
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text)} characters)"


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """Our fields, what other libraries passed as ``extra``, and the count of records left out."""
    own_fields = record.__dict__.get("fields")
    fields = (
        own_fields
        if isinstance(own_fields, dict)
        else {
            name: value
            for name, value in record.__dict__.items()
            if name not in _STANDARD_ATTRIBUTES
        }
    )
    shown = {name: redacted(name, value) for name, value in fields.items()}
    left_out = record.__dict__.get("left_out")
    if left_out:
        shown["left_out"] = left_out
    return _on_every_line | shown  # a supervisor's line may be about a cell


def _event(record: logging.LogRecord) -> str:
    """Key that all records of one event share: its name, or the message before it is filled in."""
    return _text(record) if "fields" in record.__dict__ else str(record.msg)


def _text(record: logging.LogRecord) -> str:
    return record.getMessage()


def _as_line(text: str) -> str:
    """Quote on one line: text of clients must not look like a log line of its own."""
    return text if text.isprintable() else _json(text)


def _json(value: Any) -> str:
    """JSON in which what is not printable is escaped: line and paragraph separators, controls, marks of direction."""
    return _printable(json.dumps(value, default=str, ensure_ascii=False))


def _printable(text: str) -> str:
    return (
        text
        if text.isprintable()
        else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
    )


def _as_word(value: Any) -> str:
    if not isinstance(value, str):
        return _json(value)
    is_plain = value and value.isprintable() and not any(sign in value for sign in ' "=')
    return value if is_plain else _json(value)
