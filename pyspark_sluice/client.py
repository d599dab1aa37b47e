"""Client of a broker: positions of a stream, and the records of an offset range.

The management API answers with positions, the address of the range server and a ticket for it; the range server sends
Arrow. A broker that restarts has a new range server and new tickets, so both are requested again after any failure,
until the deadline. Plain ``urllib``: this runs inside Spark's workers, which need pyarrow and nothing more.
"""

from __future__ import annotations

import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

import pyarrow as pa

from pyspark_sluice.errors import RangeGone, SourceError, Unreachable

# Seconds for which a call keeps trying while the broker is away.
DEADLINE_S = 60.0
# Seconds for which one request may stay silent.
REQUEST_TIMEOUT_S = 30.0
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class ShardPosition:
    """Offsets in a shard: ``first`` up to, not including, ``next``. ``at`` is set when a time was asked for. A shard in
    another cell of the broker has a ``log`` and ``ticket`` of its own, and a ``ranges_url`` on another machine."""

    shard: int
    first: int
    next: int
    at: int | None = None
    log: int | None = None
    ticket: str | None = None
    ranges_url: str | None = None


@dataclass(frozen=True, slots=True)
class Positions:
    """Positions of a stream, and how to read it. ``epoch`` changes when a stream is deleted and created again."""

    stream: str
    kind: str
    epoch: str
    log: int
    shards: tuple[ShardPosition, ...]
    ranges_url: str
    ticket: str
    now_us: int | None = None
    """The broker's time of the answer, in microseconds since 1970; None from an older broker."""

    @classmethod
    def parse(cls, document: dict[str, Any]) -> Positions:
        """From the API's answer, where offsets are texts since JSON numbers are not exact everywhere."""
        shards = [
            ShardPosition(
                int(entry["shard"]),
                int(entry["first_offset"]),
                int(entry["next_offset"]),
                None if entry.get("at_offset") is None else int(entry["at_offset"]),
                None if entry.get("log") is None else int(entry["log"]),
                entry.get("ticket"),
                entry.get("ranges_url"),
            )
            for entry in document["shards"]
        ]
        return cls(
            document["stream"],
            document["kind"],
            document["epoch"],
            int(document["log"]),
            tuple(sorted(shards, key=lambda shard: shard.shard)),
            document["ranges_url"],
            document["ticket"],
            None if document.get("now_us") is None else int(document["now_us"]),
        )

    def place(self, shard: int) -> tuple[str, int, str]:
        """The range server that has a shard, its log there, and the ticket for it."""
        position = next((entry for entry in self.shards if entry.shard == shard), None)
        if position is None or position.log is None:
            return self.ranges_url, self.log, self.ticket
        return position.ranges_url or self.ranges_url, position.log, position.ticket or self.ticket

    def first(self) -> dict[int, int]:
        """The first offset of each shard."""
        return {shard.shard: shard.first for shard in self.shards}

    def next(self) -> dict[int, int]:
        """The offset after the last of each shard."""
        return {shard.shard: shard.next for shard in self.shards}


class StreamClient:
    """One stream of one broker. Blocking; made per process, pickled with its settings only.

    Raises (all calls):
        SourceError: the broker refuses: no such stream, no access.
        Unreachable: no answer until the deadline.
    """

    def __init__(self, url: str, token: str, stream: str, deadline_s: float = DEADLINE_S) -> None:
        self._url = url.rstrip("/")
        self._token = token
        self.stream = stream
        self._deadline_s = deadline_s
        self._timeout_s = min(REQUEST_TIMEOUT_S, deadline_s)

    def positions(self, at: str | None = None) -> Positions:
        """The positions of the stream now; with ``at`` (RFC 3339 or epoch ms) also the first offsets at or after it."""
        query = f"?{urllib.parse.urlencode({'at': at})}" if at is not None else ""
        url = f"{self._url}/api/v1/streams/{urllib.parse.quote(self.stream, safe='')}/positions{query}"
        pauses = Pauses(self._deadline_s)
        while True:
            try:
                with open_url(url, self._token, timeout_s=self._timeout_s) as answer:
                    return Positions.parse(json.load(answer))
            except urllib.error.HTTPError as error:
                if not _is_passing(error.code):
                    raise SourceError(_refusal(error, f"stream {self.stream!r}")) from error
                pauses.wait(error, f"{self._url} answers {error.code} for stream {self.stream!r}")
            except (OSError, HTTPException, ValueError) as error:
                pauses.wait(error, f"no answer from {self._url}: {_reason(error)}")

    def check(self) -> None:
        """Go the way of a read, for no record: the API, the range server with its certificate, the ticket."""
        where = self.positions()
        address = where.ranges_url
        try:
            for position in where.shards:
                address, _, _ = where.place(position.shard)
                at = position.first
                for _ in self._range(where, position.shard, at, at):
                    pass
        except urllib.error.HTTPError as error:
            raise SourceError(
                f"the range server at {address} answers {error.code}: {_detail(error)}"
            ) from error
        except (OSError, HTTPException, pa.ArrowException) as error:
            cause = getattr(error, "reason", None)
            remedy = "an address of this broker that all hosts reach in range_server.advertised_url"
            if isinstance(cause, ssl.SSLError):
                remedy = "SSL_CERT_FILE with the authority that signed its certificate"
            raise Unreachable(
                f"no answer from the range server at {address}: {_reason(error)}. Try: {remedy}."
            ) from error

    def read(
        self, where: Positions, shard: int, start: int, end: int, topic_filter: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The records ``[start, end)`` of a shard in order, each once, across failures of the broker; with a filter,
        those whose topics it matches.

        Raises:
            RangeGone: the stream does not hold all of them.
        """
        at = start
        pauses = Pauses(self._deadline_s)
        while at < end:
            address, _, _ = where.place(shard)
            try:
                for batch in self._range(where, shard, at, end, topic_filter):
                    at = _next_offset(batch, at, end, is_dense=topic_filter is None)
                    pauses = Pauses(self._deadline_s)
                    yield batch
                if topic_filter is not None:
                    # an answer that is cut is an error, so this one was whole
                    return
                if at < end:
                    raise OSError(f"the answer ended at offset {at} of [{start}, {end})")
            except urllib.error.HTTPError as error:
                detail = _detail(error)
                where = self._again(where)
                if error.code == 416:
                    # A range server that has just started may lag behind the log; only what is really gone ends this.
                    check_held(where, shard, at, end)
                pauses.wait(
                    error,
                    f"{address} answers {error.code} for stream {self.stream!r}: {detail}",
                )
            except (OSError, HTTPException, pa.ArrowException) as error:
                pauses.wait(error, f"no records from {address}: {_reason(error)}")
                where = self._again(where)

    def _range(
        self, where: Positions, shard: int, start: int, end: int, topic_filter: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        address, log, ticket = where.place(shard)
        url = f"{address.rstrip('/')}/streams/{log}/{shard}?from={start}&to={end}"
        if topic_filter is not None:
            url += f"&filter={urllib.parse.quote(topic_filter, safe='')}"
        with (
            open_url(url, ticket, timeout_s=self._timeout_s) as answer,
            pa.ipc.open_stream(answer) as reader,
        ):
            yield from reader

    def _again(self, before: Positions) -> Positions:
        """The positions after a failure: a restarted broker serves ranges elsewhere."""
        now = self.positions()
        check_epoch(self.stream, before.epoch, now.epoch)
        return now


def check_epoch(stream: str, expected: str, epoch: str) -> None:
    """Raise an error if a stream of the same name was deleted and created again: its offsets mean other records.

    Raises:
        SourceError: the epochs differ.
    """
    if expected != epoch:
        raise SourceError(
            f"stream {stream!r} was deleted and created again (epoch {epoch}, expected {expected}); its offsets mean "
            f"other records now: start with a new checkpoint and a new table"
        )


def check_held(where: Positions, shard: int, start: int, end: int) -> None:
    """Refuse a range that the stream does not hold.

    Raises:
        RangeGone: part of it was trimmed, or is not appended yet.
    """
    range_held = next((entry for entry in where.shards if entry.shard == shard), None)
    if range_held is None:
        raise RangeGone(f"stream {where.stream!r} has no shard {shard}")
    if start < end and (start < range_held.first or end > range_held.next):
        raise RangeGone(
            f"stream {where.stream!r} shard {shard} holds offsets [{range_held.first}, {range_held.next}), not all of "
            f"[{start}, {end}); what is below was trimmed by retention"
        )


def check_not_back(where: Positions, begun: Mapping[int, int]) -> None:
    """Refuse a stream that ends before the offsets, by shard, that were read before.

    Raises:
        SourceError: it does.
    """
    for shard, to in where.next().items():
        if to < begun.get(shard, 0):
            raise SourceError(
                f"stream {where.stream!r} shard {shard} ends at offset {to}, but offset {begun[shard]} was read "
                f"before; the broker's data is older than the checkpoint: restore it, or start with a new checkpoint "
                f"and table"
            )


class Pauses:
    """Pauses between attempts, doubling, until a deadline."""

    def __init__(self, deadline_s: float) -> None:
        self._until = time.monotonic() + deadline_s
        self._pause_s = _FIRST_PAUSE_S

    def wait(self, cause: BaseException, what: str) -> None:
        """Sleep before the next attempt.

        Raises:
            Unreachable: the deadline has passed; says ``what``.
        """
        if time.monotonic() + self._pause_s > self._until:
            raise Unreachable(what) from cause
        time.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)


def open_url(
    url: str,
    token: str,
    *,
    method: str = "GET",
    body: bytes | None = None,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> Any:
    """Send one request and return the answer as a readable file; raises as ``urllib`` does."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, headers=headers, method=method, data=body)
    if urllib.parse.urlsplit(url).hostname in _LOOPBACK:
        # A proxy from the environment cannot reach this machine's own loopback.
        return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            request, timeout=timeout_s
        )
    return urllib.request.urlopen(request, timeout=timeout_s)


def _is_passing(status: int) -> bool:
    return status >= 500 or status in (408, 425, 429)


def _refusal(error: urllib.error.HTTPError, what: str) -> str:
    if error.code in (401, 403):
        reason = _detail(error) or error.code
        return f"the broker refuses the token: {reason}; set the option 'token' or SLUICE_API_TOKEN to a valid one"
    return _detail(error) or f"the broker answers {error.code} for {what}"


def _detail(error: urllib.error.HTTPError) -> str:
    """The sentence of a problem document, or nothing."""
    try:
        document = json.loads(error.read(65536))
    except (OSError, ValueError, HTTPException):
        return ""
    return (
        str(document.get("detail") or document.get("title") or "")
        if isinstance(document, dict)
        else ""
    )


def _reason(error: BaseException) -> str:
    return str(getattr(error, "reason", None) or error or type(error).__name__)


def _next_offset(batch: pa.RecordBatch, expected: int, end: int, *, is_dense: bool) -> int:
    """The offset after a batch's last, once its offsets are found to be ``expected`` and on, without a gap if dense."""
    if batch.num_rows == 0:
        return expected
    offsets = batch.column(batch.schema.get_field_index("offset"))
    first = offsets[0].as_py()
    last = offsets[-1].as_py()
    is_next = (
        first == expected and last - first + 1 == batch.num_rows if is_dense else first >= expected
    )
    if not is_next or last >= end:
        raise SourceError(
            f"the broker sent offsets {first} to {last} in {batch.num_rows} records where {expected} and on, below "
            f"{end}, were asked for"
        )
    return int(last) + 1
