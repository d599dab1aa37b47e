"""Words that mark translated text, with what to write instead.

``make check`` runs this: it prints each place in the pages, in the help texts of the command line, and in the strings,
docstrings and comments of the product that has such a word. Code blocks and the pages in ``UNCHECKED`` are skipped.
"""

from __future__ import annotations

import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from docs.reference_pages.cli import cli

ROOT: Final = Path(__file__).parent.parent
UNCHECKED: Final = ("docs/reference/",)
PACKAGES: Final = ("broker", "rules", "schema_validation", "transforms", "bridges", "ui", "pyspark_sluice")
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
_PATTERNS: Final = [
    (re.compile(r"\b(?:" + words.replace(" ", r"\s+") + r")\b", re.IGNORECASE), instead)
    for words, instead in INSTEAD.items()
]
_CODE: Final = re.compile(r"^```.*?^```|`[^`]*`|\]\([^)]*\)", re.MULTILINE | re.DOTALL)


def findings(name: str, text: str) -> Iterator[str]:
    """Each place of ``text``, as ``NAME:LINE: "WORD", write: INSTEAD``."""
    for pattern, instead in _PATTERNS:
        for found in pattern.finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            yield f'{name}:{line}: "{" ".join(found[0].split())}", write: {instead}'


def prose(page: str) -> str:
    """The text of a page without code and addresses, line by line where it was."""
    return _CODE.sub(lambda found: "\n" * found[0].count("\n"), page)


def source_text(module: Path) -> str:
    """The strings and comments of a module with a space in them, line by line where they were."""
    lines: list[str] = []
    with module.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type in (tokenize.STRING, tokenize.COMMENT) and " " in token.string:
                lines += [""] * (token.start[0] - len(lines))
                first, *others = token.string.split("\n")
                lines[-1] += f" {first}"
                lines += others
    return _CODE.sub(lambda found: "\n" * found[0].count("\n"), "\n".join(lines))


def everything() -> Iterator[str]:
    """The findings in all pages, help texts and modules."""
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        name = str(page.relative_to(ROOT))
        if not name.startswith(UNCHECKED):
            yield from findings(name, prose(page.read_text()))
    yield from findings("help", cli())
    for module in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        yield from findings(str(module.relative_to(ROOT)), source_text(module))


if __name__ == "__main__":
    found = list(everything())
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(bool(found))
