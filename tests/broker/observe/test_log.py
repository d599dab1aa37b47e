"""Events with fields: both formats, redaction, throttling, foreign records."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.config.secrets import Secret
from broker.observe import log as logs
from broker.observe.log import get_logger, redacted, setup
from broker.observe.settings import LogSettings


class Output:
    """A stream and a clock that the test moves."""

    def __init__(self) -> None:
        self.stream, self.now_s = io.StringIO(), 0.0

    def lines(self) -> list[str]:
        return self.stream.getvalue().splitlines()


@pytest.fixture
def output() -> Iterator[Output]:
    output, root = Output(), logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield output
    root.handlers[:] = handlers
    root.setLevel(level)


def start(output: Output, level: logs.Level = "info", format: logs.Format = "text") -> None:
    setup(level, format, stream=output.stream, clock=lambda: output.now_s)


def test_text_has_time_level_event_and_fields(output: Output) -> None:
    start(output)
    get_logger("t").warning(
        "session.dropped", client_id="a b", reason="takeover", count=3, peer=None
    )
    time, line = output.lines()[0].split(" ", 1)
    assert time.endswith("Z")
    assert line == 'WARNING session.dropped client_id="a b" reason=takeover count=3 peer=null'


def test_json_is_one_object_a_line(output: Output) -> None:
    start(output, format="json")
    get_logger("broker.x").error("disk.full", path="/d\n", level="high")
    entry = json.loads(output.lines()[0])
    assert {**entry, "time": ""} == {
        "time": "", "level": "error", "logger": "broker.x", "event": "disk.full", "path": "/d\n", "level_": "high",
    }  # fmt: skip


def test_what_a_client_sends_makes_no_line_of_its_own(output: Output) -> None:
    start(output)
    get_logger("t").info("x", topic="a\n2026-01-01T00:00:00Z ERROR forged", other='say "hi"')
    logging.getLogger("other").warning("two\nlines")
    assert len(output.lines()) == 2


@pytest.mark.parametrize("format", ["text", "json"])
@pytest.mark.parametrize(
    "sign", ["\u2028", "\u2029", "\x85", "\x9b", "\x0b", "\x7f", "\u202e", "\ufeff", "\U000e0001"]
)
def test_what_is_not_printable_is_escaped(output: Output, format: logs.Format, sign: str) -> None:
    start(output, format=format)
    get_logger("t").info(
        f"two{sign}lines", topic=f"a{sign}b", topics=[f"a{sign}b"], about={"k": f"a{sign}b"}
    )
    try:
        raise ValueError(f"a{sign}b")
    except ValueError:
        logging.getLogger("t").exception("failed")
    assert sign not in output.stream.getvalue()
    if format == "json":
        entry = json.loads(output.lines()[0])
        assert (entry["event"], entry["topic"], entry["topics"]) == (
            f"two{sign}lines",
            f"a{sign}b",
            [f"a{sign}b"],
        )


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("password", "x", "******"),
        ("api_token", "x", "******"),
        ("Authorization", "Bearer x", "******"),
        ("anything", Secret("x"), "******"),
        ("settings", {"user": "u", "db_password": "x"}, {"user": "u", "db_password": "******"}),
        ("payload", b"abc", "<3 bytes>"),
        ("payload", "abc", "<3 bytes>"),
        ("data", b"abcd", "<4 bytes>"),
        ("count", 5, 5),
        ("names", ["a", 1], ["a", 1]),
        ("text", "x" * 3000, "x" * 2000 + "… (3000 characters)"),
        ("client_id", "x" * 3000, "x" * 200 + "… (3000 characters)"),
    ],
)
def test_secrets_and_payloads_are_not_written(name: str, value: Any, expected: Any) -> None:
    assert redacted(name, value) == expected


def test_repeats_are_throttled_and_counted(output: Output) -> None:
    start(output)
    log = get_logger("t")
    for number in range(100):
        log.warning("peer.broke_rules", number=number)
    log.warning("another.event")
    assert len(output.lines()) == 21
    output.now_s = 61.0
    log.warning("peer.broke_rules", number=100)
    log.warning("peer.broke_rules", number=101)
    assert output.lines()[-2].endswith("peer.broke_rules number=100 left_out=80")
    assert output.lines()[-1].endswith("peer.broke_rules number=101")


def test_the_memory_of_the_throttle_is_bounded(output: Output) -> None:
    throttle = logs.Throttle(clock=lambda: 0.0)
    for number in range(3 * logs.Throttle.MAX_EVENTS):
        assert throttle.filter(logging.makeLogRecord({"name": "t", "msg": f"event {number}"}))
    assert len(throttle._windows) <= logs.Throttle.MAX_EVENTS


def test_levels_below_are_not_written_and_the_last_setup_counts(output: Output) -> None:
    start(output)
    start(output)
    log = get_logger("t")
    log.debug("hidden")
    log.info("shown")
    assert len(output.lines()) == 1
    start(output, "debug")
    log.debug("shown too")
    assert len(output.lines()) == 2


def test_a_traceback_follows_an_exception(output: Output) -> None:
    start(output)
    try:
        raise ValueError("cause")
    except ValueError:
        get_logger("t").exception("stage.failed", stage="rules")
    assert "ERROR stage.failed stage=rules" in output.lines()[0]
    assert output.lines()[-1] == "ValueError: cause"


def test_records_of_other_libraries_are_written_alike(output: Output) -> None:
    start(output)
    logging.getLogger("lib").warning("tried %d times", 3, extra={"operation": "read", "token": "t"})
    assert output.lines()[0].endswith("WARNING tried 3 times operation=read token=******")


class Broken(io.StringIO):
    """A stream that takes nothing: a full disk, a closed pipe."""

    def write(self, _text: str) -> int:
        raise OSError("no space left on device")


def test_a_line_that_cannot_be_written_says_nothing_elsewhere(
    output: Output, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", True)
    output.stream = Broken()
    start(output)
    try:
        raise ValueError("password of the exception at hand")
    except ValueError:
        get_logger("t").exception("bridge.failed")
    assert capsys.readouterr().err == ""


def test_a_file_gets_the_same_lines_and_is_rotated_by_size(output: Output, tmp_path: Path) -> None:
    settings = LogSettings.model_validate(
        {"file": str(tmp_path / "sluice.log"), "rotation_size": "64KB", "rotation_count": 2}
    )
    setup(
        "info",
        "json",
        stream=output.stream,
        file=settings.rotating_file(),
        clock=lambda: output.now_s,
    )
    for number in range(100):
        get_logger("t").info(f"event.{number}", text="x" * 4_000)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 3
    assert all(file.stat().st_size <= 64 * 1024 for file in files)
    [newest] = [file for file in files if file.name == "sluice.log"]
    assert (
        newest.read_text().splitlines() == output.lines()[-len(newest.read_text().splitlines()) :]
    )


def test_a_file_that_takes_nothing_leaves_the_lines_on_the_stream(
    output: Output, tmp_path: Path
) -> None:
    settings = LogSettings.model_validate({"file": str(tmp_path / "gone" / "sluice.log")})
    setup("info", "text", stream=output.stream, file=settings.rotating_file())
    get_logger("t").info("still.here")
    assert "still.here" in output.lines()[0]
