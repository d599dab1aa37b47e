"""Rules: whom they are about, what they are about, and that nothing denied gets by a wildcard."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from broker.auth.attempt import Certificate, ConnectAttempt
from broker.auth.authorize import AuthorizationSettings, Authorizer
from broker.auth.decision import Decision
from broker.auth.rules import Rule, RuleSettings
from broker.auth.subject import Subject, subject_of
from broker.core.topic import TopicFilter

ANN = Subject(
    {"username": "ann", "clientid": "c-1", "peerhost": "10.1.2.3", "client_attrs.site": "berlin"}
)
NOBODY = Subject({"peerhost": "10.1.2.3"})


def authorizer(*rules: dict[str, Any], **settings: Any) -> Authorizer:
    sources = [{"type": "file", "rules": list(rules)}]
    return Authorizer(AuthorizationSettings.model_validate({"sources": sources, **settings}))


def may(
    subject: Subject,
    action: str,
    topic: str,
    *rules: dict[str, Any],
    qos: int = 0,
    retain: bool = False,
    **settings: Any,
) -> bool:
    rulings = authorizer(*rules, **settings).rulings(subject)
    if action == "publish":
        return rulings.publish(topic, qos, retain).is_allowed
    return rulings.subscribe(TopicFilter.parse(topic), qos).is_allowed


def allow(topics: str | list[str], **more: Any) -> dict[str, Any]:
    return {"permission": "allow", "topics": topics, **more}


def deny(topics: str | list[str], **more: Any) -> dict[str, Any]:
    return {"permission": "deny", "topics": topics, **more}


@pytest.mark.parametrize(
    ("who", "is_ann"),
    [
        ("all", True),
        ({"username": "ann"}, True),
        ({"username": ["bob", "ann"]}, True),
        ({"username": "bob"}, False),
        ({"clientid": "c-1", "username": "ann"}, True),
        ({"clientid": "c-2", "username": "ann"}, False),
        ({"clientid_re": "c-[0-9]"}, True),
        ({"clientid_re": "c"}, False),  # all of it
        ({"username_re": "(?i)ANN"}, True),
        ({"ipaddr": "10.0.0.0/8"}, True),
        ({"ipaddr": ["192.168.0.1", "10.1.2.3"]}, True),
        ({"ipaddr": "10.2.0.0/16"}, False),
        ({"client_attrs": {"site": "berlin"}}, True),
        ({"client_attrs": {"site": "paris"}}, False),
        ({"client_attrs": {"none": "x"}}, False),
        ({}, True),
    ],
)
def test_a_rule_is_about_those_of_whom_all_holds(who: Any, is_ann: bool) -> None:
    assert may(ANN, "publish", "a/b", allow("a/+", who=who)) is is_ann


@pytest.mark.parametrize(
    ("rule", "action", "qos", "retain", "is_allowed"),
    [
        (allow("t"), "publish", 2, True, True),
        (allow("t", action="publish"), "subscribe", 0, False, False),
        (allow("t", action="subscribe"), "publish", 0, False, False),
        (allow("t", action="subscribe"), "subscribe", 2, False, True),
        (allow("t", qos=[0, 1]), "publish", 1, False, True),
        (allow("t", qos=1), "publish", 0, False, False),
        (allow("t", qos=[0, 1]), "subscribe", 2, False, False),
        (allow("t", retain=False), "publish", 0, True, False),
        (allow("t", retain=True), "publish", 0, True, True),
        (allow("t", retain=True), "publish", 0, False, False),
    ],
)
def test_a_rule_is_about_an_action(
    rule: Any, action: str, qos: int, retain: bool, is_allowed: bool
) -> None:
    assert may(ANN, action, "t", rule, qos=qos, retain=retain) is is_allowed


@pytest.mark.parametrize(
    ("topics", "topic", "is_allowed"),
    [
        ("u/${username}/#", "u/ann/x", True),
        ("u/${username}/#", "u/bob/x", False),
        ("dev-${clientid}/+", "dev-c-1/x", True),
        ("${client_attrs.site}/${username}", "berlin/ann", True),
        ("${client_attrs.none}/x", "x/x", False),
        ("eq a/+", "a/b", False),
        ("eq a/b", "a/b", True),
        ("#", "$SYS/x", False),  # [MQTT-4.7.2-1]
        (["x", "a/#"], "a", True),
    ],
)
def test_a_rule_is_about_topics(topics: Any, topic: str, is_allowed: bool) -> None:
    assert may(ANN, "publish", topic, allow(topics)) is is_allowed


@pytest.mark.parametrize("name", ["+", "#", "a/b", "", "a\0"])
def test_a_name_with_a_wildcard_in_it_fills_no_placeholder(name: str) -> None:
    subject = Subject({"username": name})
    assert not may(
        subject,
        "subscribe",
        f"u/{name}/x" if name not in ("#", "a\0") else "u/+/x",
        allow("u/${username}/x"),
    )
    assert not may(subject, "publish", "u/other/x", deny("u/${username}/x"), allow("#"))


@pytest.mark.parametrize(
    ("asked", "rules", "is_allowed"),
    [
        ("a/#", [allow("a/#")], True),
        ("a/+", [allow("a/#")], True),
        ("#", [allow("a/#")], False),
        ("a/+", [allow("a/b")], False),
        ("#", [deny("secret/#"), allow("#")], False),
        ("+/x", [deny("secret/#"), allow("#")], False),
        ("open/#", [deny("secret/#"), allow("#")], True),
        ("secret/me", [allow("secret/me"), deny("secret/#"), allow("#")], True),
        ("secret/+", [allow("secret/me"), deny("secret/#"), allow("#")], False),
        ("#", [deny("eq #"), allow("#")], False),
        ("a/#", [deny("eq #"), allow("#")], True),
        ("a/+", [allow("eq a/+")], True),
        ("a/b", [allow("eq a/+")], False),
        ("#", [deny("$SYS/#"), allow("#")], True),  # '#' has none of it
        ("$SYS/#", [deny("$SYS/#"), allow("#")], False),
        ("$share/g/a/b", [allow("a/b")], True),
        ("$share/g/a/b", [deny("a/b"), allow("#")], False),
    ],
)
def test_a_strict_subscription_is_decided_over_as_a_whole(
    asked: str, rules: Any, is_allowed: bool
) -> None:
    settings = {"strict_subscriptions": True, "deny_wide_subscriptions": False}
    assert may(ANN, "subscribe", asked, *rules, **settings) is is_allowed


@pytest.mark.parametrize(
    ("asked", "rules", "withheld"),
    [
        ("a/#", [allow("a/#")], ()),
        ("#", [allow("a/#")], None),  # a rule that allows covers all
        ("#", [deny("secret/#"), allow("#")], ("secret/#",)),
        ("+/x", [deny(["secret/#", "eq +/y", "$SYS/x"]), allow("#")], ("secret/#",)),
        ("open/#", [deny("secret/#"), allow("#")], ()),
        ("secret/+", [allow("secret/me"), deny("secret/#"), allow("#")], None),
        (
            "secret/#",
            [deny("secret/a"), deny("secret/b"), allow("#"), deny("secret/c")],
            ("secret/a", "secret/b"),
        ),
        ("#", [deny("eq #"), allow("#")], None),
        ("a/+", [deny("a/b", qos=[1, 2]), allow("#")], ()),
        ("$share/g/a/+", [deny("a/b"), allow("#")], ("a/b",)),
        ("a/+", [deny("a/b")], None),
    ],
)
def test_of_a_subscription_the_topics_are_withheld_that_are_denied(
    asked: str, rules: Any, withheld: tuple[str, ...] | None
) -> None:
    ruling = authorizer(*rules).rulings(ANN).subscribe(TopicFilter.parse(asked), 0)
    assert (ruling.withheld if ruling.is_allowed else None) == withheld


def test_what_is_not_certain_lets_nothing_through() -> None:
    assert not may(NOBODY, "publish", "a", allow("a", who={"username": "ann"}))
    assert not may(NOBODY, "publish", "u/ann", allow("u/${username}"))
    assert not may(NOBODY, "publish", "a", deny("a", who={"username": "mallory"}), allow("#"))
    assert not may(NOBODY, "publish", "u/x", deny("u/${username}"), allow("#"))
    assert may(NOBODY, "publish", "v/x", deny("u/${username}"), allow("#"))
    assert may(NOBODY, "publish", "a", allow("a", who={"ipaddr": "10.0.0.0/8"}))


@pytest.mark.parametrize(("no_match", "warnings"), [(None, 1), ("deny", 0)])
def test_the_log_says_when_the_last_rule_is_gone(no_match: Any, warnings: int, caplog: Any) -> None:
    made = Authorizer(AuthorizationSettings(no_match=no_match))
    for rules in ([], [Rule(RuleSettings.model_validate(allow("a")), "a", "built_in")], [], []):
        made.built_in.set(rules)
        made.changed()
    assert [record.message for record in caplog.records] == ["authorization.open"] * warnings


@pytest.mark.parametrize("no_match", ["allow", "deny"])
def test_what_no_rule_is_about_is_decided_by_the_setting(no_match: str) -> None:
    ruling = authorizer(allow("x"), no_match=no_match).rulings(ANN).publish("a", 0, False)
    assert (ruling.result, ruling.source) == (no_match, "no_match")


def test_the_first_source_decides_and_a_superuser_asks_none() -> None:
    made = authorizer(deny("a"), no_match="allow")
    assert made.rulings(ANN).publish("a", 0, False).rule == "rule 1"
    assert made.rulings(Subject({}, is_superuser=True)).publish("a", 0, False).source == "superuser"
    assert not Authorizer(AuthorizationSettings()).is_active


def test_facts_are_what_is_seen_said_by_the_authenticator_or_verified() -> None:
    certificate = Certificate("CN=dev,O=acme", "dev")
    attempt = ConnectAttempt(
        "forged", "dev", None, "10.0.0.1", 1, listener="ssl:x", certificate=certificate,
        attributes={"org": "acme", "mine": "x", "said": "y", "user": "dev"}, by_certificate=frozenset(("username",)),
    )  # fmt: skip
    roots = {"org": {"cert_subject"}, "mine": {"clientid"}, "user": {"username", "cn"}}
    decision = Decision("allow", attributes={"said": "y"})
    facts = subject_of(attempt, decision, roots=lambda name: roots.get(name, ())).facts
    assert facts == {
        "username": "dev",
        "peerhost": "10.0.0.1",
        "listener": "ssl:x",
        "cert_common_name": "dev",
        "cert_subject": "CN=dev,O=acme",
        "client_attrs.org": "acme",
        "client_attrs.said": "y",
        "client_attrs.user": "dev",
    }
    trusted = subject_of(
        attempt, decision, roots=lambda name: roots.get(name, ()), trusted=["clientid"]
    ).facts
    assert (trusted["clientid"], trusted["client_attrs.mine"]) == ("forged", "x")
    assert "client_attrs.mine" in subject_of(attempt, decision, trusted=["client_attrs.mine"]).facts


@pytest.mark.parametrize(
    "wrong",
    [
        {"permission": "maybe", "topics": ["a"]},
        {"permission": "allow", "topics": []},
        {"permission": "allow"},
        allow("a/#/b"),
        allow("${nobody}/x"),
        allow("$share/g/a"),
        allow("a", who={"clientid_re": "("}),
        allow("a", who={"ipaddr": "10.0.0.0/99"}),
        allow("a", who={"nobody": "x"}),
        allow("a", qos=3),
        allow("a", colour="red"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(wrong: Any) -> None:
    with pytest.raises(ValidationError):
        RuleSettings.model_validate(wrong)


LEVEL = st.sampled_from(["a", "b", "$x", "+"])
NAME_LEVEL = st.sampled_from(["a", "b", "$x"])
FILTER = st.builds(
    lambda levels, tail: "/".join([*levels, "#"] if tail or not levels else levels),
    st.lists(LEVEL, max_size=3),
    st.booleans(),
)
TOPIC = st.lists(NAME_LEVEL, min_size=1, max_size=4).map("/".join)
RULES = st.lists(
    st.builds(
        lambda permission, topics, eq: {
            "permission": permission,
            "topics": [f"eq {one}" if eq else one for one in topics],
        },
        st.sampled_from(["allow", "deny"]),
        st.lists(FILTER, min_size=1, max_size=2),
        st.just(False),
    ),
    max_size=4,
)


@pytest.mark.parametrize("is_strict", [True, False])
@pytest.mark.parametrize("no_match", ["allow", "deny"])
@given(FILTER, TOPIC, RULES)
def test_no_wildcard_gets_a_topic_that_is_denied_by_itself(
    no_match: str, is_strict: bool, asked: str, topic: str, rules: Any
) -> None:
    settings: dict[str, Any] = {"no_match": no_match, "strict_subscriptions": is_strict}
    rulings = authorizer(*rules, **settings).rulings(ANN)
    ruling = rulings.subscribe(TopicFilter.parse(asked), 0)
    if TopicFilter.parse(asked).matches(topic) and ruling.is_allowed:
        is_delivered = not ruling.withheld or rulings.withheld(topic, 0)
        assert is_delivered is may(ANN, "subscribe", topic, *rules, **settings)


@given(TOPIC, RULES)
def test_a_topic_is_decided_over_alike_for_publishing_and_subscribing(
    topic: str, rules: Any
) -> None:
    assert may(ANN, "publish", topic, *rules) == may(ANN, "subscribe", topic, *rules)
