"""The command line on the real management API, served over HTTP from small services."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.cli import exit_codes
from broker.cli.main import main
from tests.ui.api_node import TOKEN, Node, Running


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    server = Running(Node())
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def node(server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("SLUICE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLUICE_URL", server.url)
    monkeypatch.setenv("SLUICE_API_TOKEN", TOKEN)
    server.node.reset()
    return server.node


def apply(noun: str, text: str) -> int:
    Path("objects.conf").write_text(text)
    return main([noun, "apply", "-f", "objects.conf"])


@pytest.mark.parametrize(
    "noun", ["rules", "schemas", "validations", "transforms", "streams", "lake tables"]
)
def test_each_kind_is_made_listed_shown_replaced_and_removed(
    noun: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = noun.split()
    Path("one.conf").write_text("name = first, stream = s")
    assert main([*words, "apply", "-f", "one.conf"]) == 0
    assert capsys.readouterr().out.endswith(" first created\n")
    assert main([*words, "apply", "-f", "one.conf"]) == 0
    assert capsys.readouterr().out.endswith(" first replaced\n")
    assert main([*words, "ls", "-o", "json"]) == 0
    assert [item["name"] for item in json.loads(capsys.readouterr().out)["items"]] == ["first"]
    assert main([*words, "show", "first", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "first"
    assert main([*words, "rm", "first", "--yes"]) == 0
    assert main([*words, "show", "first"]) == exit_codes.NOT_FOUND


def test_a_list_longer_than_a_page_comes_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert apply("streams", "[" + ", ".join(f"{{name = s{n:04}}}" for n in range(520)) + "]") == 0
    capsys.readouterr()
    assert main(["streams", "ls", "-o", "json"]) == 0
    assert [item["name"] for item in json.loads(capsys.readouterr().out)["items"]] == [
        f"s{n:04}" for n in range(520)
    ]


def test_what_the_api_refuses_is_told_with_its_places(capsys: pytest.CaptureFixture[str]) -> None:
    assert apply("rules", "name = hot, broken = true") == exit_codes.FAILED
    told = capsys.readouterr().err
    assert told.startswith("Error: rule 'hot': Invalid request\n  ")
    assert "line " in told


def test_names_the_api_does_not_take_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert apply("rules", 'name = "a b"') == exit_codes.FAILED
    assert "Error: rule 'a b': " in capsys.readouterr().err


def test_what_is_used_is_not_removed(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    assert apply("streams", "name = raw") == 0
    node.shelves["streams"].users["raw"] = ["rule 'hot'"]
    assert main(["streams", "rm", "raw", "--yes"]) == exit_codes.CONFLICT
    assert (
        "stream 'raw' is used by rule 'hot'; change or delete those first"
        in capsys.readouterr().err
    )


def test_a_wrong_token_is_not_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_API_TOKEN", "guess")
    assert main(["rules", "ls"]) == exit_codes.NOT_ALLOWED


def test_the_status_of_a_young_node_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == 0
    assert "received 0 = accepted 0 + dropped 0" in capsys.readouterr().out
