"""Every statement of MQTT that binds a server has a test or a reason, and no test names one that does not exist."""

from __future__ import annotations

import pytest

from docs.conformance import Section, load, marked_tests

STATEMENTS = load()
TESTS = marked_tests()


@pytest.mark.parametrize(
    "section", STATEMENTS.sections, ids=lambda section: f"section-{section.number}"
)
def test_every_statement_has_a_test_or_a_reason(section: Section) -> None:
    wanted = {name for rule in section.rules for name in rule.ids}
    missing = sorted(wanted - set(TESTS) - set(STATEMENTS.excused))
    assert not missing, f"{section.title}: no test is marked with {missing}"


def test_no_unknown_statement_is_named() -> None:
    unknown = {name: tests for name, tests in TESTS.items() if name not in STATEMENTS.ids}
    assert not unknown
