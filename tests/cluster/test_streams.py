"""Streams over two cells: each has shards of its own, and the first cell answers for all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_sluice.client import StreamClient
from tests.cluster.cells import Cells, running
from tests.end_to_end.clients import Client
from tests.support.node import TOKEN

SHARDS = 2


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cells]:
    with running(tmp_path_factory.mktemp("streams") / "data") as cells:
        yield cells


def clients_of(cells: Cells, count: int) -> list[str]:
    """So many identifiers of each cell."""
    names = [f"d-{number}" for number in range(count * 8)]
    return [
        name
        for cell in range(2)
        for name in [name for name in names if cells.place.cell_of(name) == cell][:count]
    ]


def publish(cells: Cells, names: list[str], topic: str, payloads: range) -> Counter[str]:
    """Messages of all these clients, acknowledged; by payload."""
    sent: Counter[str] = Counter()
    for name in names:
        with Client(cells.nodes[cells.place.cell_of(name)], name) as client:
            for number in payloads:
                client.publish(f"{topic}/{name}", f'{{"n": "{name} {number}"}}', 1)
                sent[f"{name} {number}"] += 1
    return sent


def read_all(cells: Cells, stream: str) -> Counter[str]:
    """What a reader with the source's client reads, by payload."""
    client = StreamClient(cells.front.url, TOKEN, stream)
    where = client.positions()
    found: Counter[str] = Counter()
    for shard in where.shards:
        for batch in client.read(where, shard.shard, shard.first, shard.next):
            found.update(payload.as_py().decode() for payload in batch.column("payload"))
    return found


def by_shard(stream: dict[str, Any], member: str = "shards") -> dict[int, int]:
    return {shard["shard"]: int(shard["next_offset"]) for shard in stream[member]}


def test_a_reader_gets_the_records_of_all_cells(cells: Cells) -> None:
    cells.front.call("POST", "/streams", {"name": "all", "topics": ["all/#"], "shards": SHARDS})
    names = clients_of(cells, 6)
    sent = publish(cells, names, "all", range(20))
    where = cells.front.call("GET", "/streams/all/positions")
    assert sorted(by_shard(where)) == [0, 1, 2, 3]
    assert sum(by_shard(where).values()) == len(names) * 20
    assert not any("stale" in shard for shard in where["shards"])
    found = read_all(cells, "all")
    assert found == Counter({f'{{"n": "{text}"}}': count for text, count in sent.items()})
    shown = cells.front.call("GET", "/streams/all")
    assert by_shard(shown, "positions") == by_shard(where)
    assert shown["records"] == len(names) * 20
    assert shown["shards"] == SHARDS
    listed = cells.front.call("GET", "/streams")["items"]
    assert [each["records"] for each in listed if each["name"] == "all"] == [len(names) * 20]
