"""Pages, help texts and modules have no word that marks translated text."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs import words


def test_pages_help_texts_and_modules_are_plain_english() -> None:
    assert list(words.everything()) == []


def test_a_finding_in_a_module_names_its_line(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('anew = "one word"\nx = ["a b", "start anew"]\n\n# told of it\ny = """two\nlines for good\n"""\n')
    assert list(words.findings("m.py", words.source_text(module))) == [
        'm.py:2: "start anew", write: restart; create again',
        'm.py:6: "for good", write: permanently',
        'm.py:4: "told of", write: report; show',
    ]


def test_a_finding_names_the_line_the_word_and_what_to_write() -> None:
    page = "Fine.\n\n```\nanew\n```\nSwitch it off for\ngood; `whoever` is a name.\n"
    assert list(words.findings("page.md", words.prose(page))) == ['page.md:6: "for good", write: permanently']


@pytest.mark.parametrize(
    "text",
    [
        "The broker starts anew.", "Whoever subscribes gets it.", "It mends itself.", "Problems are told then.",
        "Most connections at a time.", "20 at a time.", "It stands in the password.", "Messages lie on disk.",
        "It is put in force.", "The target is wanted.", "It takes a text.", "Nobody gets it.",
    ],
)  # fmt: skip
def test_a_translated_sentence_is_found(text: str) -> None:
    assert list(words.findings("page.md", text))


@pytest.mark.parametrize(
    "text",
    [
        "TTL stands for time to live.", "One at a time.", "Recommended values.", "For good reason.", "A text file.",
        "Clients are told that the broker is busy.", "The problem lies in the template.", "Taken against the clock.",
    ],
)  # fmt: skip
def test_an_english_sentence_is_not(text: str) -> None:
    assert not list(words.findings("page.md", text))
