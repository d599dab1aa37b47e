"""A rule that names an action which is not there is told so; a source that rules read names them."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core.action import CONNECTED, Row, Settlement
from broker.core.message import Message
from rules.feature import RulesFeature
from tests.support.features import make_services

MISSING = "/bridge: there is no action 'http:x' yet; rows are discarded until it is made"


class Sink:
    name, state, has_room = "kafka:orders", CONNECTED, True

    def write(self, row: Row, message: Message, settle: Settlement) -> None:
        settle.succeeded(1)


@pytest.mark.parametrize(
    ("actions", "found"),
    [
        (["kafka:orders"], []),
        (
            ["kafka:order"],
            [
                "/actions/0/bridge: there is no action 'kafka:order' yet; did you mean 'kafka:orders'?"
            ],
        ),
        (["http:x"], [f"/actions/0{MISSING}"]),
        (
            [{"type": "console", "fallback_actions": ["http:x"]}],
            [f"/actions/0/fallback_actions/0{MISSING}"],
        ),
    ],
    ids=["there", "misspelt", "missing", "fallback"],
)
def test_actions_that_are_not_there_are_warned_of(actions: list[Any], found: list[str]) -> None:
    services = make_services()
    services.endpoints.sinks.add(Sink())
    rules = RulesFeature(services).service
    warnings = rules.check({"sql": 'SELECT topic FROM "t"', "actions": actions})["warnings"]
    assert [f"{one['pointer']}: {one['message']}; {one['suggestion']}" for one in warnings] == found


def test_the_rules_that_read_a_source_are_known() -> None:
    services = make_services()
    rules = RulesFeature(services).service
    for name, source in (
        ("a", "$bridges/mqtt:plant"),
        ("b", "$sources/mqtt:plant"),
        ("c", "$bridges/mqtt:other"),
    ):
        rules.create({"name": name, "sql": f'SELECT payload FROM "{source}"', "actions": []})
    assert services.contributors.users_of("source", "mqtt:plant") == [("rule", "a"), ("rule", "b")]
