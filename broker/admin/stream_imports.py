"""Records that come into streams from files, in parts. A part is in the stream once, however often it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from io import BytesIO
from typing import TYPE_CHECKING, Final

from typing_extensions import TypedDict

from broker.core import jsontext
from broker.core.clock import Clock
from broker.core.errors import Conflict, Invalid
from broker.core.lazy_module import LazyModule
from broker.core.stream import StreamRecord
from broker.core.times import MICROSECONDS, rfc3339
from broker.storage.collection import Codec, LiveCollection
from broker.storage.writer import Writer
from broker.streams.catalogue import Catalogue, Stream

if TYPE_CHECKING:
    from broker.streams import files
else:
    files = LazyModule("broker.streams.files")

ARROW: Final = "arrow"
# Maximum records of a part: appending them takes the loop some 20 ms.
MAX_RECORDS: Final = 20_000
_KEPT_NS: Final = 24 * 3600 * 1_000_000_000
_CONGESTED_S: Final = 0.02


def _import_of(key: bytes) -> tuple[int, str]:
    log, _, id = key.decode().partition("/")
    return int(log), id


_IMPORTS: Final = Codec[tuple[int, str]](lambda key: f"{key[0]}/{key[1]}".encode(), _import_of)
# The number of an import's last part, and when it came, in nanoseconds of the wall clock.
_PARTS: Final = Codec[tuple[int, int]](jsontext.encode, lambda data: tuple(jsontext.decode(data)))


class ImportedPart(TypedDict):
    """Number of records that were appended; 0 if the part was imported before (``is_repeated``). ``notes`` say how they
    are treated."""

    records: int
    is_repeated: bool
    notes: list[str]


class StreamImports:
    """Used on the event loop. The last part of each import is kept for a day, in the commit group of its records."""

    def __init__(
        self,
        catalogue: Catalogue,
        writer: Writer,
        clock: Clock,
        has: Callable[[str], bool] = lambda _client_id: True,
    ) -> None:
        """``has`` says of which clients records are appended here; others belong to other cells."""
        self._has = has
        self._catalogue = catalogue
        self._writer = writer
        self._clock = clock
        self._last = LiveCollection(writer, b"imports/", _IMPORTS, _PARTS)

    async def append(
        self, name: str, form: str, data: bytes, id: str | None = None, part: int = 0
    ) -> ImportedPart:
        """Append the records of a file, or of part ``part`` (from 0) of the import ``id``.

        Raises:
            NotFound: there is no such stream.
            Invalid: the data cannot be read, or a record does not fit the stream; nothing was appended.
            Conflict: parts before this one are missing.
            broker.core.errors.Unavailable: the store cannot be written.
        """
        stream = self._catalogue.get(name)
        every = await asyncio.to_thread(
            _read, form, data, stream.spec.kind, self._clock.now_ns() // 1000
        )
        records = [record for record in every if self._has(record.client_id)]
        while self._writer.is_congested:  # noqa: ASYNC110  the store notifies clients only
            await asyncio.sleep(_CONGESTED_S)
        if stream.is_gone:
            self._catalogue.get(name)
        if id is not None:
            key = stream.log, id
            last, _ = self._last.get(key) or (-1, 0)
            if part <= last:
                await self._writer.committed()
                return {"records": 0, "is_repeated": True, "notes": []}
            if part != last + 1:
                raise Conflict(f"import {id!r}: expected part {last + 1}, got {part}")
            self._note(key, part)
        for record in records:
            self._writer.append(stream.shard_of(record.client_id), record)
        await self._writer.committed()
        return {
            "records": len(records),
            "is_repeated": False,
            "notes": self._notes(stream, records),
        }

    def _note(self, key: tuple[int, str], part: int) -> None:
        now_ns = self._clock.now_ns()
        if part == 0:
            for old, (_, noted_ns) in self._last.stored():
                if noted_ns < now_ns - _KEPT_NS:
                    self._last.put(old, None)
        self._last.put(key, (part, now_ns))

    def _notes(self, stream: Stream, records: list[StreamRecord]) -> list[str]:
        oldest_us = min((record.ts_us for record in records), default=None)
        age_s = stream.spec.retention.age
        if oldest_us is None or oldest_us >= self._clock.now_ns() // 1000 - age_s * 1_000_000:
            return []
        oldest = rfc3339(oldest_us * MICROSECONDS)
        kept = f"Records from {oldest} on are older than stream {stream.name!r} keeps them ({age_s:g} s)"
        return [f"{kept}, and are removed again soon. Try: a longer retention.age."]


def _read(form: str, data: bytes, kind: str, now_us: int) -> list[StreamRecord]:
    """The records of a part. Blocks: for a thread."""
    if form == ARROW:
        records = files.unpacked(data)
    else:
        records = [
            record for batch in files.READERS[form](BytesIO(data), now_us) for record in batch
        ]
    if len(records) > MAX_RECORDS:
        raise Invalid(
            f"expected at most {MAX_RECORDS:,} records in a part, got {len(records):,}. Try: smaller parts"
        )
    if kind == "rows":
        for number, record in enumerate(records, 1):
            try:
                jsontext.decode(record.payload)
            except jsontext.JsonError as error:
                reason = f"the stream holds rows, and this payload is not JSON: {error}"
                raise Invalid(f"record {number}: {reason}") from None
    return records
