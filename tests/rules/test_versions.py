"""Versions of rules: what makes one, what is kept, what survives."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from broker.core.errors import NotFound
from rules.versions import MAX_BYTES, MAX_VERSIONS, Versions, difference

FIRST = {"name": "r", "enable": True, "sql": "SELECT 1 AS a FROM 't'", "actions": []}


def ticking() -> Any:
    """A clock that is a second later each time."""
    seconds = count(1_700_000_000)
    return lambda: next(seconds) * 1_000_000_000


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "versions"


def numbers(directory: Path) -> list[int]:
    """The versions that the file of the rule has."""
    return [one["version"] for one in json.loads((directory / "r.json").read_text())["versions"]]


def test_a_change_makes_a_version_and_none_does_not(directory: Path) -> None:
    versions = Versions(directory, ticking())
    versions.note("r", FIRST)
    versions.note("r", FIRST)
    versions.note("r", {**FIRST, "enable": False})
    versions.note("r", {**FIRST, "sql": "SELECT 2 AS a FROM 't'", "description": "new"})
    assert [(one.number, one.change) for one in versions.of("r")] == [
        (1, "created"),
        (2, "changed sql, description"),
    ]


def test_versions_outlive_the_process(directory: Path) -> None:
    before = Versions(directory, ticking())
    before.note("r", FIRST)
    before.note("r", {**FIRST, "sql": "SELECT 2 AS a FROM 't'"})
    after = Versions(directory, ticking())
    after.adopt("r", {**FIRST, "sql": "SELECT 2 AS a FROM 't'"}, "api.hocon")
    assert after.of("r") == before.of("r")
    assert after.created_ms("r") == before.created_ms("r")


def test_what_a_file_changed_while_the_broker_was_down_is_a_version(directory: Path) -> None:
    before = Versions(directory, ticking())
    before.note("r", FIRST)
    after = Versions(directory, ticking())
    after.adopt("r", {**FIRST, "sql": "SELECT 3 AS a FROM 't'"}, "sluice.conf: line 4")
    assert [one.change for one in after.of("r")] == ["created", "changed in sluice.conf: line 4"]


def test_a_rule_of_a_file_has_a_first_version_without_a_time_and_no_file_of_its_own(
    directory: Path,
) -> None:
    versions = Versions(directory, ticking())
    versions.adopt("r", FIRST, "sluice.conf: line 4")
    assert (versions.newest("r").number, versions.newest("r").saved_ms, directory.exists()) == (
        1,
        None,
        False,
    )
    versions.note("r", {**FIRST, "sql": "SELECT 3 AS a FROM 't'"})
    assert numbers(directory) == [1, 2]


def test_the_last_hundred_are_kept_and_numbers_go_on(directory: Path) -> None:
    versions = Versions(directory, ticking())
    for number in range(MAX_VERSIONS + 7):
        versions.note("r", {**FIRST, "sql": f"SELECT {number} AS a FROM 't'"})
    kept = versions.of("r")
    assert (len(kept), kept[0].number, kept[-1].number) == (MAX_VERSIONS, 8, MAX_VERSIONS + 7)
    with pytest.raises(NotFound, match="kept are 8 to 107"):
        versions.get("r", 3)


def test_large_versions_are_bounded_in_bytes(directory: Path) -> None:
    versions = Versions(directory, ticking())
    for number in range(12):
        versions.note("r", {**FIRST, "description": f"{number}" + "x" * 1_000_000})
    assert MAX_BYTES - 2_000_000 < (directory / "r.json").stat().st_size <= MAX_BYTES
    assert versions.of("r")[-1].number == 12


def test_a_file_that_cannot_be_read_begins_anew(directory: Path) -> None:
    directory.mkdir()
    (directory / "r.json").write_text('{"versions": [{"vers')
    versions = Versions(directory, ticking())
    versions.adopt("r", FIRST, "api.hocon")
    versions.note("r", {**FIRST, "sql": "SELECT 2 AS a FROM 't'"})
    assert [one.number for one in versions.of("r")] == [1, 2]
    assert json.loads((directory / "r.json").read_text())["versions"][1]["version"] == 2


def test_what_cannot_be_written_is_kept_in_memory_and_written_later(directory: Path) -> None:
    directory.write_text("in the way")
    versions = Versions(directory, ticking())
    versions.note("r", FIRST)
    versions.note("r", {**FIRST, "sql": "SELECT 2 AS a FROM 't'"})
    assert [one.number for one in versions.of("r")] == [1, 2]
    directory.unlink()
    versions.note("r", {**FIRST, "sql": "SELECT 3 AS a FROM 't'"})
    assert numbers(directory) == [1, 2, 3]


def test_a_deleted_rule_leaves_nothing(directory: Path) -> None:
    versions = Versions(directory, ticking())
    versions.note("r", FIRST)
    versions.forget("r")
    assert list(directory.iterdir()) == []
    versions.note("r", FIRST)
    assert versions.newest("r").number == 1


def test_a_difference_is_told_by_member_and_by_line() -> None:
    versions = Versions(None, ticking())
    versions.note("r", FIRST)
    versions.note("r", {**FIRST, "sql": "SELECT 1 AS a\nFROM 'u'", "description": "d"})
    found = difference(*versions.of("r"))
    assert [change["member"] for change in found["changes"]] == ["sql", "description"]
    assert found["text"].splitlines() == [
        "--- version 1", "+++ version 2", "@@ -1,2 +1,4 @@", "-sql: SELECT 1 AS a FROM 't'", "+sql: SELECT 1 AS a",
        "+  FROM 'u'", " actions: []", "+description: d",
    ]  # fmt: skip
