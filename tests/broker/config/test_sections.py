"""Objects in configuration: both written forms, what is fixed, atomic saving."""

from __future__ import annotations

import os
import resource
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from broker.config.hocon import parse_file
from broker.config.model import Settings
from broker.config.root import load_config
from broker.config.sections import Sections
from broker.core.errors import ConfigError, Invalid, NotFound, Problem, ReadOnly, Unavailable
from broker.core.objects import ObjectSection, Spec, unusable


class Other(Settings):
    """A section that is not of objects."""

    kept: str = ""


def section(data_dir: Path | None, path: str = "rule_engine.rules") -> ObjectSection:
    return sections(data_dir).section(path)


def sections(data_dir: Path | None) -> Sections:
    return Sections(load_config({}, data_dir=data_dir, environ={}))


def save(at: ObjectSection, *specs: Spec) -> None:
    at.save({spec["name"]: spec for spec in specs})


def names(of: ObjectSection) -> list[str]:
    return [spec["name"] for spec in of.load()]


def test_both_written_forms_keep_their_order(tmp_path: Path) -> None:
    (tmp_path / "sluice.conf").write_text(
        "rule_engine.rules = [ { name = b, sql = x }, { name = a } ]\nstreams { z { topics = [t] }, y {} }"
    )
    assert section(tmp_path).load() == [{"name": "b", "sql": "x"}, {"name": "a"}]
    assert section(tmp_path, "streams").load() == [{"name": "z", "topics": ["t"]}, {"name": "y"}]


def test_objects_of_files_are_fixed_and_not_written(tmp_path: Path) -> None:
    (tmp_path / "base.hocon").write_text("rule_engine.rules { base {} }")
    (tmp_path / "sluice.conf").write_text("rule_engine.rules { main {} }")
    rules = section(tmp_path)
    save(rules, *rules.load(), {"name": "made", "sql": "SELECT 1"})
    assert names(rules) == names(section(tmp_path)) == ["base", "main", "made"]
    assert rules.fixed_by("base") is None
    assert rules.defined_by("base") == str(tmp_path / "base.hocon")
    assert rules.fixed_by("main") == str(tmp_path / "sluice.conf")
    assert rules.fixed_by("made") is None
    assert (tmp_path / "api.hocon").read_text().splitlines()[1:] == [
        'rule_engine.rules.made = {"name": "made", "sql": "SELECT 1"}'
    ]


def test_what_the_api_made_lies_over_base_and_under_the_main_file(tmp_path: Path) -> None:
    save(section(tmp_path), {"name": "r", "sql": "api"}, {"name": "s", "sql": "api"})
    (tmp_path / "base.hocon").write_text("rule_engine.rules { r { sql = base } }")
    (tmp_path / "sluice.conf").write_text("rule_engine.rules { s { sql = main } }")
    rules = section(tmp_path)
    assert {spec["name"]: spec["sql"] for spec in rules.load()} == {"r": "api", "s": "main"}
    assert rules.fixed_by("r") is None
    save(rules, *rules.load())
    (tmp_path / "sluice.conf").unlink()
    assert {spec["name"]: spec["sql"] for spec in section(tmp_path).load()} == {
        "r": "api",
        "s": "api",
    }


def test_an_object_of_base_is_replaced_reset_and_not_deleted(tmp_path: Path) -> None:
    (tmp_path / "base.hocon").write_text("rule_engine.rules { a { sql = base }, b {} }")
    rules = section(tmp_path)
    with pytest.raises(ReadOnly, match=r"is defined by .*base\.hocon"):
        rules.base("a")
    save(rules, {"name": "a", "sql": "api"}, {"name": "c"})
    again = section(tmp_path)
    assert again.load() == [{"name": "a", "sql": "api"}, {"name": "b"}, {"name": "c"}]
    with pytest.raises(ReadOnly, match=r"is defined by .*base\.hocon"):
        again.save({"a": None})
    version = again.version("a")
    assert again.base("a") == {"name": "a", "sql": "base"}
    again.forget("a")
    assert again.saved("a") == {"name": "a", "sql": "base"}
    assert again.version("a") != version
    assert section(tmp_path).load() == [{"name": "a", "sql": "base"}, {"name": "b"}, {"name": "c"}]


def test_saving_one_kind_loses_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "api.hocon").write_text(
        "# by hand\nrule_engine { rules = [{name = kept}] }\nother.kept = caf\u00e9"
    )
    config = load_config({"other": Other}, data_dir=tmp_path, environ={})
    both = Sections(config)
    save(both.section("streams"), {"name": "s"})
    save(both.section("rule_engine.rules"), {"name": "new"})
    read = parse_file(tmp_path / "api.hocon", {}).values  # as any reader of HOCON would
    assert read == {
        "rule_engine": {"rules": {"kept": {"name": "kept"}, "new": {"name": "new"}}},
        "other": {"kept": "café"},
        "streams": {"s": {"name": "s"}},
    }
    assert read == load_config({"other": Other}, data_dir=tmp_path, environ={}).api_layer.values


def test_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    (tmp_path / "api.hocon.new").write_text("left by a crash")
    save(section(tmp_path), {"name": "r"})
    assert stat.S_IMODE((tmp_path / "api.hocon").stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["api.hocon"]


def test_what_is_given_out_is_not_shared(tmp_path: Path) -> None:
    rules = section(tmp_path)
    save(rules, {"name": "r", "actions": [1]})
    rules.load()[0]["actions"].append(2)
    assert rules.load() == [{"name": "r", "actions": [1]}]


def test_what_is_found_in_objects_is_looked_for_once_in_each_version(tmp_path: Path) -> None:
    """A look at all of many objects takes seconds."""
    (tmp_path / "base.hocon").write_text("rule_engine.rules { base { sql = wanted } }")
    looked: list[str] = []

    def look(spec: Spec) -> str | None:
        looked.append(spec["name"])
        return spec["sql"] if "wanted" in spec["sql"] else None

    all_sections = sections(tmp_path)
    rules = all_sections.section("rule_engine.rules")

    def found() -> dict[str, str]:
        return {name: text for _, name, text in all_sections.found(look)}

    save(rules, {"name": "made", "sql": "other"})
    assert found() == found() == {"base": "wanted"}
    assert sorted(looked) == ["base", "made"]
    save(rules, {"name": "made", "sql": "wanted too"}, {"name": "base", "sql": "no more"})
    assert found() == {"made": "wanted too"}
    rules.save({"made": None})
    assert found() == {}
    all_sections.reload(load_config({}, data_dir=tmp_path, environ={}))
    assert found() == {}
    assert sorted(looked) == ["base", "base", "made", "made"]


def test_a_file_that_cannot_be_written_is_one_sentence_and_no_change(tmp_path: Path) -> None:
    rules = section(tmp_path)
    (tmp_path / "api.hocon.new").mkdir()  # works for root too, who may write everywhere
    with pytest.raises(
        Unavailable, match=r"api\.hocon cannot be written \(is a directory\); nothing was changed"
    ):
        save(rules, {"name": "old"})
    (tmp_path / "api.hocon.new").rmdir()
    save(rules, {"name": "old"})
    size = (tmp_path / "api.hocon").stat().st_size
    with _files_of_at_most(size + 10), pytest.raises(Unavailable, match="no space left"):
        save(rules, {"name": "new"})
    assert (tmp_path / "api.hocon").stat().st_size == size
    assert names(rules) == names(section(tmp_path)) == ["old"]
    save(rules, {"name": "new"})
    assert names(rules) == names(section(tmp_path)) == ["old", "new"]


@contextmanager
def _files_of_at_most(size_bytes: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_somebody_else_changed_is_not_overwritten(tmp_path: Path) -> None:
    rules = section(tmp_path)
    save(rules, {"name": "r"})
    (tmp_path / "api.hocon").write_text("rule_engine.rules { by_hand {} }")
    with pytest.raises(Unavailable, match="Try: sluice config reload"):
        rules.save({"r": None})
    assert names(section(tmp_path)) == ["by_hand"]


def test_without_a_data_directory_nothing_is_saved() -> None:
    with pytest.raises(Unavailable, match="--data-dir"):
        save(section(None), {"name": "r"})


def test_an_unknown_section_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        section(tmp_path, "rules")


def test_objects_that_cannot_be_read_are_told_with_their_place(tmp_path: Path) -> None:
    file = tmp_path / "sluice.conf"
    file.write_text(
        "streams = [\n {topics = []}\n 5\n {name = a}\n {name = a}\n]\n"
        "rule_engine.rules { x { name = y } }\nlake.tables = 5\n"
    )
    with pytest.raises(ConfigError) as caught:
        sections(tmp_path)
    assert caught.value.problems == (
        f"{file} line 2: streams[0]: needs a name, a string",
        f"{file} line 3: streams[1]: must be an object {{ ... }}",
        f"{file} line 5: streams has two objects named 'a'",
        f"{file} line 7: rule_engine.rules.x: is named 'x' by its key and 'y' inside; keep one of the two",
        f"{file} line 8: lake.tables must be a list of objects",
    )


def test_objects_do_not_come_from_the_environment() -> None:
    with pytest.raises(ConfigError, match="SLUICE_STREAMS__X: streams are objects"):
        load_config({}, data_dir=None, environ={"SLUICE_STREAMS__X": "{}"})


_SAVE_FOR_EVER = """
import sys
from pathlib import Path
from broker.config.model import Settings
from broker.config.root import load_config
from broker.config.sections import Sections
section = Sections(load_config({}, data_dir=Path(sys.argv[1]), environ={})).section("streams")
count = len(section.load())
print("ready", flush=True)
while True:
    count = count % 50 + 1
    made = {f"s{n}": {"name": f"s{n}", "of": count, "text": "x" * 20000} for n in range(count)}
    section.save({**dict.fromkeys([f"s{n}" for n in range(50)]), **made})
    print(count, flush=True)
"""


def test_killed_at_any_instant_the_file_is_whole(tmp_path: Path) -> None:
    for round_ in range(6):
        saver = subprocess.Popen(
            [sys.executable, "-c", _SAVE_FOR_EVER, str(tmp_path)],
            stdout=subprocess.PIPE,
            env={**os.environ},
        )
        assert saver.stdout is not None
        for _ in range(2 + 3 * round_):  # killed at another point of its loop each time
            assert saver.stdout.readline()
        saver.send_signal(signal.SIGKILL)
        saver.wait()
        saver.stdout.close()
        held = section(tmp_path, "streams").load()
        assert held
        assert all(spec["of"] == len(held) for spec in held)


def test_what_is_read_is_what_was_saved_whatever_was_saved(tmp_path: Path) -> None:
    """Objects that come, change, go and are ordered, with names and text that need quotes, and a line that was cut."""
    both = sections(tmp_path)
    rules, streams = both.section("rule_engine.rules"), both.section("streams")
    names_used = ["a", "b.c", 'quo"ted', "über", "a = b, c", "# no"]
    for number in range(200):
        name, text = (
            names_used[number % 6],
            f'{number} "x" = null, \u2028\n${{y}} //' * (number % 5),
        )
        for at in (rules, streams):
            at.save(
                {
                    name: None
                    if number % 7 == 3
                    else {"name": name, "text": text, "n": {"a": [None, number]}}
                }
            )
        if number % 10 == 9:
            rules.reorder(sorted(names(rules), key=lambda one: hash((one, number))))
        assert load_config({}, data_dir=tmp_path, environ={}).api_layer.is_lines
        again = sections(tmp_path)
        assert rules.load() == again.section("rule_engine.rules").load()
        assert streams.load() == again.section("streams").load()
        if number % 50 == 49:
            read = parse_file(tmp_path / "api.hocon", {}).values["streams"]
            assert sorted(spec["name"] for spec in read.values() if spec) == sorted(names(streams))
            both = sections(tmp_path)
            with (tmp_path / "api.hocon").open("a") as file:
                file.write('streams.cut = {"name": "cut"')
            both = sections(tmp_path)
            rules, streams = both.section("rule_engine.rules"), both.section("streams")


def test_a_file_with_many_changes_is_written_again_while_others_are_saved(tmp_path: Path) -> None:
    both = sections(tmp_path)
    streams, file = both.section("streams"), tmp_path / "api.hocon"
    save(streams, {"name": "first"})
    sizes = [file.stat().st_size]
    for number in range(400):
        save(streams, {"name": f"s{number % 20}", "number": number, "text": "x" * 10_000})
        sizes.append(file.stat().st_size)
        if number % 20 == 19:
            for thread in [
                thread for thread in threading.enumerate() if thread.name == "compaction"
            ]:
                thread.join()  # a busy machine may leave it without a processor for many saves
            assert sections(tmp_path).section("streams").load() == streams.load()
    assert max(sizes) < 1024 * 1024
    assert any(after < before for before, after in pairwise(sizes))
    assert names(streams) == ["first", *(f"s{number}" for number in range(20))]


def test_what_is_saved_together_is_saved_at_once_or_not_at_all(tmp_path: Path) -> None:
    both = sections(tmp_path)
    rules, streams = both.section("rule_engine.rules"), both.section("streams")
    save(rules, {"name": "r"})
    assert both.file is not None
    with both.file.together():
        save(streams, {"name": "s"})
        assert "streams" not in (tmp_path / "api.hocon").read_text()
        save(rules, {"name": "r", "stream": "s"})
    [_, _, line] = (tmp_path / "api.hocon").read_text().splitlines()
    assert "streams.s = " in line
    assert "rule_engine.rules.r = null, rule_engine.rules.r = {" in line
    data = (tmp_path / "api.hocon").read_bytes()
    for length in range(len(data) - len(line) - 1, len(data)):
        # a crash of the machine may leave a part of the line
        (tmp_path / "api.hocon").write_bytes(data[:length])
        cut = sections(tmp_path)
        layer = load_config({}, data_dir=tmp_path, environ={}).api_layer
        assert layer.cut_off == data[-len(line) - 1 : length].decode()
        assert not cut.section("streams").load()
        assert cut.section("rule_engine.rules").load() == [{"name": "r"}]
    save(cut.section("streams"), {"name": "t"})
    assert names(section(tmp_path, "streams")) == ["t"]


def test_what_was_to_be_saved_together_is_not_saved_where_something_fails(tmp_path: Path) -> None:
    both = sections(tmp_path)
    streams = both.section("streams")

    def save_and_fail() -> None:
        assert both.file is not None
        with both.file.together():
            save(streams, {"name": "t"})
            raise OSError

    with pytest.raises(OSError):
        save_and_fail()
    assert not (tmp_path / "api.hocon").exists()
    streams.save({"t": None})  # as its service does then
    assert names(streams) == []


def test_where_an_object_stands(tmp_path: Path) -> None:
    (tmp_path / "base.hocon").write_text("rule_engine.rules {\n  base {}\n}")
    (tmp_path / "sluice.conf").write_text(
        "rule_engine.rules = [\n  { name = a },\n  { name = b } ]"
    )
    rules = section(tmp_path)
    save(rules, *rules.load(), {"name": "made"})
    base, main = tmp_path / "base.hocon", tmp_path / "sluice.conf"
    assert [rules.where(name) for name in ("base", "a", "b")] == [
        f"{base} line 2",
        f"{main} line 2",
        f"{main} line 3",
    ]
    assert rules.where("made") == str(tmp_path / "api.hocon")
    assert section(tmp_path).where("made").startswith(f"{tmp_path / 'api.hocon'} line ")


def test_an_object_that_cannot_be_used_is_told_with_its_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "sluice.conf").write_text("rule_engine.rules = [\n  { name = r } ]")
    error = Invalid("the rule cannot be saved", [Problem("sql is required", "/sql")])
    told = unusable(section(tmp_path), "rule", "r", error)
    place = f"{tmp_path / 'sluice.conf'} line 2"
    assert (
        told
        == f"{place}: rule 'r' cannot be used: sql is required (correct it there, or take it out)"
    )
