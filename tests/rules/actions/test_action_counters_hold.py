"""What the counters of a rule and of its actions always add up to, whatever happens to sinks and messages."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.core.action import CONNECTED, DISABLED, DISCONNECTED
from broker.core.errors import Unavailable
from tests.rules.conftest import Node
from tests.support.examples import examples
from tests.support.rules_server import ListSink

PAYLOADS = (b'{"x":1}', b'{"x":0}', b"no json", b'{"x":"y"}')
HOT = {"type": "stream", "stream": "hot"}

steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from(PAYLOADS)),
        st.tuples(st.just("state"), st.sampled_from((CONNECTED, DISABLED, DISCONNECTED, ""))),
        st.tuples(
            st.just("settle"), st.sampled_from((None, Unavailable("away"), ValueError("bad")))
        ),
    ),
    max_size=40,
)


@given(steps)
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_all_that_was_started_is_accounted_for(told: list[tuple[str, Any]]) -> None:
    node, sink = Node(), ListSink("kafka:orders", settles=False)
    bridge = {"type": "bridge", "bridge": "kafka:orders", "fallback_actions": [HOT]}
    node.rule("SELECT payload.x AS x FROM 'in' WHERE payload.x > 0", bridge, HOT)
    for what, value in told:
        if what == "send":
            node.send("in", value)
        elif what == "settle" and sink.open:
            sink.open.pop(0)(value)
        elif what == "state":
            sink.state = value
            node.services.endpoints.sinks.remove(sink.name)
            if value:
                node.services.endpoints.sinks.add(sink)
    shown = node.service.get("r1")
    metrics, (first, second) = shown["metrics"], shown["action_details"]
    assert metrics["matched"] == metrics["passed"] + metrics["failed"]
    assert metrics["failed"] == metrics["failed.exception"] + metrics["failed.no_result"]
    assert (
        metrics["actions.failed"]
        == metrics["actions.failed.out_of_service"] + metrics["actions.failed.unknown"]
    )
    ended = metrics["actions.success"] + metrics["actions.failed"] + metrics["actions.discarded"]
    assert metrics["actions.total"] == ended + len(sink.open) == 2 * metrics["passed"]
    assert first["metrics"]["total"] == second["metrics"]["total"] == metrics["passed"]
    assert first["fallback_actions"][0]["metrics"]["total"] == first["metrics"]["failed"]
    assert len(node.streams.records["hot"]) == metrics["passed"] + first["metrics"]["failed"]
