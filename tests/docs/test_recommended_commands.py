"""Every command that an error message, a help text or a page recommends exists, with its options and arguments."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator
from typing import Any, Final

import pytest
import typer

from broker.cli.application import app
from tests.docs.session import ROOT, blocks

PACKAGES: Final = (
    "broker",
    "rules",
    "schema_validation",
    "transforms",
    "bridges",
    "ui",
    "pyspark_sluice",
)
ROOT_COMMAND: Final = typer.main.get_command(app)
TARGETS: Final = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.M))
RECOMMENDED: Final = re.compile(
    r"(?:'|`|\"|^ *|Try: |run |with |: |\()(sluice [a-z][^\n`]*?)(?=(?<=\w)'(?!\w)|[`\"]|$|; |, (?:which|or) |\)|\. )"
    r"|['`](make [a-z][a-z =/.-]*)['`]",
    re.M,
)
"""A command in a text: quoted, at the beginning of a line, or after words that recommend it."""
MAY_RECOMMEND: Final = re.compile(r"sluice |['`]make [a-z]")
OUTPUT: Final = (
    "sluice ready ",
    "sluice version ",
    "sluice lake: ",
    "sluice ingest",
    "sluice evaluation",
)
"""What begins like a command and is none."""


def _literals(tree: ast.AST) -> Iterator[str]:
    """String literals; the values in f-strings are ``X``."""
    inside = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inside |= {id(part) for part in node.values}
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values
            )
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in inside
        ):
            yield node.value


def _in_source() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            code = file.read_text()
            if MAY_RECOMMEND.search(code):
                for text in _literals(ast.parse(code)):
                    yield str(file.relative_to(ROOT)), text


def _in_help(command: Any = ROOT_COMMAND, path: str = "sluice") -> Iterator[tuple[str, str]]:
    context = command.make_context(path, [], resilient_parsing=True, terminal_width=200)
    yield f"{path} --help", command.get_help(context).partition("\n")[2]
    for name, below in getattr(command, "commands", {}).items():
        yield from _in_help(below, f"{path} {name}")


def _in_pages() -> Iterator[tuple[str, str]]:
    for page in sorted(
        [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    ):
        for block in blocks(page):
            page_text = block.text.replace("\\\n", " ")
            if block.info in ("sh", "console", ""):
                yield (
                    str(page.relative_to(ROOT)),
                    "\n".join(re.findall(r"^(?:\$ )?(sluice [^|<>;&$\\]*)", page_text, re.M)),
                )


def _recommended() -> Iterator[Any]:
    seen = set()
    for where, text in (*_in_source(), *_in_help(), *_in_pages()):
        for found in map("".join, RECOMMENDED.findall(text)):
            if not found.startswith(OUTPUT) and (where, found) not in seen:
                seen.add((where, found))
                yield pytest.param(found, id=f"{where}: {found[:60]}")


COMMANDS: Final = list(_recommended())


@pytest.mark.parametrize("text", COMMANDS)
def test_recommended_command_exists(text: str) -> None:
    program, *words = _words(text)
    if program == "make":
        assert words[0] in TARGETS, f"there is no target {words[0]!r}"
        return
    command: Any = ROOT_COMMAND
    while words and hasattr(command, "commands"):
        word = words.pop(0)
        if word.startswith("-"):
            _check_option(ROOT_COMMAND, word)
            continue
        below = command.get_command(typer.Context(command), word)
        assert below is not None, f"{command.name} has no command {word!r}"
        command = below
    _check_arguments(command, words)


def _words(text: str) -> list[str]:
    """The words of a command; where a text ends in the middle of a quotation, those before it."""
    try:
        return shlex.split(text.rstrip("."), comments=True)
    except ValueError:
        return shlex.split(re.split(r"['\"]", text)[0])


def _check_arguments(command: Any, words: list[str]) -> None:
    places = [one.nargs for one in command.params if one.param_type_name == "argument"]
    given = 0
    while words and (word := words.pop(0)) != "--":
        if word.startswith("-") and len(word) > 1:
            if _check_option(command, word) and "=" not in word and words:
                words.pop(0)
        elif word not in ("...", "…"):
            given += 1
    assert -1 in places or given <= sum(places), (
        f"{command.name} takes {sum(places)} arguments, not {given}"
    )


def _check_option(command: Any, word: str) -> bool:
    """Whether the option takes a value."""
    name = word.partition("=")[0]
    options = {flag: one for one in command.params for flag in (*one.opts, *one.secondary_opts)}
    assert name in options or name in ("--help", "-h"), f"{command.name} has no option {name}"
    return name in options and not getattr(options[name], "is_flag", False)


OPTION: Final = re.compile(r"(?<![\w-])--[a-z][a-z-]+")


def test_options_that_the_command_line_names_exist() -> None:
    known = {
        flag
        for command in _every(ROOT_COMMAND)
        for one in command.params
        for flag in (*one.opts, *one.secondary_opts)
    }
    named = {
        (file.name, option)
        for file in sorted((ROOT / "broker" / "cli").glob("*.py"))
        for text in _literals(ast.parse(file.read_text()))
        for option in OPTION.findall(text)
    }
    # the latter belongs to the job that 'sluice lake run' starts
    known |= {
        "--help",
        "--directory",
    }
    assert not {(name, option) for name, option in named if option not in known}


def _every(command: Any) -> Iterator[Any]:
    yield command
    for below in getattr(command, "commands", {}).values():
        yield from _every(below)


def test_extras_that_texts_install_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pages = ((str(page), page.read_text()) for page in (ROOT / "docs").rglob("*.md"))
    named = {
        (where, extra)
        for where, text in (*_in_source(), *_in_help(), *pages)
        for extra in re.findall(r"sluicemq\[([\w-]*)\]", text)
    }
    assert len(named) > 5
    assert not {
        (where, extra)
        for where, extra in named
        if extra not in {*project["optional-dependencies"], "X"}
    }


def test_commands_are_found() -> None:
    found = [str(one.id) for one in COMMANDS]
    assert len(found) > 200
    assert any(one.startswith("broker/cli/lake.py: sluice lake tables ls") for one in found)
