"""Rewrites as objects: what can be written, and what a topic becomes."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from broker.admin.rewrites import RewriteService
from broker.core.errors import Invalid
from broker.core.objects import MemorySection
from broker.routing.rewrite import Rewrites, RewriteSpec

RULES = [
    {
        "name": "y",
        "action": "all",
        "source_topic": "y/+/z/#",
        "re": "^y/(.+)/z/(.+)$",
        "dest_topic": "y/z/$2",
    },
    {
        "name": "x",
        "action": "all",
        "source_topic": "x/#",
        "re": "^x/y/(.+)$",
        "dest_topic": "z/y/x/$1",
    },
    {
        "name": "late",
        "action": "all",
        "source_topic": "x/y/+",
        "re": r"^x/y/(\d+)$",
        "dest_topic": "z/y/$1",
    },
    {
        "name": "me",
        "action": "publish",
        "source_topic": "me",
        "dest_topic": "${username}/${client_attrs.site}/me",
    },
]


def _service(rules: list[dict[str, Any]]) -> RewriteService:
    service = RewriteService(MemorySection(rules), Rewrites(lambda: None))
    service.start()
    return service


@pytest.mark.parametrize(
    ("topic", "made", "name"),
    [  # those of EMQX's manual
        ("y/a/z/b", "y/z/b", "y"),
        ("y/def", "y/def", None),
        ("x/1/2", "x/1/2", "x"),
        ("x/y/2", "z/y/x/2", "x"),
        ("x/y/z", "z/y/x/z", "x"),
        ("q", "q", None),
    ],
)
@pytest.mark.parametrize("action", ["publish", "subscribe"])
def test_topics_become_what_emqx_makes_of_them(
    action: str, topic: str, made: str, name: str | None
) -> None:
    assert _service(RULES).test({"topic": topic, "action": action}) == {
        "topic": made,
        "rewrite": name,
    }


def test_names_of_the_client_are_put_in_or_the_packet_is_refused() -> None:
    service = _service(RULES)
    asked = {"topic": "me", "username": "ann", "client_attrs": {"site": "berlin"}}
    assert service.test(asked)["topic"] == "ann/berlin/me"
    wrongs: list[dict[str, Any]] = [{"username": None}, {"username": "a/b"}, {"client_attrs": {}}]
    for wrong in wrongs:
        with pytest.raises(Invalid, match="refused"):
            service.test({**asked, **wrong})


def test_a_trial_can_bring_its_own_rewrites() -> None:
    own = [{"name": "n", "source_topic": "#", "dest_topic": "all"}]
    assert _service([]).test({"topic": "a", "rewrites": own}) == {"topic": "all", "rewrite": "n"}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"source_topic": "a/#/b"}, "must be the whole last level"),
        ({"source_topic": "$share/g/a"}, "leave that out"),
        ({"re": "("}, "is not a regular expression"),
        ({"re": "(?=a)"}, "is not a regular expression"),
        ({"re": "^(.)$", "dest_topic": "$2"}, "re has 1 groups"),
        ({"dest_topic": "$1"}, "re has 0 groups"),
        ({"dest_topic": "a/#"}, "must not contain"),
        ({"dest_topic": "${payload}"}, "is not known"),
        ({"dest_topic": ""}, "at least 1"),
        ({"name": "a b"}, "a name is letters"),
        ({"action": "drop"}, "publish"),
    ],
)
def test_what_cannot_be_used_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        RewriteSpec.model_validate({"name": "n", "source_topic": "a", "dest_topic": "b"} | wrong)


def test_the_order_decides_and_can_be_changed() -> None:
    service = _service([{"name": "one", "source_topic": "a/#", "dest_topic": "1"}])
    service.create({"name": "two", "source_topic": "a/b", "dest_topic": "2"})
    assert service.test({"topic": "a/b"})["topic"] == "1"
    service.reorder(["two", "one"])
    assert service.test({"topic": "a/b"})["topic"] == "2"
    service.replace("two", {"source_topic": "a/b", "dest_topic": "2", "enable": False})
    assert service.test({"topic": "a/b"})["topic"] == "1"
    service.delete("one")
    assert service.test({"topic": "a/b"}) == {"topic": "a/b", "rewrite": None}
