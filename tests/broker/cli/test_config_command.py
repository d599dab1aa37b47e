"""``sluice config`` with the settings of the whole product."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from broker.app.build import section_models
from broker.cli import exit_codes
from broker.cli.main import main
from broker.config.root import load_config


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty directory, with nothing of Sluice in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("SLUICE_")]:
        monkeypatch.delenv(name)


def test_a_good_file_is_ok(capsys: pytest.CaptureFixture[str]) -> None:
    Path("my.conf").write_text('mqtt.max_packet_size = 2MB\nstreams { raw { topics = ["a/#"] } }\n')
    assert main(["config", "check", "my.conf"]) == 0
    assert capsys.readouterr().out == "OK: my.conf; 1 object\n"


def test_every_problem_of_a_bad_file_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    Path("my.conf").write_text(
        "mqtt {\n  max_packet_sise = 2MB\n  max_inflight = many\n}\nlisteners.tcp.default.bind = x\n"
    )
    assert main(["config", "check", "my.conf"]) == exit_codes.CHECK_SAID_NO
    told = capsys.readouterr().err
    assert told.startswith("Error: the configuration has 3 problems\n")
    assert (
        "  my.conf line 2: mqtt.max_packet_sise is not a setting; did you mean 'max_packet_size'?\n"
        in told
    )
    assert "  my.conf line 3: mqtt.max_inflight is 'many'; expected a whole number\n" in told
    assert "  my.conf line 5: listeners.tcp.default.bind: 'x' is not an address" in told
    assert main(["config", "check", "my.conf", "-o", "json"]) == exit_codes.CHECK_SAID_NO
    assert len(json.loads(capsys.readouterr().err)["problems"]) == 3


def test_a_file_that_does_not_parse_is_told_with_its_place(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("my.conf").write_text("mqtt {\n  retain = [1, 2\n}\n")
    assert main(["config", "check", "my.conf"]) == exit_codes.CHECK_SAID_NO
    assert "my.conf line 3, column 1: expected ']' for the '[' of line 2" in capsys.readouterr().err


def test_objects_that_a_broker_would_refuse_are_told_and_nothing_is_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("my.conf").write_text(
        'rule_engine.rules = [\n  { name = r, sql = "SELEC" },\n'
        '  { name = q, sql = "SELECT a FROM t", actions = [{ type = stream, stream = none }] }\n]\n'
        "streams { s { topics = [a], shards = 0 } }\n"
    )
    assert main(["config", "check", "my.conf"]) == exit_codes.CHECK_SAID_NO
    told = capsys.readouterr().err
    assert told.startswith("Error: the configuration has 3 problems\n")
    assert (
        "  my.conf line 2: rule 'r' cannot be used: line 1, column 1: a rule begins with SELECT"
        in told
    )
    assert "  my.conf line 3: rule 'q' cannot be used: there is no stream 'none'" in told
    assert "  my.conf line 5: stream 's' cannot be used: shards is 0; expected at least 1" in told
    assert os.listdir() == ["my.conf"]


def test_a_listener_that_a_broker_would_refuse_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    Path("my.conf").write_text('listeners.tcp.default.bind = "0.0.0.0:1883"\n')
    assert main(["config", "check", "my.conf"]) == exit_codes.CHECK_SAID_NO
    assert "access.allow_anonymous = true" in capsys.readouterr().err


def test_what_is_in_force_is_shown_with_who_set_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_MQTT__MAX_INFLIGHT", "7")
    assert main(["config", "show", "--files"]) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = next(line for line in lines if line.startswith("mqtt.max_inflight "))
    assert shown.split(maxsplit=2)[1:] == ["7", "environment variable SLUICE_MQTT__MAX_INFLIGHT"]


def test_the_reference_describes_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "reference", "-o", "json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert {"mqtt.max_packet_size", "store.durability", "listeners.tcp.default.bind"} <= {
        e["key"] for e in entries
    }
    assert [entry["key"] for entry in entries if not entry["description"]] == []


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            'node.name = "a/+"',
            "node.name: 'a/+' has to be one level of $SYS topics; leave '/', '+', '#' and NUL out",
        ),
        (
            'mqtt.clientid_override = "nope("',
            (
                "mqtt.clientid_override: is not a valid expression: line 1, column 6: "
                "expected a value, a variable or a function"
            ),
        ),
    ],
    ids=["node.name", "mqtt.clientid_override"],
)
def test_a_bad_value_is_one_problem_in_one_sentence(
    line: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("my.conf").write_text(f"{line}\n")
    assert main(["config", "check", "my.conf"]) == exit_codes.CHECK_SAID_NO
    head, problem, *_ = capsys.readouterr().err.splitlines()
    assert head == "Error: the configuration has 1 problem"
    assert problem.startswith(f"  my.conf line 1: {told}")


def test_the_sample_has_every_setting_and_loads_as_the_defaults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "sample"]) == 0
    text = capsys.readouterr().out
    (tmp_path / "sluice.conf").write_text(text)
    models = section_models()
    defaults = load_config(models, data_dir=None, environ={})
    assert load_config(models, data_dir=tmp_path, environ={}).sections == defaults.sections
    settings = [line.removeprefix("# ") for line in text.splitlines() if line.startswith("# ")]
    (tmp_path / "sluice.conf").write_text("\n".join(settings))
    loaded = load_config(models, data_dir=tmp_path, environ={})
    assert loaded.leaves() == defaults.leaves()
    unset = {key for key in defaults.leaves() if loaded.origin(key) == "default"}
    assert all(defaults.leaves()[key] == {} for key in unset)
    assert all(entry.key in text for entry in defaults.describe())


@pytest.mark.parametrize(
    ("profile", "advice"),
    [("hardend", "did you mean 'hardened'?"), ("legacy", "access.allow_anonymous = true")],
)
def test_an_unknown_security_profile_stops_the_start(
    profile: str, advice: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLUICE_SECURITY_PROFILE", profile)
    assert main(["serve", "--data-dir", "data"]) == 1
    said = capsys.readouterr().err
    assert f"SLUICE_SECURITY_PROFILE: expected hardened, got {profile!r}" in said
    assert advice in said
    assert not Path("data").exists()
