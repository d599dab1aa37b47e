"""Objects and calls that are nearly right: no error of the server's own, nobody waits 100 ms, no 64 MiB."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from random import Random

import httpx
import pytest

from tests.fuzz.objects import Call, Requests
from tests.support.node import Node, running
from tests.support.watching import Watch
from transforms.variform.functions import LAZY
from transforms.variform.registry import FUNCTIONS

SEED = 20261122
BUDGET_S = 60.0
"""How long calls are made; about five hundred."""
ATTEMPTS = 4
"""A call is to blame when others wait each time it is made; the machine, when they do once."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(
        tmp_path_factory.mktemp("fuzz") / "node",
        config="lake.run_spark = false\noverload.enable = false\n",
        may_fork=False,
    ) as node:
        yield node
        assert "Traceback" not in node.log.read_text()


@pytest.fixture
def watch(node: Node) -> Iterator[Watch]:
    watch = Watch(node)
    yield watch
    watch.close()


def test_no_call_is_an_error_of_the_server_or_holds_it_up(node: Node, watch: Watch) -> None:
    functions = [one["name"] for one in node.call("GET", "/functions")["items"]]
    requests = Requests(Random(SEED), functions, [*FUNCTIONS, *LAZY])
    ends_s, answered = time.monotonic() + BUDGET_S, 0
    with node.client() as client:
        while time.monotonic() < ends_s:
            call = requests.next()
            late = [_late(client, watch, call)]
            while late[-1] and len(late) < ATTEMPTS:
                late.append(_late(client, watch, call))
            assert not late[-1], f"{_shown(call)}: {late}"
            answered += 1
    assert answered > 20


def _late(client: httpx.Client, watch: Watch, call: Call) -> str:
    """Make a call, and undo it; whom it held up or what it took, or nothing."""
    method, path, body = call
    watch.begin()
    answer = client.request(method, path, json=body)
    assert answer.status_code != 500, f"{_shown(call)}: {answer.text[:500]}"
    try:
        watch.check()
        late = ""
    except AssertionError as error:
        late = str(error)
    if answer.status_code == 201:
        client.delete(f"{path}/{body['name']}").raise_for_status()
    return late


def _shown(call: Call) -> str:
    text = f"{call[0]} {call[1]} {json.dumps(call[2])}"
    return text if len(text) < 2_000 else f"{text[:2_000]}... of {len(text)} characters"
