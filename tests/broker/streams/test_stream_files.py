"""Records in NDJSON and Parquet files: what is written is read back exactly."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from broker.core.errors import Invalid
from broker.core.stored import properties_text
from broker.core.stream import StreamRecord
from broker.storage import records
from broker.streams import files
from tests.support.examples import examples

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
LEVELS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="/+#\0"), min_size=1, max_size=8
)
PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "User-Property": st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=3),
        "Correlation-Data": st.binary(max_size=10),
        "Content-Type": TEXT,
        "Message-Expiry-Interval": st.integers(0, 2**32 - 1),
    },
)
RECORDS = st.builds(
    StreamRecord,
    st.integers(0, 4_102_444_800_000_000),
    st.lists(LEVELS, min_size=1, max_size=4).map("/".join),
    st.binary(max_size=40) | TEXT.map(str.encode),
    st.integers(0, 2),
    st.booleans(),
    TEXT,
    st.none() | TEXT,
    st.none() | PROPERTIES.map(properties_text),
    st.none() | TEXT,
)


def written(form: str, found: list[StreamRecord], shard: int = 3) -> io.BytesIO:
    file = io.BytesIO()
    writer = files.WRITERS[form](file)
    writer.write(shard, records.encode(7, found))
    writer.close()
    file.seek(0)
    return file


@pytest.mark.parametrize("form", files.FORMATS)
@given(found=st.lists(RECORDS, min_size=1, max_size=20))
@settings(max_examples=examples(60), deadline=None)
def test_a_file_gives_back_every_record_exactly(form: str, found: list[StreamRecord]) -> None:
    read = [one for batch in files.READERS[form](written(form, found), 0) for one in batch]
    assert read == found
    assert files.unpacked(files.packed(read)) == found


@pytest.mark.parametrize("form", files.FORMATS)
def test_a_large_file_is_read_in_bounded_batches(form: str) -> None:
    small = [StreamRecord(n, "t", b"x", 0, False, "c") for n in range(files.BATCH_RECORDS * 2 + 1)]
    large = [StreamRecord(n, "t", bytes(1_500_000), 0, False, "c") for n in range(7)]
    sizes = [len(batch) for batch in files.READERS[form](written(form, small), 0)]
    assert sizes == [files.BATCH_RECORDS, files.BATCH_RECORDS, 1]
    assert [len(batch) for batch in files.READERS[form](written(form, large), 0)] == [3, 3, 1]


def test_a_minimal_line_is_a_record() -> None:
    first, ts = b'{"topic": "a", "payload": "hi"}', b'"ts": "2026-01-01T00:00:00+01:00"'
    second = b'{"topic": "b", "payload": {"$base64": "/w=="}, ' + ts + b"}"
    assert list(files.read_ndjson(io.BytesIO(first + b"\n\n" + second), 5)) == [
        [
            StreamRecord(5, "a", b"hi", 0, False, ""),
            StreamRecord(1767222000_000000, "b", b"\xff", 0, False, ""),
        ]
    ]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"nothing", "line 2: expected a record as JSON"),
        (b"[]", "line 2: expected a record as a JSON object"),
        (b'{"payload": ""}', "line 2: topic: expected a string"),
        (b'{"topic": "a/#", "payload": ""}', "line 2: topic 'a/#'"),
        (b'{"topic": "a"}', "line 2: payload: expected a string"),
        (b'{"topic": "a", "payload": {"$base64": "?"}}', "line 2: payload"),
        (b'{"topic": "a", "payload": "", "qos": 3}', "line 2: qos: expected 0, 1 or 2"),
        (b'{"topic": "a", "payload": "", "qos": true}', "line 2: qos: expected 0, 1 or 2"),
        (b'{"topic": "a", "payload": "", "ts": "2026-01-01"}', "line 2: ts: expected a time"),
        (b'{"topic": "a", "payload": "", "retain": 1}', "line 2: retain: expected true or false"),
        (
            b'{"topic": "a", "payload": "", "properties": 1}',
            "line 2: properties: expected an object",
        ),
        (b'{"topic": "a", "payload": "", "client_id": 1}', "line 2: client_id, username and rule"),
        (b'{"topic": "a", "payload": "", "tpoic": 1}', "line 2: unknown member 'tpoic'"),
    ],
)
def test_a_line_that_is_no_record_is_named(line: bytes, says: str) -> None:
    with pytest.raises(Invalid, match=says.replace("[", r"\[")):
        list(files.read_ndjson(io.BytesIO(b'{"topic": "a", "payload": ""}\n' + line), 0))


def _parquet(table: pa.Table) -> io.BytesIO:
    file = io.BytesIO()
    parquet.write_table(table, file)
    file.seek(0)
    return file


def test_parquet_of_others_needs_a_topic_and_a_payload_only() -> None:
    times = pa.array([1_700_000_000_123], pa.timestamp("ms"))
    table = pa.table({"topic": ["a"], "payload": ["hi"], "ts": times})
    assert list(files.read_parquet(_parquet(table), 0)) == [
        [StreamRecord(1_700_000_000_123_000, "a", b"hi", 0, False, "")]
    ]


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"topic": ["a"], "payload": ["b"], "ts": [1]}, "column ts: expected a timestamp"),
        ({"topic": ["a"], "payload": ["b"], "more": [1]}, "row 1: unknown member 'more'"),
        ({"topic": [None], "payload": ["b"]}, "row 1: topic: expected a string"),
    ],
)
def test_a_column_that_does_not_fit_is_named(columns: dict[str, list[Any]], says: str) -> None:
    with pytest.raises(Invalid, match=says):
        list(files.read_parquet(_parquet(pa.table(columns)), 0))


def test_what_is_no_file_of_the_format_is_refused() -> None:
    with pytest.raises(Invalid, match="cannot be read as Parquet"):
        list(files.read_parquet(io.BytesIO(b"nothing"), 0))
    with pytest.raises(Invalid, match="cannot be read as an Arrow stream"):
        files.unpacked(b"nothing")
