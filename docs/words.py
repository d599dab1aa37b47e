"""Words that mark translated text, with what to write instead.

``make check`` runs this: it prints each place in the pages, in the help texts of the command line, and in the strings,
docstrings and comments of the product that has such a word. Code blocks and the pages in ``UNCHECKED`` are skipped.

``PHRASES``, ``OPENINGS`` and ``NAMES`` are checked in the packages of ``CLEAN`` only. A package joins that list when it
has none of them: ``python -m docs.words broker/auth`` prints what a package (or a module) still has. ``--share`` prints
the share of docstrings with such an opening, by package.
"""

from __future__ import annotations

import ast
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from docs.reference_pages.cli import cli

ROOT: Final = Path(__file__).parent.parent
UNCHECKED: Final = ("docs/reference/",)
PACKAGES: Final = (
    "broker",
    "rules",
    "schema_validation",
    "transforms",
    "bridges",
    "ui",
    "pyspark_sluice",
)
INSTEAD: Final = {
    r"(?:(?:begin|start)s? )?anew": "restart; create again",
    r"for good(?! reason)": "permanently",
    r"whoever": "anyone who; a client that",
    r"nobody": "no client; no user",
    r"mend(?:s|ed|ing)?": "fix",
    r"told (?:of|then|about|in words|as|with|here)": "report; show",
    r"(?:is|are|was|were) wanted|wanted (?:is|are)": "is expected; the target is",
    r"[\d,]+ at a time|most \w+ at a time": "concurrent; in flight",
    r"stands? (?:on|in(?!\s+for)|at|there|under|behind|beside|below|with|still)": "is; is stored; runs beside; is idle",
    r"(?:lies?|lay) (?:on|at|there|under|behind|beside|below)": "is; is stored",
    r"tak(?:es?|en|ing) (?:them )?again(?!st)": "reprocess",
    r"(?:can|cannot|could|to) be had": "is possible; is available",
    r"put(?:s|ting)? (?:\w+ )?in force": "apply; roll out",
    r"work(?:s|ed) off": "process",
    r"(?:is|are|was|were) put off": "is deferred",
    r"over there": "on the other broker",
    r"beside (?:that|these|this)": "in addition",
    r"over (?:restarts?|crash(?:es)?|kills)": "across",
    r"and (?:its|their) (?:kin|like)": "and similar",
    r"an own": "a separate",
    r"a text(?! (?:file|editor|format|field|frame|area|message))": "a string",
    r"foretells?": "predict",
}
"""What to write instead, by pattern. A space in a pattern is any white space."""
CLEAN: Final[tuple[str, ...]] = (
    "bridges/file",
    "bridges/http",
    "bridges/http_server",
    "bridges/kafka",
    "bridges/mqtt",
    "bridges/postgresql",
    "bridges/resource",
    "bridges/spark/columns",
    "bridges/spark/driver",
    "bridges/spark/job.py",
    "bridges/spark/kafka_frame.py",
    "bridges/spark/rule_frame.py",
    "bridges/spark/tasks",
    "bridges/spark/broker_side",
    "bridges/spark/tables",
    "broker/admin",
    "broker/app",
    "broker/auth",
    "broker/cli",
    "broker/codec",
    "broker/config",
    "broker/connection",
    "broker/core",
    "broker/net",
    "broker/observe",
    "broker/pipeline",
    "broker/routing",
    "broker/session",
    "broker/storage",
    "broker/streams",
    "pyspark_sluice",
    "rules",
    "schema_validation",
    "transforms",
    "ui",
)
"""Packages and modules, as paths, that have none of the patterns below."""
PHRASES: Final = {
    r"(?:of|for|to|by|from|with|in|at|after|before|than) (?:what|who)(?! (?:extent|kind|way|form|order)s?\b)": "a noun",
    r"so (?:many|much|often)(?!(?: \w+)? (?:that|as)\b)": "a maximum, a number or an interval",
    r"(?<!there )(?:is|are|was|were) no(?! (?:longer|more|less|fewer|better|worse|later|other|limit)\b)": "is not a",
    r"people|somebody|anybody|everybody": "users; a client",
    r"looked (?:at|for|into|through)": "check; search",
    r"beside": "in addition to; next to",
    r"(?:gave|given) up(?! to\b)": "discarded; abandoned",
    r"go(?:es)? on|went on": "continue; resume",
    r"(?:is|are|was|were) to be": "must be; is used as",
    r"bec(?:o|a)mes? of": "how … change",
    r"where there (?:is|are|was|were) none": "or None",
    r"in force": "active",
    r"meanwhile": "while it runs; inside the block",
    r"at hand": "current",
    r"by (?:itself|themselves)": "alone; without the broker",
    r"(?:not|no|never|nothing|none|cannot|\w+n't)(?: [\w']+){0,6} any ?more": "no longer",
    r"those there (?:are|were)|those that there (?:are|were)": "existing",
    r"lately": "recently",
    r"held against": "compared with",
    r"and the like": "and similar",
    r"as many as may be": "the limit is reached",
    r"anyhow": "in any case",
}
"""What to write instead of a phrase, in strings, docstrings and comments."""
OPENINGS: Final = {
    "What|Whatever": "name the thing: 'Settings of …'",
    "Who|Whom|Whose": "name it: 'Client that …'",
    "How": "'Number of …', 'Interval of …', 'Format of …'",
    "Whether": "'True if …', 'Return whether …'",
    "Where|Wherever": "'Position of …', 'Folder of …'",
    "Which": "'Names of …'",
    "Why": "'Reason for …', 'Return the reason …'",
    "Of": "name the thing before what it belongs to",
    "Those": "name the things",
    "As": "'Same as …'",
    "So (?:many|much|often)": "'Maximum …', 'Interval …'",
    "Have": "a verb: 'Replace …', 'Call …'",
    "(?:To|For|By|From|With|In|At|On|After|Until) (?:what|who|whom|whose|which)": "name the thing",
}
"""What to write instead of the first words of a docstring or of a comment."""
NAMES: Final = ("found", "one", "made", "given", "known", "what", "why", "held")
"""Variables that say nothing about their value; fields of a class are not checked."""
NAMES_OF_PARAMETERS: Final = NAMES[:4]
"""Parameters that say nothing about their value."""


def compiled(
    words: Mapping[str, str], flags: re.RegexFlag = re.IGNORECASE
) -> list[tuple[re.Pattern[str], str]]:
    """Patterns of whole words, in which a space is any white space."""
    return [
        (
            re.compile(
                r"\b(?:" + re.sub(r" (?!\))", r"\\s+", pattern).replace(" )", r"\s)") + r")\b",
                flags,
            ),
            instead,
        )
        for pattern, instead in words.items()
    ]


_PATTERNS: Final = compiled(INSTEAD)
_PHRASES: Final = compiled(PHRASES)
_OPENINGS: Final = compiled(OPENINGS, re.NOFLAG)
_CODE: Final = re.compile(r"^```.*?^```|``[^`]+``|`[^`]*`|\]\([^)]*\)", re.MULTILINE | re.DOTALL)


def findings(
    name: str, text: str, patterns: Iterable[tuple[re.Pattern[str], str]] = _PATTERNS
) -> Iterator[str]:
    """Each place of ``text``, as ``NAME:LINE: "WORD", write: INSTEAD``."""
    for pattern, instead in patterns:
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            yield f'{name}:{line}: "{" ".join(match[0].split())}", write: {instead}'


def prose(page: str) -> str:
    """The text of a page without code and addresses, line by line where it was."""
    return _CODE.sub(lambda found: "\n" * found[0].count("\n"), page)


def source_text(module: Path) -> str:
    """The strings and comments of a module with a space in them, without indentation, line by line where they were."""
    lines: list[str] = []
    with module.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type in (tokenize.STRING, tokenize.COMMENT) and " " in token.string:
                lines += [""] * (token.start[0] - len(lines))
                first, *others = (line.lstrip("# ") for line in token.string.split("\n"))
                lines[-1] += f" {first}" if lines[-1] else first
                lines += others
    return _CODE.sub(lambda found: "\n" * found[0].count("\n"), "\n".join(lines))


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of each string that stands alone: docstrings, and strings under a constant or a field."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.lineno, node.value.value.lstrip()


def comments(module: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each comment; lines of comment below each other, with nothing before them, are one."""
    above = (0, -1)
    with module.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                line, column = token.start
                if above != (line - 1, column):
                    yield line, token.string.lstrip("#: ")
                above = (line, column) if not token.line[:column].strip() else (0, -1)


def has_opening(text: str) -> bool:
    """True if a docstring or comment begins with one of ``OPENINGS``."""
    return any(pattern.match(text) for pattern, _ in _OPENINGS)


def code_findings(module: Path, name: str) -> Iterator[str]:
    """The phrases, openings and names in a module, in the form of ``findings``."""
    yield from findings(name, source_text(module), _PHRASES)
    tree = ast.parse(module.read_bytes())
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    fields = {
        id(line.target) for node in classes for line in node.body if isinstance(line, ast.AnnAssign)
    }
    for line, text in [*docstrings(tree), *comments(module)]:
        for pattern, instead in _OPENINGS:
            if match := pattern.match(text):
                yield f'{name}:{line}: "{match[0]} …" opens a docstring or comment, write: {instead}'
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Name)
            and isinstance(node.ctx, ast.Store)
            and node.id in NAMES
            and id(node) not in fields
        ):
            yield f'{name}:{node.lineno}: variable "{node.id}", write: a name for its value'
        if isinstance(node, ast.arg) and node.arg in NAMES_OF_PARAMETERS:
            yield f'{name}:{node.lineno}: parameter "{node.arg}", write: a name for its value'


def modules(places: Iterable[str]) -> list[Path]:
    """The modules in packages (or modules) that are given as paths from the project's folder."""
    paths = [ROOT / place for place in places]
    return sorted(
        module for path in paths for module in ([path] if path.is_file() else path.rglob("*.py"))
    )


def share() -> Iterator[str]:
    """One line for each package, and one for all: docstrings, and how many of them have one of the openings."""
    counts: dict[str, list[int]] = {}
    for module in modules(PACKAGES):
        texts = [text for _, text in docstrings(ast.parse(module.read_bytes()))]
        for package in ("/".join(module.relative_to(ROOT).parts[:-1][:2]), "all"):
            docstring_count, opening_count = counts.get(package, (0, 0))
            counts[package] = [
                docstring_count + len(texts),
                opening_count + sum(map(has_opening, texts)),
            ]
    for package, (docstring_count, opening_count) in counts.items():
        yield f"{package}: {opening_count} of {docstring_count} ({opening_count / max(docstring_count, 1):.1%})"


def everything() -> Iterator[str]:
    """The findings in all pages, help texts and modules."""
    for page in [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    ]:
        name = str(page.relative_to(ROOT))
        if not name.startswith(UNCHECKED):
            yield from findings(name, prose(page.read_text()))
    yield from findings("help", cli())
    for module in modules(PACKAGES):
        yield from findings(str(module.relative_to(ROOT)), source_text(module))
    for module in modules(CLEAN):
        yield from code_findings(module, str(module.relative_to(ROOT)))


def main(arguments: list[str]) -> int:
    """Print the findings everywhere, or those of the packages that are named. Return 1 if there are any."""
    if arguments == ["--share"]:
        print(*share(), sep="\n")
        return 0
    places = [
        *(
            place
            for module in modules(arguments)
            for place in code_findings(module, str(module.relative_to(ROOT)))
        ),
        *(() if arguments else everything()),
    ]
    print(*places, sep="\n", end="\n" if places else "")
    return bool(places)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
