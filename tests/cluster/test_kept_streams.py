"""Retention, tiers and topic indexes of streams over two cells: each cell does the work on its own shards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_sluice.client import StreamClient
from tests.cluster.cells import Cells, running
from tests.cluster.test_streams import clients_of, publish, read_all, wrapped
from tests.support.node import TOKEN, eventually

CONFIG = """
overload.enable = false
stream_defaults { retention_interval = 200ms, sealing_interval = 100ms }
lake.run_spark = false
range_server.index_delay = 100ms
"""


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cells]:
    with running(tmp_path_factory.mktemp("kept") / "data", 2, CONFIG) as cells:
        yield cells


def firsts(cells: Cells, name: str) -> dict[int, int]:
    shards = cells.front.call("GET", f"/streams/{name}/positions")["shards"]
    return {shard["shard"]: int(shard["first_offset"]) for shard in shards}


def test_records_that_a_table_has_not_read_are_kept_in_all_cells(cells: Cells) -> None:
    for name in ("wanted", "unwanted"):
        spec = {"name": name, "topics": [f"{name}/#"], "retention": {"age": "1s"}}
        cells.front.call("POST", "/streams", spec)
    table = {"name": "wanted", "stream": "wanted", "format": "delta"}
    cells.front.call("POST", "/lake/tables", table)
    names = clients_of(cells, 2)
    for name in ("wanted", "unwanted"):
        publish(cells, names, name, range(10))
    eventually(lambda: firsts(cells, "unwanted") == {0: 20, 1: 20}, what="retention of the other")
    assert firsts(cells, "wanted") == {0: 0, 1: 0}
    shown = eventually(
        lambda: (now := cells.front.call("GET", "/lake/tables/wanted"))["lag_records"] == 40 and now
    )
    assert eventually(lambda: cells.front.call("GET", "/lake/tables/wanted")["lag_s"]) > 0, shown
    assert cells.front.call("GET", "/lake/tables/wanted")["valid_through"] is not None
    cells.front.call("DELETE", "/streams/wanted", expect=409)
    cells.front.call("DELETE", "/lake/tables/wanted")
    eventually(lambda: firsts(cells, "wanted") == {0: 20, 1: 20}, what="retention without a table")


def test_a_tier_has_the_segments_of_all_cells(cells: Cells, tmp_path: Path) -> None:
    place = cells.front.data_dir.parent / "tier"
    spec = {
        "name": "tiered",
        "topics": ["tiered/#"],
        "shards": 2,
        "retention": {"age": "1s"},
        "tier": {"url": str(place), "after": "1s"},
    }
    cells.front.call("POST", "/streams", spec)
    names = clients_of(cells, 6)
    sent = publish(cells, names, "tiered", range(20))

    def is_tiered() -> bool:
        shown = cells.front.call("GET", "/streams/tiered")
        state = shown["tier_state"]
        return (
            shown["records"] == 0
            and state["records_waiting"] == 0
            and [part["shard"] for part in state["positions"]] == [0, 1, 2, 3]
        )

    eventually(is_tiered, what="all is in the tier only")
    folders = sorted(path.name for path in place.glob("tiered/*/*"))
    assert folders == ["0000", "0001", "0002", "0003"]
    assert read_all(cells, "tiered") == wrapped(sent)
    page = cells.front.call("GET", "/streams/tiered/records?shard=2&limit=1000")
    assert {cells.place.cell_of(item["clientid"]) for item in page["items"]} == {1}
    at = StreamClient(cells.front.url, TOKEN, "tiered").positions(at="2020-01-01T00:00:00Z")
    assert {shard.at for shard in at.shards} == {0}
    # also while the cell is away
    cells.nodes[1].stop()
    try:
        assert read_all(cells, "tiered") == wrapped(sent)
    finally:
        cells.nodes[1].start()
    cells.front.call("DELETE", "/streams/tiered")
    eventually(lambda: not list(place.rglob("*.segment")), what="the tier is empty")


def test_a_topic_index_is_of_each_cell_and_reads_are_right(cells: Cells) -> None:
    spec = {"name": "indexed", "topics": ["indexed/#"], "index": "topic"}
    cells.front.call("POST", "/streams", spec)
    names = clients_of(cells, 3)
    sent = publish(cells, names, "indexed", range(20))
    eventually(
        lambda: (
            (state := cells.front.call("GET", "/streams/indexed")["index_state"])["state"]
            == "ready"
            and state["records_waiting"] == 0
        ),
        what="the index is ready",
    )
    client = StreamClient(cells.front.url, TOKEN, "indexed")
    where = client.positions()
    for name in names:
        shard = cells.place.cell_of(name)
        query = f"shard={shard}&filter=indexed/{name}&limit=1000"
        page = cells.front.call("GET", f"/streams/indexed/records?{query}")
        assert [item["payload"]["data"]["n"] for item in page["items"]] == [
            f"{name} {number}" for number in range(20)
        ]
        found = [
            payload.as_py().decode()
            for batch in client.read(where, shard, 0, where.next()[shard], f"indexed/{name}")
            for payload in batch.column("payload")
        ]
        assert len(found) == 20
    assert read_all(cells, "indexed") == wrapped(sent)
