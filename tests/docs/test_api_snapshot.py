"""The OpenAPI document is the committed one: clients are generated from it, so each change of it is a decision."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, Final, get_args

import pytest

from broker.core.kinds import At, Topics
from docs.generate import SNAPSHOT, pages

Change = tuple[str, bool]
"""A difference in words, and whether it breaks clients."""
_NOTES: Final = frozenset(
    {"description", "summary", "title", "example", "examples", "default", "tags"}
)
_GONE_BREAKS: Final = frozenset(
    {"properties", "enum", "anyOf", "type", "paths", "schemas", "parameters"}
)
_CHANGED_BREAKS: Final = frozenset({"type", "$ref", "const", "operationId"})

_OPEN: Final = frozenset(
    {
        "ActionEffect.log",
        "Alarm.details",
        "AppendEffect.row",
        "AuditDifference.after",
        "AuditDifference.before",
        "BacktestSample.after",
        "BacktestSample.before",
        "ChangeView.after",
        "ChangeView.before",
        "CapturedStep.rows",
        "ClientView.connect_properties",
        "ConnectorTypeView.parameters",
        "DeadLetterView.row",
        "DecodedValue.value",
        "Effect.after",
        "Effect.before",
        "EncodedPayload.data",
        "EventDescription.example",
        "Expectation.rows",
        "ExplainStep.value",
        "ExplainedValue.value",
        "Explanation.rows",
        "FunctionExample.result",
        "JobWithResult.result",
        "ListenerView.settings",
        "MemberChange.after",
        "MemberChange.before",
        "MessageEvent.pub_props",
        "ObjectVersion.spec",
        "PayloadView.data",
        "PeekedMessage.properties",
        "PublishedView.properties",
        "RecordView.properties",
        "ReplaySample.row",
        "RepublishFallback.args",
        "RetainedView.properties",
        "RuleOutcome.rows",
        "SchemaVersionSource.parameters",
        "SendEffect.row",
        "SettingItem.value",
        "SettingSource.value",
        "SettingView.value",
        "SettingsTree.value",
        "TablePreview.rows",
        "TablesForJob.tables",
        "TailedMessage.properties",
        "TestCase.event",
        "TestMessage.properties",
        "TransformFailure.details",
        "TransformStep.value",
        "TrialStep.rows",
        "VariformValue.value",
        "VersionView.rule",
        "WireMessage.properties",
        "WrittenValue.value",
    }
)
"""Members of answers that hold anything: rows, payloads, values and sources of users, MQTT properties, settings."""


_OF_THE_FRONT: Final = frozenset(
    {
        "beginOidcSignIn",
        "drainMachine",
        "forgetMachine",
        "markApplied",
        "moveCell",
        "probeAction",
        "probeAlarmReceiver",
        "probeConnector",
        "probeSource",
        "publishMessage",
        "rebalanceMachines",
        "resumeMachine",
        "signIn",
        "signOut",
    }
)
"""Operations that change something, or need that right, and only in the process that serves the API where a broker has
several cells."""


@pytest.fixture(scope="module")
def committed() -> Any:
    return json.loads(SNAPSHOT.read_text())


def test_document_is_the_committed_one(committed: Any) -> None:
    found = differences(committed, json.loads(pages()[SNAPSHOT.name]))
    breaking = [text for text, breaks in found if breaks]
    assert not found, "\n".join(
        [
            f"docs/reference/openapi.json: expected the API as committed, got {found[0][0]}. Try: make docs",
            f"{len(found)} differences, {len(breaking)} of them break clients",
            *breaking,
        ]
    )


def test_answers_name_their_members(committed: Any) -> None:
    answers = [
        answer
        for operation in _operations(committed)
        for status, answer in operation["responses"].items()
        if status.startswith("2")
    ]
    schemas = committed["components"]["schemas"]
    found = {
        place
        for name in _reached(committed, answers)
        for place in _open_places(schemas[name], name)
    }
    assert found == _OPEN


def test_every_operation_says_what_it_does_and_where_it_runs(committed: Any) -> None:
    for methods in committed["paths"].values():
        for method, operation in methods.items():
            resource = operation.get("x-resource", {})
            does = ("read",) if method == "get" else ("change", "try", "job")
            assert resource.get("name"), operation["operationId"]
            assert resource["does"] in does, operation["operationId"]
            assert resource["at"] in get_args(At), operation["operationId"]
            is_of_front = resource["at"] == "here" and resource["does"] in ("change", "job")
            if is_of_front and resource["name"] != "table":  # the front fills the tables
                assert operation["operationId"] in _OF_THE_FRONT
            assert resource["topics"] in get_args(Topics), operation["operationId"]


# Types that have what was published.
_PUBLISHED: Final = {
    "EncodedPayload", "PayloadView", "QuarantinedMessage", "RecordView", "TestMessage", "WirePayload",
}  # fmt: skip


def test_an_operation_that_returns_messages_says_how_topics_scope_it(committed: Any) -> None:
    modes = {
        operation["operationId"]: operation["x-resource"]["topics"]
        for operation in _operations(committed)
        if _PUBLISHED
        & _reached(
            committed,
            [answer for status, answer in operation["responses"].items() if status[0] == "2"],
        )
    }
    assert [id for id, mode in modes.items() if mode == "none"] == []
    assert len(modes) > 15  # the test sees messages


def test_every_reference_leads_to_a_part_of_the_document(committed: Any) -> None:
    parts = committed["components"]
    assert set(_references(committed)) - set(parts["schemas"]) - set(parts["responses"]) == set()


def _rename(members: dict[str, Any], before: str, after: str) -> None:
    members[after] = members.pop(before)


def _schema(document: Any, name: str) -> Any:
    return document["components"]["schemas"][name]


@pytest.mark.parametrize(
    ("change", "text", "breaks"),
    [
        (lambda at: at["paths"].pop("/api/v1/status"), "paths /api/v1/status removed", True),
        (
            lambda at: at["paths"]["/api/v1/config:reload"]["post"]["parameters"].pop(),
            "parameters dry_run removed",
            True,
        ),
        (
            lambda at: at["paths"]["/api/v1/status"]["get"].update(operationId="state"),
            "operationId 'getStatus'",
            True,
        ),
        (
            lambda at: _rename(_schema(at, "Status")["properties"], "rules", "all_rules"),
            "rules removed",
            True,
        ),
        (
            lambda at: _schema(at, "RuleTest")["properties"]["language"]["enum"].remove("jq"),
            "enum jq removed",
            True,
        ),
        (
            lambda at: _schema(at, "PublishRequest")["required"].append("qos"),
            "required qos added",
            True,
        ),
        (
            lambda at: _schema(at, "Status")["required"].remove("rules"),
            "required rules removed",
            True,
        ),
        (
            lambda at: _schema(at, "Kicked")["properties"]["kicked"].update(type="string"),
            "type 'integer' is",
            True,
        ),
        (lambda at: _schema(at, "Status")["required"].append("more"), "required more added", False),
        (
            lambda at: _schema(at, "PublishRequest")["properties"].update(more={}),
            "properties more added",
            False,
        ),
        (
            lambda at: _schema(at, "Status").update(description="Other words"),
            "description changed",
            False,
        ),
    ],
)
def test_a_change_is_named_and_judged(
    committed: Any, change: Callable[[Any], Any], text: str, breaks: bool
) -> None:
    changed = deepcopy(committed)
    change(changed)
    found = differences(committed, changed)
    assert any(text in one for one, _ in found), found
    assert any(is_break for _, is_break in found) is breaks


def differences(before: Any, after: Any) -> list[Change]:
    """Each difference of two documents, those that break clients of the first one first."""
    sent = _reached(after, [operation.get("requestBody") for operation in _operations(after)])
    return sorted(_differences(before, after, (), sent), key=lambda change: not change[1])


def _differences(
    before: Any, after: Any, place: tuple[str, ...], sent: set[str]
) -> Iterator[Change]:
    if before == after:
        return
    where, parent, name = " ".join(place), *("", "", *place)[-2:]
    if parent == "properties":  # a member that may be called as a keyword is
        name = ""
    if name in _NOTES:
        yield f"{where} changed", False
    elif isinstance(before, (dict, list)) and type(before) is type(after):
        old, new = _members(before), _members(after)
        is_sent = "requestBody" in place or bool(sent.intersection(place[2:3]))
        for member in sorted({*old, *new}):
            if member not in new:
                is_method = parent == "paths"
                breaks = name in _GONE_BREAKS or is_method or (name == "required" and not is_sent)
                yield f"{where} {member} removed", breaks
            elif member not in old:
                is_wanted = name == "parameters" and new[member].get("required", False)
                yield f"{where} {member} added", is_wanted or (name == "required" and is_sent)
            else:
                yield from _differences(old[member], new[member], (*place, member), sent)
    else:
        yield (
            f"{where} {before!r} is now {after!r}",
            name in _CHANGED_BREAKS or (name == "required" and after is True),
        )


def _members(part: Any) -> dict[str, Any]:
    """What a part consists of; what is in a list by its name, or by what it is."""
    if isinstance(part, dict):
        return part
    return {
        item["name"]
        if isinstance(item, dict) and "name" in item
        else item
        if isinstance(item, str)
        else str(item): item
        for item in part
    }


def _operations(document: Any) -> list[Any]:
    return [operation for methods in document["paths"].values() for operation in methods.values()]


def _reached(document: Any, parts: Any) -> set[str]:
    """The names of the schemas that parts of the document consist of."""
    todo, seen = [*_references(parts)], set[str]()
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += _references(document["components"]["schemas"][name])
    return seen


def _open_places(schema: Any, place: str) -> Iterator[str]:
    """Where a schema takes any value, or an object with any members."""
    inner = {**schema, "type": ""} if isinstance(schema.get("type"), list) else schema
    if not inner.keys() - {"title", "description", "default", "examples"} or (
        inner.get("type") == "object"
        and "properties" not in inner
        and inner.get("additionalProperties", True) is True
    ):
        yield place
    for name, item in schema.get("properties", {}).items():
        yield from _open_places(item, f"{place}.{name}")
    for part in ("items", "additionalProperties"):
        if isinstance(schema.get(part), dict):
            yield from _open_places(schema[part], place)
    for item in (
        *schema.get("anyOf", ()),
        *schema.get("oneOf", ()),
        *schema.get("prefixItems", ()),
    ):
        yield from _open_places(item, place)


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, dict) and isinstance(part.get("$ref"), str):
        yield part["$ref"].rpartition("/")[2]
    for item in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from _references(item)
