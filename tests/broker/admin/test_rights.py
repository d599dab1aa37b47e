"""Rights by role, by scope of resources and by scope of topics."""

from __future__ import annotations

import pytest

from broker.admin.rights import OWN, ROLES, Actor, Need, Role, areas, word_of
from broker.core.kinds import kinds
from broker.core.resources import Does, resources

EVERY_DOES: tuple[Does, ...] = ("read", "change", "try", "job")


@pytest.mark.parametrize(
    ("role", "resource", "permitted"),
    [
        ("viewer", "rules", "read"),
        ("viewer", "clients", "read"),
        ("viewer", "tokens", ""),
        ("editor", "rules", "read change try"),
        ("editor", "clients", "read try"),
        ("editor", "listeners", "read try"),
        ("editor", "tokens", ""),
        ("operator", "rules", "read try job"),
        ("operator", "clients", "read change try job"),
        ("operator", "jobs", "read change try job"),
        ("operator", "users", "read try"),
        ("operator", "decisions", "read try"),
        ("operator", "stages", "read try job"),
        ("operator", "tokens", ""),
        ("administrator", "tokens", "read change try job"),
        ("administrator", "settings", "read change try job"),
    ],
)
def test_a_role_has_rights_by_the_area_of_the_resource(
    role: Role, resource: str, permitted: str
) -> None:
    actor = Actor("alice", role)
    assert [does for does in EVERY_DOES if actor.may(resource, does)] == permitted.split()
    assert actor.rights().get(resource, []) == permitted.split()


def test_a_refusal_names_the_missing_right_and_those_that_exist() -> None:
    viewer = Actor("alice", "viewer")
    assert (
        viewer.refusal(Need("rules", "change"))
        == "needs 'change' on 'rules'; your role 'viewer' has 'read'"
    )
    assert (
        viewer.refusal(Need("tokens", "read"))
        == "needs 'read' on 'tokens'; your role 'viewer' has no right on it"
    )
    scoped = Actor("ci", "editor", kinds=frozenset({"rules", "schemas"}))
    assert (
        scoped.refusal(Need("streams", "read"))
        == "needs 'read' on 'streams'; your scope is 'rules', 'schemas'"
    )
    assert scoped.refusal(Need("rules", "change")) is None


@pytest.mark.parametrize("role", ROLES)
def test_everyone_may_see_their_own_rights_and_sign_out(role: Role) -> None:
    assert Actor("alice", role, kinds=frozenset({"rules"})).refusal(Need(OWN, "change")) is None


@pytest.mark.parametrize(
    ("scope", "topic", "is_within"),
    [
        ("plant/a/#", "plant/a/temp", True),
        ("plant/a/#", "plant/a", True),
        ("plant/a/#", "plant/+/temp", False),
        ("plant/a/#", "$share/g/plant/a/+", True),
        ("plant/a/#", "#", False),
        ("#", "plant/b", True),
        ("#", "$SYS/uptime", False),
        ("plant/a/#", "$delayed/5/plant/a/x", False),
        ("plant/a/#", "plant/a/#/no filter", False),
        ("plant/a/#", "", False),
    ],
)
def test_a_scope_of_topics_covers_what_a_request_names(
    scope: str, topic: str, is_within: bool
) -> None:
    refusal = Actor("ci", "operator", topics=(scope,)).topic_refusal([topic])
    assert (refusal is None) == is_within
    assert refusal is None or (repr(topic) in refusal and repr(scope) in refusal)


def test_a_request_for_messages_that_names_no_topic_is_outside_every_scope_of_topics() -> None:
    actor = Actor("ci", "operator", topics=("#",))
    assert "names none" in (actor.topic_refusal([], is_required=True) or "")
    assert actor.topic_refusal([]) is None
    assert Actor("ci", "operator").topic_refusal([], is_required=True) is None


def test_every_kind_and_resource_has_an_area() -> None:
    names = {kind.name for kind in kinds()} | {resource.name for resource in resources()}
    assert {word_of(name) for name in names} <= areas().keys()
    assert all(
        verb.does == "job"
        for resource in resources()
        for verb in resource.verbs
        if verb.job is not None
    )
