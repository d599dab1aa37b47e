"""Traces of messages that go to clients of another cell, at a real OTLP receiver."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.cells import Cells, running
from tests.end_to_end.clients import Client
from tests.support.collector import Collector, collecting
from tests.support.node import eventually

PARENT = "b7ad6b7169203331"
_CONFIG = """lake.run_spark = false
overload.enable = false
telemetry {{ enable = true, interval = 100ms, max_traces_per_s = 0, endpoint = "{endpoint}" }}
"""


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting("http") as collector:
        yield collector


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[Cells]:
    config = _CONFIG.format(endpoint=collector.endpoint)
    with running(tmp_path_factory.mktemp("traced") / "data", config=config) as cells:
        yield cells


@pytest.mark.parametrize("is_lasting", [False, True])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_receiver_has_a_span_in_whichever_cell_it_is(
    cells: Cells, collector: Collector, qos: int, is_lasting: bool
) -> None:
    topic = f"traced/{qos}/{is_lasting}"
    trace = f"{qos + 1:016x}{int(is_lasting) + 1:016x}"
    names = [
        cells.client_of(1, f"a-{qos}-{is_lasting}"),
        cells.client_of(1, f"b-{qos}-{is_lasting}"),
    ]
    here = cells.client_of(0, f"c-{qos}-{is_lasting}")
    expiry_s = 600 if is_lasting else 0
    with (
        Client(cells.nodes[1], names[0], expiry_s=expiry_s) as first,
        Client(cells.nodes[1], names[1], expiry_s=expiry_s) as second,
        Client(cells.nodes[0], here, expiry_s=expiry_s) as third,
        Client(cells.nodes[0], cells.client_of(0, "publisher")) as publisher,
    ):
        for reader in (first, second, third):
            reader.subscribe(topic, qos)
        properties = [("traceparent", f"00-{trace}-{PARENT}-01")]
        publisher.publish(topic, "x", qos, UserProperty=properties)
        for reader in (first, second, third):
            assert reader.take().payload == b"x"

    def sends() -> dict[str, str]:
        return {
            span.attributes["messaging.client.id"]: span.parent_id
            for span in collector.named("send")
            if span.trace_id == trace
        }

    eventually(lambda: len(sends()) >= 3, what="a span of each receiver")
    assert set(sends()) == {*names, here}
    [root] = [span for span in collector.named("publish") if span.trace_id == trace]
    assert root.parent_id == PARENT
    assert set(sends().values()) == {root.span_id}
    [forward] = [span for span in collector.named("forward") if span.trace_id == trace]
    assert forward.attributes["messaging.client.id"] == "cell 1"


def test_messages_without_a_context_have_no_spans_anywhere(
    cells: Cells, collector: Collector
) -> None:
    reader, publisher = cells.client_of(1, "quiet"), cells.client_of(0, "publisher")
    with Client(cells.nodes[1], reader) as first, Client(cells.nodes[0], publisher) as second:
        first.subscribe("untraced", 1)
        second.publish("untraced", "x", 1)
        assert first.take().payload == b"x"
        first.subscribe("traced/last", 1)
        trace = f"{99:032x}"
        second.publish(
            "traced/last", "x", 1, UserProperty=[("traceparent", f"00-{trace}-{PARENT}-01")]
        )
        assert first.take().payload == b"x"
    eventually(lambda: [span for span in collector.named("send") if span.trace_id == trace])
    assert not [
        span
        for span in collector.spans
        if span.attributes.get("messaging.destination.name") == "untraced"
    ]
