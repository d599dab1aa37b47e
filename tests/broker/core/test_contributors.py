"""Services that answer questions about their objects to the rest of the node."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from broker.core.client import Client
from broker.core.contributor import Contributor, Contributors, Uses
from broker.core.errors import InUse, NotFound
from broker.core.message import Message
from broker.core.objects import Reference
from broker.core.schema import FieldType, SchemaLookup


class Rules(Contributor):
    def uses(self) -> Uses:
        yield Reference("rule", "it's hot"), Reference("stream", "hot")
        yield Reference("rule", "cold"), Reference("action", "hot")

    def columns_of_stream(self, stream: str) -> Mapping[str, FieldType]:
        return {"temp": FieldType("double"), "name": FieldType("string")} if stream == "hot" else {}


class Quarantine(Contributor):
    def columns_of_stream(self, stream: str) -> Mapping[str, FieldType]:
        return {"name": FieldType("long")}


def test_users_are_found_by_kind_and_name() -> None:
    contributors = Contributors((Rules(),))
    assert contributors.users_of("stream", "hot") == [("rule", "it's hot")]
    assert contributors.users_of("schema", "hot") == []
    assert str(contributors.users_of("stream", "hot")[0]) == 'rule "it\'s hot"'


def test_columns_of_all_contributors_are_joined_and_the_first_contributor_decides_over_a_type() -> (
    None
):
    columns = Contributors((Quarantine(), Rules())).columns_of_stream("hot")
    assert columns == [{"name": "temp", "type": "double"}, {"name": "name", "type": "long"}]


def test_a_contributor_that_answers_nothing_changes_nothing() -> None:
    contributor, message = Contributor(), Message("t", b"x", 0, False, Client("c"), 0)
    assert contributor.try_on(message, {}).message is message
    assert contributor.payload_type_after("t/#", FieldType("long")) == FieldType("long")
    assert [
        *contributor.uses(),
        *contributor.on_topic("t"),
        *contributor.effects_of_schema("s", SchemaLookup()),
    ] == []
    with pytest.raises(NotFound, match="rule"):
        Contributors((contributor,)).rule_for_spark("hot")


def test_users_are_found_through_others_and_once_each() -> None:
    class Tables(Contributor):
        def uses(self) -> Uses:
            yield Reference("lake table", "hot"), Reference("stream", "hot")
            yield Reference("lake table", "hot"), Reference("rule", "it's hot")
            yield Reference("stream", "hot"), Reference("lake table", "hot")

    contributors = Contributors((Rules(), Tables()))
    rule, table = Reference("rule", "it's hot"), Reference("lake table", "hot")
    assert contributors.all_users_of(Reference("stream", "hot")) == {
        rule: Reference("stream", "hot"),
        table: Reference("stream", "hot"),
    }
    with pytest.raises(InUse, match="lake table 'hot'") as refused:
        contributors.check_unused("rule", "it's hot")
    assert refused.value.users == ("lake table 'hot'",)
    contributors.check_unused("rule", "other")
