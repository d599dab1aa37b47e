"""Every command that a page of the dashboard offers, run in a shell on a broker with the objects that it names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.docs.session import ROOT
from tests.support.node import TOKEN, Node, running

SOURCES: Final = ROOT / "ui" / "web" / "src"
VALUE: Final = "\0"
"""Replaces ``${...}`` in a template of a command."""
TYPED: Final = '{"name": "typed", "sql": "SELECT * FROM \\"t/#\\""}'
"""The object that a user gives a command that reads one."""
COMMANDS: Final = {
    "sluice publish meters/1 '{\"temp\": 21.5}'": "",
    "sluice publish 'site a/1' '{\"temp\": 21.5}'": "",
    "sluice rules ls": "",
    "sluice topics tree meters": "",
    "sluice lake tables ls": "",
    "sluice rules show warm": "",
    "sluice lake tables show readings": "",
    'printf \'%s\' \'{"name":"raw","topics":["meters/#"]}\' | sluice streams apply -f -': "",
    'printf \'%s\' \'{"name":"it\'\\\'\'s","topics":["meters/#"]}\' | sluice streams apply -f -': "name",
    'printf \'%s\' \'{"name": "raw", "topics": ["meters/#"]}\' | sluice streams apply -f -': "",
    'printf \'%s\' \'{"name": "readings", "topics": ["meters/#"]}\' | sluice streams apply -f -': "",
    "sluice rules apply -f -": "",
    "sluice config reload": "",
    'echo \'{"topic":"meters/1","payload":"{}"}\' | sluice rules explain --sql \'SELECT * FROM "meters/#"\' --event -': "",  # noqa: E501
    'echo \'{"topic":"meters/1","payload":"{}"}\' | sluice rules run --language jq --sql \'.payload\' --event -': "",
    "sluice streams records raw --shard 0 --from 0 --limit 10": "",
    "sluice streams records raw --shard 0 --from 0 --limit 10 --filter 'meters/#' --decode": "",
    "sluice streams records raw --shard 0 --from 0 --limit 10 --filter 'meters/#' --decode --json | jq -c '.items[]'": "",  # noqa: E501
    "sluice streams records raw --shard 0 --from 0 --limit 1": "",
    "sluice streams replay raw --to stream:other --rate 100/s": "",
    "sluice jobs watch 0": "job",
    "sluice metrics history messages_received connections --label qos=1 --last 15m": "",
    "sluice quarantine take-again raw --record 0/0": "quarantine",
    "sluice connectors test web": "connect",
    "sluice actions test web": "connect",
    "sluice actions drain web --timeout 1": "",
    "sluice actions dead-letters ls web": "",
    "sluice actions dead-letters ls web --limit 1000 -o json > dead-letters.json": "",
    "sluice actions dead-letters redrive web --offset 0 --offset 1": "",
    "sluice actions dead-letters redrive web --limit 10": "",
    "sluice lake tables shadow readings": "no shadow",
    "sluice lake tables diff readings": "shadow",
    "sluice lake tables retype readings temp double": "/column",
    "sluice lake tables preview readings --limit 10": "",
    "sluice lake tables preview readings --limit 10 --dead-letters": "",
    "sluice replay readings --from 0 --to 1 --rate 10": "/to",
    "sluice replay readings --record 0/0": "/records",
    "sluice lake tables compact readings": "a running lake job",
    "sluice lake tables expire readings --older-than 1d": "a running lake job",
    "sluice audit readings --values": "a running lake job",
}
"""Commands as pages show them, with a part of the reason where this broker has to refuse one."""


def _templates() -> Iterator[str]:
    """The texts of the sources that are commands, each value in them replaced by ``VALUE``."""
    files = [file for file in SOURCES.rglob("*.ts*") if not file.name.endswith(".d.ts")]
    for file in sorted(files):
        text = re.sub(r"^\s*(?://|/\*\*).*$", "", file.read_text(), flags=re.M)
        for begin in re.finditer(
            r"(?<=[`\"'>])(?:(?:echo|printf) [^\n]*?\| )?sluice (?=[a-z$])", text
        ):
            end = {"`": "`", ">": "<"}.get(text[begin.start() - 1], text[begin.start() - 1])
            yield _until(text, begin.start(), end)


def _until(text: str, at: int, end: str) -> str:
    """A text of a source from a place up to its end."""
    parts: list[str] = []
    while text[at] != end:
        if text[at] == "{" or text.startswith("${", at):
            at = _behind_value(text, at)
            parts.append(VALUE)
        else:
            parts.append(text[at])
            at += 1
    return "".join(parts)


def _behind_value(text: str, at: int) -> int:
    at = text.index("{", at) + 1
    depth = 1
    while depth:
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    return at


def _pattern(template: str) -> str:
    return re.escape(template).replace(re.escape(VALUE), ".*")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A broker with an object of each kind that the commands name, and no lake job."""
    directory = tmp_path_factory.mktemp("commands") / "data"
    with running(directory, environ={"SLUICE_LAKE__RUN_SPARK": "false"}) as node:
        node.call("POST", "/streams", {"name": "raw", "topics": ["meters/#"]})
        node.call("POST", "/streams", {"name": "readings", "topics": ["meters/#"]})
        node.call("POST", "/streams", {"name": "rows"})
        node.call("POST", "/streams", {"name": "other", "topics": ["none/#"]})
        node.call("POST", "/rules", {
            "name": "warm", "sql": 'SELECT payload.temp AS temp FROM "meters/#"',
            "actions": [{"type": "stream", "stream": "rows"}],
        })  # fmt: skip
        node.call("POST", "/messages:publish", {"topic": "meters/1", "payload": "{}", "qos": 1})
        node.call("POST", "/lake/tables", {"name": "readings", "stream": "readings"})
        node.call(
            "POST", "/connectors", {"name": "web", "type": "http", "url": "http://127.0.0.1:9/"}
        )
        node.call(
            "POST",
            "/actions",
            {"name": "web", "type": "http", "connector": "web", "parameters": {}},
        )
        yield node


def test_every_command_of_the_pages_is_run() -> None:
    templates = set(_templates())
    assert len(templates) > 25
    assert not [
        text
        for text in templates
        if not any(re.fullmatch(_pattern(text), command) for command in COMMANDS)
    ]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_a_page_runs_in_a_shell(command: str, node: Node, tmp_path: Path) -> None:
    refusal = COMMANDS[command]
    sluice = f'sluice() {{ {sys.executable} -m broker.cli.main "$@"; }}\nset -o pipefail\n{command}'
    environ = os.environ | {
        "SLUICE_API_TOKEN": TOKEN,
        "SLUICE_URL": node.url,
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        ["bash", "-c", sluice],
        cwd=tmp_path,
        env=environ,
        input=TYPED,
        capture_output=True,
        text=True,
        timeout=120,
    )
    output = done.stdout + done.stderr
    assert done.returncode not in (2, 127), output
    assert done.returncode == 0 or refusal, output
    assert refusal in output, output
