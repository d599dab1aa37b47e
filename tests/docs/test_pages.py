"""Every page does what it says.

Its commands run in order on a fresh broker and print what ``pages.toml`` says and what the page itself shows, its
configurations can be used, and its examples give what is shown below them.
"""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from broker.core import jsontext
from broker.core.errors import Invalid
from broker.core.objects import MemorySection
from rules.functions.library import standard
from rules.trials.tester import test as try_rule
from schema_validation.feature import SchemaValidationFeature
from tests.docs.session import ROOT, Block, blocks, commands, run
from tests.support.features import make_services
from tests.support.kafka_server import Kafka
from tests.support.peers import mosquitto
from tests.support.postgres_server import Postgres
from tests.support.s3_server import S3Server
from ui.api.json_bodies import plain

FIRST: Final = "docs/tutorial.md#1. Install and start"
PAGES: Final = [
    "README.md",
    *(str(page.relative_to(ROOT)) for page in sorted((ROOT / "docs").rglob("*.md"))),
]
DECLARED: Final[Mapping[str, Any]] = tomllib.loads(
    (Path(__file__).parent / "pages.toml").read_text()
)
BLOCKS: Final = {
    page: blocks(ROOT / page) for page in PAGES if not page.startswith("docs/reference/")
}


@contextmanager
def _kafka(directory: Path) -> Iterator[int]:
    with Kafka(directory / "kafka") as kafka:
        yield kafka.brokers[0].port


@contextmanager
def _mosquitto(directory: Path) -> Iterator[int]:
    with mosquitto(directory / "mosquitto") as peer:
        yield peer.port


@contextmanager
def _postgresql(_directory: Path) -> Iterator[int]:
    with Postgres() as server:
        yield server.port


@contextmanager
def _s3(directory: Path) -> Iterator[int]:
    (directory / "s3").mkdir()
    with S3Server(directory / "s3") as server:
        server.make_bucket("lake")
        yield server.port


SERVERS: Final[Mapping[str, Callable[[Path], AbstractContextManager[int]]]] = {
    "kafka": _kafka,
    "mosquitto": _mosquitto,
    "postgresql": _postgresql,
    "s3": _s3,
}


def runs(*, spark: bool) -> Iterator[Any]:
    """The pages with commands that start Spark, or the others; but for those that another page comes after."""
    before = {page for declared in DECLARED.values() for page in declared.get("after", ())}
    for page, found in BLOCKS.items():
        if page in before or not any(block.info.startswith("sh") for block in found):
            continue
        declared = DECLARED.get(page, {})
        if declared.get("spark", False) == spark:
            yield pytest.param(
                page, id=page, marks=[pytest.mark.heavy] if declared.get("heavy") else []
            )


@pytest.mark.parametrize("page", list(runs(spark=False)))
def test_commands_of_a_page_do_what_it_says(page: str, tmp_path: Path) -> None:
    check_commands(page, tmp_path)


def check_commands(page: str, tmp_path: Path) -> None:
    """Run the commands of a page, and those before it, on a fresh broker."""
    declared = DECLARED.get(page, {})
    own = [
        block
        for heading in declared.get("headings", [None])
        for block in commands(ROOT / page, heading)
    ]
    starts_a_broker = any("sluice serve" in block.text for block in own)
    before = declared.get("after", [] if starts_a_broker else [FIRST])
    chosen = [block for name in before for block in _commands(name)] + own
    with ExitStack() as servers:
        ports = {
            port: servers.enter_context(SERVERS[name](tmp_path))
            for port, name in declared.get("servers", {}).items()
        }
        (tmp_path / "reader").mkdir()
        output = " ".join("\n".join(run(chosen, tmp_path / "reader", ports)).split())
    _check_order(output, declared.get("shows", []))
    assert not [text for text in declared.get("never", ()) if text in output], output
    shown = {
        " ".join(line.split())
        for block in BLOCKS[page]
        if block.info == "text"
        for line in block.text.splitlines()
    }
    assert not [line for line in (*shown, *declared.get("also", ())) if line not in output], output


def _commands(name: str) -> list[Block]:
    page, _, heading = name.partition("#")
    return commands(ROOT / page, heading or None)


def _check_order(output: str, expected: Sequence[str]) -> None:
    position = 0
    for text in expected:
        found = output.find(text, position)
        assert found >= 0, (
            f"{text!r} is not printed after position {position}:\n{output[position:][:6000]}"
        )
        position = found + len(text)


@pytest.mark.parametrize(
    "page", [page for page, found in BLOCKS.items() if any(b.info == "hocon" for b in found)]
)
def test_configurations_of_a_page_can_be_used(page: str, tmp_path: Path) -> None:
    for number, block in enumerate(block for block in BLOCKS[page] if block.info == "hocon"):
        directory = tmp_path / str(number)
        directory.mkdir()
        (directory / "page.conf").write_text(re.sub(r'"/etc/ssl/[^"]*"', '""', block.text))
        certificates = [
            found for found in BLOCKS[page] if "openssl" in found.text and "certs/" in block.text
        ][:1]
        secrets = "".join(
            f"export {name}=secret\n" for name in re.findall(r"\$\{\??([A-Z_]+)\}", block.text)
        )
        check = Block("sh", f"{secrets}sluice config check page.conf", "")
        assert "OK" in run([*certificates, check], directory)[-1]


READ: Final[Mapping[str, Callable[[str], Any]]] = {
    "json": json.loads,
    "python": ast.parse,
    "toml": tomllib.loads,
}


@pytest.mark.parametrize("page", BLOCKS)
def test_other_blocks_of_a_page_can_be_read(page: str) -> None:
    for block in BLOCKS[page]:
        READ.get(block.info.partition(" ")[0], str)(block.text)


SHORTHAND: Final = (
    'api() { curl -sS --fail-with-body -H "Authorization: Bearer ${SLUICE_API_TOKEN:-$(cat data/api.token)}" '
    '"http://127.0.0.1:18083/api/v1/$1" "${@:2}"; echo; }'
)
"""The only form in which pages call the API: it works after any other page, with and without the tutorial's token."""


@pytest.mark.parametrize("page", [page for page in PAGES if not page.startswith("docs/reference/")])
def test_pages_call_the_api_by_one_shorthand(page: str) -> None:
    joined = (ROOT / page).read_text().replace("\\\n", " ")
    calls = [
        line
        for line in joined.splitlines()
        if re.search(r"\bcurl\b.*/api/v1|^\s*\w+\(\) \{ .*\bcurl\b|\$\(cat \S*api\.token", line)
    ]
    assert set(calls) <= {SHORTHAND}


def _examples() -> Iterator[Any]:
    """Rules with the rows that the first block of their page gives, and calls on schemas with their answers."""
    for page, found in BLOCKS.items():
        for block, answer in pairwise(found):
            kind, _, verb = block.info.partition(" ")
            if kind in ("sql", "jq"):
                yield pytest.param(
                    kind, found[0].text, block.text, answer, id=f"{page} {block.heading}"
                )
            elif kind == "json" and verb:
                yield pytest.param(
                    verb, "", block.text, answer, id=f"{page} {block.heading} {verb}"
                )


@pytest.mark.parametrize(("verb", "event", "text", "answer"), list(_examples()))
def test_example_gives_what_is_shown_below_it(
    verb: str, event: str, text: str, answer: Block
) -> None:
    if verb in ("sql", "jq"):
        body = {"language": verb, verb: text, "event": json.loads(event)}
        found = try_rule(body, standard(), "node", lambda: 0)
        if answer.text == "error\n":
            assert found["outcome"] == "error"
        else:
            assert found.get("rows") == json.loads(answer.text), found
        return
    sections: dict[str, MemorySection] = {}
    feature = SchemaValidationFeature(make_services(sections))
    feature.start()
    call = getattr(feature.schemas, verb)
    if answer.info == "json":
        assert plain(call(jsontext.decode(text))) == json.loads(answer.text)
        return
    with pytest.raises(Invalid) as caught:
        call(jsontext.decode(text))
    assert answer.text.strip() in str([problem.message for problem in caught.value.problems])


def test_there_are_pages_and_examples() -> None:
    assert len([*runs(spark=False), *runs(spark=True)]) > 25
    assert {example.values[0] for example in _examples()} >= {
        "sql",
        "jq",
        "decode",
        "encode",
        "validate",
    }
    assert DECLARED.keys() <= set(PAGES)
