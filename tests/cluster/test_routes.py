"""The filters that other cells are told: one kind that covers all subscriptions to each, when it changes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.cluster.routes import Interest, Kind
from broker.core.subscription import Subscription
from broker.core.topic import TopicFilter
from tests.support.examples import examples

_SUBSCRIBERS: Any = [SimpleNamespace(is_durable=is_durable) for is_durable in (False, True)]
_SUBSCRIPTIONS = st.builds(
    Subscription,
    st.sampled_from(["a", "a/+", "$SYS/x"]).map(TopicFilter.parse),
    st.integers(0, 2),
    retain_as_published=st.booleans(),
)


@settings(max_examples=examples(200))
@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 1), _SUBSCRIPTIONS, st.booleans()), max_size=40
    )
)
def test_what_is_told_adds_up_to_what_clients_have(
    steps: list[tuple[int, int, Subscription, bool]],
) -> None:
    calls: list[None] = []
    interest = Interest(lambda: calls.append(None))
    present: dict[tuple[int, str], tuple[int, Subscription]] = {}
    told: dict[str, int | None] = {}
    for client, durable, subscription, is_told in steps:
        key = client, subscription.filter.text
        earlier = present.pop(key, None)
        if earlier is not None:
            interest.removed(_SUBSCRIBERS[earlier[0]], earlier[1])
        else:
            present[key] = durable, subscription
            interest.added(_SUBSCRIBERS[durable], subscription)
        if is_told:
            told.update(interest.take_changes())
    assert len(calls) <= len(steps)
    told.update(interest.take_changes())
    covering: dict[str, Kind] = {}
    for (_, text), (durable, subscription) in present.items():
        if text.startswith("$SYS"):
            continue
        kind = covering.get(text, Kind(0, retains=False, is_durable=False))
        covering[text] = Kind(
            max(kind.qos, subscription.qos),
            kind.retains or subscription.retain_as_published,
            kind.is_durable or (durable > 0 and subscription.qos > 0),
        )
    assert {text: Kind.of(kind) for text, kind in told.items() if kind is not None} == covering
    assert dict(interest.all()) == {text: kind for text, kind in told.items() if kind is not None}
