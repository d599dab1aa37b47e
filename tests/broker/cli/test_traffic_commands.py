"""The commands for clients, sessions, subscriptions, topics, retained messages and publishing, on a real broker."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from broker.cli import exit_codes
from broker.cli.main import main
from tests.support.local_node import Node, running
from tests.support.node import TOKEN, eventually


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("traffic") / "data") as node:
        yield node


@pytest.fixture
def ask(
    node: Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Any]:
    """Runs a command with ``--json``; what it printed."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("SLUICE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLUICE_URL", node.url)
    monkeypatch.setenv("SLUICE_API_TOKEN", TOKEN)

    def run(*words: str) -> Any:
        capsys.readouterr()
        assert main([*words, "--json"]) == exit_codes.DONE, capsys.readouterr().err
        return json.loads(capsys.readouterr().out)

    return run


def visit(node: Node, client_id: str, *filters: str) -> None:
    """A client that comes, subscribes with QoS 1, and goes, leaving a session."""
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id, clean_session=False)

    def subscribe(*_: Any) -> None:
        client.subscribe([(text, 1) for text in filters])

    def leave(*_: Any) -> None:
        client.disconnect()

    client.on_connect, client.on_subscribe = subscribe, leave
    client.connect(*node.mqtt)
    client.loop_forever()


def test_publishing_says_what_became_of_the_message(
    ask: Callable[..., Any], tmp_path: Path
) -> None:
    told = ask("publish", "r/1", "-m", "one", "-q", "1", "-r")
    assert (told["receivers"], told["outcome"], told["retained"]) == (0, "no_subscribers", True)
    (tmp_path / "payload").write_bytes(b"\xff\x00")
    ask(
        "publish",
        "r/2",
        "-f",
        "payload",
        "-r",
        "-D",
        "unit=C",
        "--content-type",
        "x/y",
        "--expiry",
        "3600",
    )
    shown = ask("retained", "show", "r/2")
    assert shown["payload"] == {"encoding": "base64", "data": "/wA="}
    assert shown["user_properties"] == [["unit", "C"]]
    assert shown["properties"]["Content-Type"] == "x/y"


def test_the_payload_is_the_second_argument(
    ask: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    ask("publish", "r/3", '{"t": 21.5}', "-r")
    assert ask("retained", "show", "r/3")["payload"] == {"encoding": "utf8", "data": '{"t": 21.5}'}
    assert main(["publish", "r/3", "one", "-m", "two"]) == exit_codes.USAGE
    assert "give the payload once" in capsys.readouterr().err


def test_publish_refuses_what_cannot_be(
    ask: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["publish", "a/+", "-m", "x"]) == exit_codes.FAILED
    assert "must not contain" in capsys.readouterr().err
    assert main(["publish", "a", "-f", "missing"]) == exit_codes.FAILED
    assert "missing cannot be read" in capsys.readouterr().err


def test_retained_messages_are_listed_counted_and_cleared(ask: Callable[..., Any]) -> None:
    for number in range(5):
        ask("publish", f"plant/{number}", "-m", "x", "-r")
    assert [row["topic"] for row in ask("retained", "ls", "plant/#")["items"]] == [
        f"plant/{n}" for n in range(5)
    ]
    cut = ask("retained", "ls", "plant/#", "--limit", "2")
    assert (len(cut["items"]), cut["next"] is None) == (2, False)
    before = ask("retained", "count")["messages"]
    assert main(["retained", "rm", "plant/0", "--yes"]) == exit_codes.DONE
    assert main(["retained", "rm", "plant/0", "--yes"]) == exit_codes.NOT_FOUND
    assert ask("retained", "clear", "plant/#", "--dry-run")["messages"] == 4
    assert ask("retained", "clear", "plant/#", "--yes")["messages"] == 4
    assert ask("retained", "count")["messages"] == before - 5


@pytest.mark.statement("own:N32")
def test_sessions_are_listed_ranked_and_purged(
    ask: Callable[..., Any], node: Node, tmp_path: Path
) -> None:
    visit(node, "line-1", "l/#")
    visit(node, "line-2", "l/1")
    for number in range(1, 4):
        ask("publish", f"l/{number}", "-m", "12345", "-q", "1")
    rows = ask("sessions", "ls", "--client", "line-*", "--away")["items"]
    assert [(row["clientid"], row["connected"], row["durable"]) for row in rows] == [
        ("line-1", False, True),
        ("line-2", False, True),
    ]
    assert ask("sessions", "show", "line-1")["queued"] == 3
    assert main(["sessions", "top", "-n", "1", "--csv", "top.csv"]) == exit_codes.DONE
    [row] = list(csv.DictReader((tmp_path / "top.csv").read_text().splitlines()))
    assert (row["clientid"], row["queued"], row["queued_bytes"]) == ("line-1", "3", "24")
    assert (
        ask("sessions", "purge", "--client", "line-*", "--older-than", "1d", "--yes")["sessions"]
        == 0
    )
    assert (
        ask("sessions", "purge", "--client", "line-1", "--zone", "other", "--yes")["sessions"] == 0
    )
    assert (
        ask("sessions", "purge", "--client", "line-1", "--zone", "default", "--yes")["queued"] == 3
    )
    assert main(["sessions", "rm", "line-2", "--yes"]) == exit_codes.DONE
    assert ask("sessions", "ls", "--id", "line-*")["items"] == []


def test_names_are_no_formulas_in_a_spreadsheet(
    ask: Callable[..., Any], node: Node, tmp_path: Path
) -> None:
    names = {
        "=cmd|'/c calc'!A1",
        "+1",
        "-1",
        "@SUM(A1)",
        "\uff1d1",
        "\uff0b1",
        "\uff0d1",
        "\uff20A1",
        "plain-1",
        'a"=1',
    }
    for name in names:
        visit(node, name, "f/#")
    ask("publish", "f/1", "-m", "x", "-q", "1")
    assert main(["sessions", "top", "-n", "100", "--csv", "top.csv"]) == exit_codes.DONE
    with (tmp_path / "top.csv").open(newline="") as file:
        shown = {row["clientid"] for row in csv.DictReader(file)}
    assert {name if name[0].isalpha() else f"'{name}" for name in names} <= shown
    for name in names:
        assert main(["sessions", "rm", "--yes", "--", name]) == exit_codes.DONE


def test_purging_without_saying_which_is_refused(
    ask: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sessions", "purge", "--yes"]) == exit_codes.USAGE
    assert "say which sessions" in capsys.readouterr().err
    for flags in (["--connected"], ["--durable"], ["--dry-run"], ["--min-queued", "0"]):
        assert main(["sessions", "purge", *flags, "--yes"]) == exit_codes.USAGE
    assert main(["sessions", "purge", "--older-than", "soon", "--yes"]) == exit_codes.USAGE


def test_clients_and_subscriptions_are_shown(ask: Callable[..., Any], node: Node) -> None:
    visit(node, "odd/id #1", "q/+", "z")
    assert ask("clients", "show", "odd/id #1")["subscriptions_count"] == 2
    assert ask("clients", "ls", "--client", "odd*")["items"][0]["connected"] is False
    assert [row["filter"] for row in ask("subscriptions", "match", "q/7")["items"]] == ["q/+"]
    assert len(ask("subscriptions", "ls", "--client", "odd/id #1", "--durable")["items"]) == 2
    assert main(["clients", "kick", "odd/id #1", "--yes"]) == exit_codes.NOT_FOUND
    assert main(["clients", "show", "nobody"]) == exit_codes.NOT_FOUND
    assert main(["clients", "subscribe", "odd/id #1", "x"]) == exit_codes.CONFLICT


def test_an_earlier_name_of_an_option_works_with_a_warning(
    ask: Callable[..., Any], node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    visit(node, "earlier", "e/#")
    assert main(["clients", "ls", "--id", "earlier", "--json"]) == exit_codes.DONE
    out, err = capsys.readouterr()
    assert [row["clientid"] for row in json.loads(out)["items"]] == ["earlier"]
    assert err == "warning: --id is now --client; --id will be removed in the next release\n"
    assert main(["clients", "ls", "--client", "earlier"]) == exit_codes.DONE
    assert capsys.readouterr().err == ""


def test_a_dry_run_on_what_is_live_says_what_would_happen(
    ask: Callable[..., Any], node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    ask("publish", "$delayed/600/dry/later", "-m", "x")
    ask("publish", "dry/kept", "-m", "x", "-r")
    visit(node, "dry", "d/#")
    [delayed] = [row["id"] for row in ask("delayed", "ls")["items"] if row["topic"] == "dry/later"]
    for words in (
        ("delayed", "rm", delayed),
        ("retained", "rm", "dry/kept"),
        ("sessions", "rm", "dry"),
    ):
        capsys.readouterr()
        assert main([*words, "--dry-run"]) == exit_codes.DONE, capsys.readouterr().err
        assert capsys.readouterr().out.startswith("dry run: It would be deleted.")
    assert main(["clients", "kick", "dry", "--dry-run"]) == exit_codes.DONE, capsys.readouterr().err
    assert capsys.readouterr().out.startswith("dry run: ")
    assert ask("retained", "show", "dry/kept")["payload"]["data"] == "x"
    assert ask("delayed", "show", delayed)["topic"] == "dry/later"
    assert ask("sessions", "show", "dry")["clientid"] == "dry"


def test_a_limit_holds_for_what_waits_in_a_quarantine(ask: Callable[..., Any], node: Node) -> None:
    checks = [{"type": "sql", "sql": "SELECT * WHERE payload.t > 100"}]
    gate = {
        "name": "hot",
        "topics": ["gate/#"],
        "strategy": "all_pass",
        "failure_action": "drop",
        "checks": checks,
    }
    node.call("POST", "/streams", {"name": "kept"})
    node.call("POST", "/validations", {**gate, "quarantine": "kept"})
    for number in range(3):
        assert main(["publish", f"gate/{number}", "-m", '{"t": 1}']) == exit_codes.FAILED
    assert len(ask("quarantine", "show", "kept", "--limit", "2")["items"]) == 2
    node.call("DELETE", "/validations/hot", None)
    assert ask("quarantine", "take-again", "kept", "--limit", "2")["published"] == 2
    assert ask("quarantine", "ls")["items"] == []


def test_addresses_with_failed_logins_are_listed(ask: Callable[..., Any], node: Node) -> None:
    with httpx.Client(transport=httpx.HTTPTransport(local_address="127.0.0.9")) as stranger:
        wrong = stranger.get(f"{node.url}/api/v1/status", headers={"Authorization": "Bearer wrong"})
    assert wrong.status_code == 401
    [row] = ask("access", "failures")["items"]
    assert (row["address"], row["is_limited"]) == ("api 127.0.0.9", False)
    assert row["counted"] <= 1


def test_topics_are_shown_as_a_tree_and_the_busiest_first(
    ask: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    ask("topics", "tree")
    for number in range(3):
        ask("publish", "halls/1/t", "-m", f'{{"t": {number}}}')
    ask("publish", "halls/2/t", "-m", "x" * 100)
    [hall] = ask("topics", "tree", "halls", "--depth", "1", "--limit", "1", "--sort", "-messages")[
        "items"
    ]
    assert (hall["topic"], hall["messages"], hall["bytes"]) == ("halls/1", 3, 24)
    assert hall["message_rate"] is not None
    assert main(["topics", "tree", "halls", "--sort", "name", "--depth", "2"]) == exit_codes.DONE
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        "topic",
        "1",
        "t",
        "2",
        "t",
    ]
    assert main(["topics", "tree", "halls", "--limit", "1"]) == exit_codes.DONE
    assert "and 1 more" in capsys.readouterr().out
    found = ask("topics", "top", "halls/*", "--by", "messages", "-n", "5")["items"]
    assert [row["topic"] for row in found] == ["halls/1/t", "halls/2/t"]


def test_a_tail_shows_what_is_published_and_what_became_of_it(
    node: Node, ask: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    check = {"type": "sql", "sql": "SELECT * WHERE payload.t < 5"}
    validation = {
        "name": "cold",
        "topics": ["tail/#"],
        "strategy": "all_pass",
        "failure_action": "drop",
    }
    node.call("POST", "/validations", {**validation, "checks": [check]})
    with ThreadPoolExecutor(1) as threads:
        following = threads.submit(main, ["tail", "tail/#", "-n", "2", "--for", "60s"])
        eventually(lambda: _tails(node) == 1)
        node.call("POST", "/messages:publish", {"topic": "tail/1", "payload": '{"t": 1}', "qos": 1})
        node.call(
            "POST", "/messages:publish", {"topic": "tail/1", "payload": '{"t": 9}'}, expect=422
        )
        assert following.result(60) == exit_codes.DONE
    passed, dropped = capsys.readouterr().out.splitlines()
    assert passed.endswith(' tail/1 qos 1 from sluice-api: {"t": 1}')
    assert " → dropped: validation 'cold': " in dropped
    assert main(["tail", "a/#/b"]) == exit_codes.FAILED
    assert "/query/filter" in capsys.readouterr().err


def _tails(node: Node) -> int:
    with node.client() as client:
        text = client.get(f"{node.url}/metrics").text
    return int(
        next(line.split()[-1] for line in text.splitlines() if line.startswith("sluice_tails "))
    )


def test_a_rule_is_tried_on_the_latest_message(
    ask: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    ask("publish", "last/1", "-m", '{"t": 21.5}', "-r")
    sql = 'SELECT payload.t AS t FROM "last/#"'
    assert ask("rules", "run", "--sql", sql, "--latest", "last/#")["rows"] == [{"t": 21.5}]
    assert ask("rules", "explain", "--sql", sql, "--latest", "last/#")["outcome"] == "rows"
    [item] = ask("topics", "latest", "last/+")["items"]
    assert (item["source"], item["message"]["payload"]["data"]) == ("retained", '{"t": 21.5}')
    assert main(["topics", "latest", "last/+"]) == exit_codes.DONE
    assert '{"t": 21.5}' in capsys.readouterr().out
