"""Records of streams out to files and in from them. Imports pyarrow: loaded when such a command runs."""

from __future__ import annotations

import os
import secrets
import ssl
import time
import urllib.request
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import urlencode

import pyarrow as pa

from broker.cli import exit_codes
from broker.cli.client import ApiClient, name_path
from broker.cli.errors import CommandError
from broker.cli.jobs import Progress
from broker.config.places import Place, leaves_out
from broker.core.errors import Invalid
from broker.core.kinds import counted
from broker.streams import files

# Offsets that are asked for at once, each time with a new ticket.
_WINDOW: Final = 200_000
_TIMEOUT_S: Final = 60.0
# So long an import waits for a broker that does not answer.
_AWAY_S: Final = 60.0
_ARROW: Final = "application/vnd.apache.arrow.stream"


def exported(
    api: ApiClient,
    name: str,
    path: Path,
    form: str,
    start: Place | None,
    until: Place | None,
    topics: str | None,
) -> dict[str, Any]:
    """Write records to a file, which appears once it is complete; how many."""
    ranges = _ranges(api, name, start, until)
    unfinished = path.with_name(f"{path.name}.part")
    count = done = 0
    try:
        with (
            unfinished.open("wb") as file,
            Progress(sum(end - first for _, first, end in ranges), "records") as bar,
        ):
            writer = files.WRITERS[form](file)
            for shard, first, end in ranges:
                for begin in range(first, end, _WINDOW):
                    for batch in _batches(
                        api, name, shard, begin, min(end, begin + _WINDOW), topics
                    ):
                        writer.write(shard, batch)
                        count += batch.num_rows
                        bar.show(done + count if topics is None else done)
                    done += 0 if topics is None else min(end, begin + _WINDOW) - begin
            writer.close()
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}") from error
    finally:
        unfinished.unlink(missing_ok=True)
    return {"stream": name, "file": str(path), "format": form, "records": count}


def imported(api: ApiClient, name: str, path: Path, form: str) -> dict[str, Any]:
    """Append the records of a file. Return their number and notes on them."""
    api.get(name_path("/streams", name))
    id = secrets.token_hex(8)
    count = 0
    notes = dict[str, None]()
    try:
        with path.open("rb") as file, Progress(path.stat().st_size, "bytes") as bar:
            for part, records in enumerate(files.READERS[form](file, time.time_ns() // 1000)):
                answer = _sent(api, name, files.packed(records), id, part)
                count += len(records)
                notes |= dict.fromkeys(answer["notes"][:1] if not notes else ())
                bar.show(_position(file))
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}") from error
    except Invalid as error:
        raise CommandError(
            f"{path}: {error} (appended before it: {counted(count, 'record')})"
        ) from error
    return {
        "stream": name,
        "file": str(path),
        "format": form,
        "records": count,
        "notes": list(notes),
    }


def _position(file: IO[bytes]) -> int:
    return file.tell() if not file.closed else 0


def _sent(api: ApiClient, name: str, data: bytes, id: str, part: int) -> Any:
    """Send a part until the broker has it, which appends it once."""
    ends_s = time.monotonic() + _AWAY_S
    while True:
        try:
            path = f"{name_path('/streams', name)}:import"
            query: dict[str, Any] = {"import": id, "part": part}
            return api.post_bytes(path, data, _ARROW, **query)
        except CommandError as error:
            if error.exit_code != exit_codes.NOT_REACHABLE or time.monotonic() > ends_s:
                raise
            time.sleep(1)


def _ranges(
    api: ApiClient, name: str, start: Place | None, until: Place | None
) -> list[tuple[int, int, int]]:
    """Shard, first offset and offset after the last."""
    firsts, ends = (_offsets(api, name, place) for place in (start, until))
    ranges = []
    for row in api.get(f"{name_path('/streams', name)}/positions")["shards"]:
        shard = row["shard"]
        oldest = int(row["first_offset"])
        following = int(row["next_offset"])
        first = max(oldest, firsts.get(shard, oldest))
        end = min(following, ends.get(shard, following))
        if first < end and not leaves_out(shard, start, until):
            ranges.append((shard, first, end))
    return ranges


def _offsets(api: ApiClient, name: str, place: Place | None) -> dict[int, int]:
    if place is None or isinstance(place, dict):
        return place or {}
    at = {"at": place.isoformat()} if isinstance(place, datetime) else {}
    shards = api.get(f"{name_path('/streams', name)}/positions", **at)["shards"]
    return {
        row["shard"]: place if isinstance(place, int) else int(row["at_offset"]) for row in shards
    }


def _batches(
    api: ApiClient, name: str, shard: int, first: int, end: int, topics: str | None
) -> Iterator[pa.RecordBatch]:
    where = api.get(f"{name_path('/streams', name)}/positions")
    where |= next(row for row in where["shards"] if row["shard"] == shard)  # its own log, if any
    query = urlencode({"from": first, "to": end} | ({} if topics is None else {"filter": topics}))
    url = f"{where['ranges_url'].rstrip('/')}/streams/{where['log']}/{shard}?{query}"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {where['ticket']}"})
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if url.startswith("https:"):
        handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context()))
    try:
        with (
            urllib.request.build_opener(*handlers).open(request, timeout=_TIMEOUT_S) as answer,
            pa.ipc.open_stream(answer) as batches,
        ):
            yield from batches
    except (OSError, pa.ArrowException) as error:
        raise CommandError(
            f"the records of shard {shard} cannot be read from {where['ranges_url']}: {error}"
        ) from error
