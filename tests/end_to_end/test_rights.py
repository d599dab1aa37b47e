"""Every operation of a real node as each role, in and out of scope: allowed, or 403 with the missing right named."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from broker.admin.rights import OWN, ROLES, Actor, Need, areas, word_of
from tests.support.local_node import Node, running
from tests.support.plain_http import NO_TLS

METHODS = ("get", "post", "put", "patch", "delete")
# A resource that has one operation, which the scopes of the matrix have when they are to leave out another.
ELSEWHERE = "decisions"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("node"), config="overload.enable = false\n") as node:
        yield node


@pytest.fixture(scope="module")
def operations(node: Node) -> list[tuple[str, str, Need]]:
    """Method, path and needed right of every operation behind a sign-in."""
    document = httpx.get(f"{node.url}/api/v1/openapi.json", verify=NO_TLS, timeout=60).json()
    found = []
    for path, methods in document["paths"].items():
        for method in METHODS:
            operation = methods.get(method)
            if operation is not None and operation.get("security") != []:
                resource = operation["x-resource"]
                need = Need(word_of(resource["name"]), resource["does"], operation["operationId"])
                found.append((method, _filled(path), need))
    assert len(found) > 250
    return found


def _filled(path: str) -> str:
    return re.sub(r"\{[^}]+\}", "1", path)


def _token(node: Node, name: str, **spec: Any) -> str:
    token: str = node.call("POST", "/tokens", {"name": name, **spec})["token"]
    return token


def test_every_operation_is_allowed_or_names_the_missing_right(
    node: Node, operations: list[tuple[str, str, Need]]
) -> None:
    resources = {need.resource for _, _, need in operations} - {OWN}
    assert resources <= areas().keys()
    checked = 0
    with httpx.Client(base_url=node.url, verify=NO_TLS, timeout=60, trust_env=False) as client:
        for role in ROLES:
            everywhere = _token(node, f"{role}-all", role=role)
            elsewhere = _token(node, f"{role}-elsewhere", role=role, kinds=[ELSEWHERE])
            inside = {
                resource: _token(node, f"{role}-{resource}", role=role, kinds=[resource])
                for resource in resources
            }
            for method, path, need in operations:
                scopes = [(everywhere, None), (elsewhere, [ELSEWHERE])]
                scopes += (
                    [(inside[need.resource], [need.resource])] if need.resource in inside else []
                )
                for token, kinds in scopes:
                    actor = Actor("x", role, None if kinds is None else frozenset(kinds))
                    answer = client.request(
                        method,
                        path,
                        params={"misspelt": "1"},
                        headers={"Authorization": f"Bearer {token}"},
                    )
                    _assert_answer(answer, actor.refusal(need), f"{role} {kinds} {method} {path}")
                    checked += 1
    assert checked > 3000


def _assert_answer(answer: httpx.Response, refusal: str | None, what: str) -> None:
    problem = answer.json()
    if refusal is None:
        assert (answer.status_code, problem["code"]) == (400, "unknown_parameter"), (
            f"{what}: {problem}"
        )
    else:
        assert (answer.status_code, problem["detail"]) == (403, refusal), f"{what}: {problem}"


def test_roles_have_the_expected_numbers_of_operations(
    operations: list[tuple[str, str, Need]],
) -> None:
    """A change of a role, or an operation in another area than was meant, shows here."""
    permitted = {
        role: {
            need.operation for _, _, need in operations if Actor("x", role).refusal(need) is None
        }
        for role in ROLES
    }
    every = {need.operation for _, _, need in operations}
    assert permitted["administrator"] == every
    assert permitted["viewer"] < permitted["editor"] < every
    assert permitted["viewer"] < permitted["operator"] < every
    for operation in (
        "putRule",
        "deleteSchema",
        "probeConnector",
        "restartConnector",
        "putStream",
    ):
        assert operation in permitted["editor"] - permitted["operator"], operation
    for operation in (
        "kickClients",
        "cancelJob",
        "clearRetained",
        "createBan",
        "replayStream",
        "publishMessage",
    ):
        assert operation in permitted["operator"] - permitted["editor"], operation
    for operation in (
        "previewPipeline",
        "checkAccess",
        "testRule",
        "backtestRule",
        "testConnector",
        "planStreamReplay",
    ):
        assert operation in permitted["operator"] & permitted["editor"] - permitted["viewer"]
    for operation in (
        "probeAlarmReceiver",
        "putToken",
        "listTokens",
        "putUser",
        "putSecret",
        "reloadConfig",
        "createListener",
    ):
        assert operation not in permitted["editor"] | permitted["operator"], operation
