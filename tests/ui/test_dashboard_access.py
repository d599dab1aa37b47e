"""The page of access rules in a real browser: which rule decides for a client that need not be connected."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.node import Node
from tests.support.node import running as serving
from tests.ui.browser import check_everywhere, sign_in

CONFIG = "overload.enable = false\nauthorization.no_match = deny\n"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A broker with two access rules and a ban."""
    with serving(tmp_path_factory.mktemp("access") / "data", config=CONFIG) as node:
        for name, permission, topic in (
            ("own", "allow", "meters/${clientid}/#"),
            ("plant", "deny", "plant/#"),
        ):
            rule = {"name": name, "permission": permission, "topics": [topic]}
            node.call("POST", "/access/rules", rule)
        node.call("POST", "/bans", {"as": "clientid", "who": "evil", "reason": "spam"})
        yield node


def test_the_page_names_the_rule_that_decides(page: Any, broker: Node) -> None:
    sign_in(page, broker)
    page.goto(f"{broker.url}/access/rules")
    card = page.locator("section[aria-label='What may a client do?']")
    card.get_by_label("Client identifier").fill("m7")
    assert card.get_by_role("button", name="Check").is_disabled()
    for topic, sentence in (
        ("meters/m7/t", "m7 may publish meters/m7/t"),
        ("plant/1", "m7 may not publish plant/1"),
        ("other", "m7 may not publish other"),
    ):
        card.get_by_label("Topic").fill(topic)
        card.get_by_label("Topic").press("Enter")
        card.locator(f"text={sentence}").wait_for()
    card.locator("text=No rule matches: no_match.").wait_for()
    card.get_by_label("Topic").fill("meters/m7/t")
    card.get_by_role("button", name="Check").click()
    card.locator("text=Rule own of the source built_in decides.").wait_for()
    row = card.locator("tr", has=page.locator("a.name:text-is('own')"))
    row.locator("text=yes").wait_for()
    card.get_by_label("Client identifier").fill("evil")
    card.get_by_label("Action").select_option("connect")
    card.get_by_role("button", name="Check").click()
    card.locator("text=evil may not connect").wait_for()
    card.locator("text=Ban of clientid evil: spam.").wait_for()
    card.get_by_label("Action").select_option("publish")
    card.get_by_label("Topic").fill("a/#")
    card.get_by_role("button", name="Check").click()
    card.locator("text=/cannot be used/").wait_for()


def test_the_page_is_accessible_at_any_width(
    page: Any, broker: Node, complaints: list[str]
) -> None:
    sign_in(page, broker)
    path = f"{broker.url}/access/rules"
    check_everywhere(page, path, "main section.card td", complaints)
