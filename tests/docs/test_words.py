"""Pages, help texts and modules have no word that marks translated text: how ``make check`` finds them."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs import words


def test_a_finding_in_a_module_names_its_line(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        'anew = "one word"\nx = ["a b", "start anew"]\n\n# told of it\ny = """two\nlines for good\n"""\n'
    )
    assert list(words.findings("m.py", words.source_text(module))) == [
        'm.py:2: "start anew", write: restart; create again',
        'm.py:6: "for good", write: permanently',
        'm.py:4: "told of", write: report; show',
    ]


def test_a_finding_names_the_line_the_word_and_what_to_write() -> None:
    page = "Fine.\n\n```\nanew\n```\nSwitch it off for\ngood; `whoever` is a name.\n"
    assert list(words.findings("page.md", words.prose(page))) == [
        'page.md:6: "for good", write: permanently'
    ]


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


PHRASES = [
    "The size of what is sent.", "The end for who has no session.", "Deleted so many of a shard.",
    "Scanned so often.",
    "The claim is no time.", "Objects that people make.", "A ticket for somebody.",
    "Expired segments are looked for.",
    "Keywords that are not looked into.", "Shown beside the settings.", "Rows that were given up.", "It gave up.",
    "The place to go on reading.", "The claim is to be the user name.", "What becomes of a column.",
    "The text, or None where there is none.", "One zone in force.", "Objects that are saved meanwhile.",
    "The commit group at hand.", "It checks them by itself.", "It was not there any more.",
    "They replace those there are.", "Values seen lately.", "A name held against a list.", "Commas and the like.",
    "12 messages, as many as may be.", "It is sent anyhow.", "It is\n    no number.", "# A value in\n# force.",
]  # fmt: skip


@pytest.mark.parametrize("text", PHRASES)
def test_a_phrase_is_found_in_clean_code(tmp_path: Path, text: str) -> None:
    module = tmp_path / "module.py"
    module.write_text(text if text.startswith("#") else f'x = """{text}"""\n')
    assert list(words.code_findings(module, "m.py"))


@pytest.mark.parametrize("phrase", words.PHRASES)
def test_each_phrase_has_an_example_above(phrase: str) -> None:
    pattern = words.compiled({phrase: ""})
    assert any(list(words.findings("m.py", text, pattern)) for text in PHRASES)


@pytest.mark.parametrize(
    "opening",
    [
        "What is sent", "Who sends it", "Whose session it is", "How it is sent", "Whether it is sent",
        "Where it is sent",
        "Which is sent", "Why it is sent", "Of one client", "Those that are sent", "As it is sent", "So many are sent",
        "So often it is sent", "Have it sent", "To whom it is sent",
    ],
)  # fmt: skip
def test_an_opening_is_found_in_a_docstring_and_a_comment(tmp_path: Path, opening: str) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        f'''# {opening}.\nx = 1\ny = 2  # {opening}.\n\ndef z():\n    """{opening}."""\n'''
    )
    assert {finding.split(":")[1] for finding in words.code_findings(module, "m.py")} == {
        "1",
        "3",
        "6",
    }


@pytest.mark.parametrize("name", words.NAMES)
@pytest.mark.parametrize(
    "code",
    ["{} = 1", "for {} in (): ...", "if {} := 1: ...", "[1 for {} in ()]", "with x as {}: ..."],
)
def test_a_variable_without_a_meaning_is_found(tmp_path: Path, name: str, code: str) -> None:
    module = tmp_path / "module.py"
    module.write_text(code.format(name))
    assert len(list(words.code_findings(module, "m.py"))) == 1


def test_plain_code_has_no_findings(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        '"""There is no limit; it is no longer sent, so many clients that it is known for wait.\n\n    What it is."""\n'
        "# The first line,\n# of which the second is a part. It depends on what is sent.\n"
        "session, outfound = 1, one(held)\n"
    )
    assert list(words.code_findings(module, "m.py")) == []


def test_modules_on_the_list_are_checked_and_others_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for package in ("clean", "other"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "module.py").write_text("found = 1\n")
    monkeypatch.setattr(
        words, "modules", lambda places: [tmp_path / place / "module.py" for place in places]
    )
    monkeypatch.setattr(words, "ROOT", tmp_path)
    monkeypatch.setattr(words, "cli", lambda: "")
    monkeypatch.setattr(words, "PACKAGES", ())
    for name in ("README.md", "CONTRIBUTING.md"):
        (tmp_path / name).write_text("")
    monkeypatch.setattr(words, "CLEAN", ())
    assert list(words.everything()) == []
    monkeypatch.setattr(words, "CLEAN", ("clean",))
    assert list(words.everything()) == [
        'clean/module.py:1: variable "found", write: a name for its value'
    ]


def test_the_share_of_openings_is_counted() -> None:
    lines = list(words.share())
    assert any(line.startswith("broker/core: ") for line in lines)
    assert any(line.startswith("all: ") and line.endswith("%)") for line in lines)
