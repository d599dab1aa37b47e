"""Layers, validation with every problem at once, who set what, secrets masked."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import Field, model_validator

from broker.config.model import Settings
from broker.config.root import Config, load_config
from broker.config.secrets import Secret
from broker.config.units import Duration, Size, parse_size_bytes
from broker.core.errors import ConfigError, NotFound


class Nested(Settings):
    """Settings inside settings."""

    depth: int = Field(default=3, ge=1, le=10, description="levels")


class MqttSettings(Settings):
    """A section."""

    max_packet_size: Size = Field(1048576, description="largest packet, bytes")
    keep_alive: Duration = Field(60.0, description="seconds")
    max_inflight: int = Field(32, ge=1, description="messages")
    retain: bool = True
    """Whether retained messages
    are kept."""
    overflow: Literal["drop", "wait"] = Field("drop", description="what happens")
    password: Secret | None = Field(None, description="hidden")
    topics: list[str] = Field(default_factory=list, description="filters")
    nested: Nested = Field(default_factory=Nested, description="more")


class ListenerSettings(Settings):
    """A listener."""

    bind: str = Field("127.0.0.1:1883", description="address")


class LakeSettings(Settings):
    """A section beside objects."""

    engine: str = Field("native", description="which")


MODELS: dict[str, type[Settings]] = {
    "mqtt": MqttSettings,
    "listeners.tcp.default": ListenerSettings,
    "lake": LakeSettings,
}


def load(data_dir: Path | None = None, **options: Any) -> Config:
    return load_config(MODELS, data_dir=data_dir, **{"environ": {}, **options})


def problems(data_dir: Path | None = None, **options: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(data_dir, **options)
    return list(caught.value.problems)


def test_without_anything_set_there_are_the_defaults() -> None:
    config = load()
    assert config.get("mqtt", MqttSettings).max_packet_size == 1048576
    assert config.origin("mqtt.max_packet_size") == "default"


def test_a_stronger_layer_wins_and_is_named(tmp_path: Path) -> None:
    def in_force(**options: Any) -> tuple[int, str]:
        config = load(tmp_path, **options)
        return config.get("mqtt", MqttSettings).max_inflight, config.origin("mqtt.max_inflight")

    assert in_force() == (32, "default")
    (tmp_path / "base.hocon").write_text("mqtt.max_inflight = 1\n")
    assert in_force() == (1, f"{tmp_path / 'base.hocon'} line 1")
    (tmp_path / "api.hocon").write_text('{\n"mqtt": {"max_inflight": 2}}')
    assert in_force() == (2, f"{tmp_path / 'api.hocon'} line 2")
    (tmp_path / "sluice.conf").write_text("\n\nmqtt { max_inflight = 3 }\n")
    assert in_force() == (3, f"{tmp_path / 'sluice.conf'} line 3")
    environ = {"SLUICE_MQTT__MAX_INFLIGHT": "4"}
    assert in_force(environ=environ) == (4, "environment variable SLUICE_MQTT__MAX_INFLIGHT")
    assert in_force(environ=environ, overrides={"mqtt.max_inflight": "5"}) == (5, "command line")


def test_layers_merge_key_by_key(tmp_path: Path) -> None:
    (tmp_path / "base.hocon").write_text("mqtt { retain = off, nested.depth = 5 }")
    (tmp_path / "sluice.conf").write_text("mqtt.keep_alive = 2m")
    settings = load(tmp_path).get("mqtt", MqttSettings)
    assert (settings.retain, settings.nested.depth, settings.keep_alive) == (False, 5, 120.0)


def test_the_main_file_is_given_named_by_the_environment_or_found(tmp_path: Path) -> None:
    for name, bind in (("sluice.conf", "a:1"), ("named.conf", "b:2"), ("given.conf", "c:3")):
        (tmp_path / name).write_text(f"listeners.tcp.default.bind = {bind}")

    def bind_of(**options: Any) -> str:
        return load(tmp_path, **options).get("listeners.tcp.default", ListenerSettings).bind

    named = {"SLUICE_CONFIG": str(tmp_path / "named.conf")}
    assert bind_of() == "a:1"
    assert bind_of(environ=named) == "b:2"
    assert bind_of(environ=named, config_files=[tmp_path / "given.conf"]) == "c:3"


def test_of_several_main_files_the_last_wins(tmp_path: Path) -> None:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "sluice.conf").write_text("mqtt.max_inflight = 1\nmqtt.nested.depth = 5")
    (tmp_path / "conf.d" / "20-b.conf").write_text("mqtt.max_inflight = 3")
    (tmp_path / "conf.d" / "10-a.conf").write_text("mqtt.max_inflight = 2")
    (tmp_path / "conf.d" / "README").write_text("not a configuration {")

    def read(**options: Any) -> tuple[int, str]:
        config = load(tmp_path, **options)
        return config.get("mqtt", MqttSettings).max_inflight, config.origin("mqtt.max_inflight")

    assert read() == (3, f"{tmp_path / 'conf.d' / '20-b.conf'} line 1")
    assert load(tmp_path).get("mqtt", MqttSettings).nested.depth == 5
    first, second = tmp_path / "first.conf", tmp_path / "second.conf"
    first.write_text("mqtt.max_inflight = 7")
    second.write_text("mqtt.max_inflight = 8")
    assert read(config_files=[first, second])[0] == 8
    assert read(config_files=[second, first])[0] == 7
    assert load(tmp_path, config_files=[first]).get("mqtt", MqttSettings).nested.depth != 5
    assert read(environ={"SLUICE_CONFIG": f"{first}:{second}"})[0] == 8
    assert read(config_files=[first, tmp_path / "conf.d"])[0] == 3


def test_the_environment_takes_lists_and_ignores_what_is_no_setting() -> None:
    environ = {
        "SLUICE_MQTT__TOPICS": '["a/#", b]',
        "SLUICE_MQTT__MAX_PACKET_SIZE": "1MB",
        "SLUICE_MQTT__RETAIN": "false",
        "SLUICE_API_TOKEN": "secret",
        "SLUICE_SERVICE_HOST": "10.0.0.1",
    }
    settings = load(environ=environ).get("mqtt", MqttSettings)
    assert (settings.topics, settings.max_packet_size, settings.retain) == (
        ["a/#", "b"],
        1024**2,
        False,
    )


def test_all_problems_are_told_at_once_each_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "sluice.conf"
    file.write_text(
        "mqtt {\n"
        "  max_packet_sise = 1MB\n"
        "  max_inflight = many\n"
        "  keep_alive = soon\n"
        "  retain = perhaps\n"
        "  overflow = explode\n"
        "  topics = 5\n"
        "  nested { depht = 1, depth = 11 }\n"
        "}\n"
        "mqqt { a = 1 }\n"
        "listeners.tcpp.default.bind = x\n"
        "lake = 5\n"
    )
    environ = {"SLUICE_MQTT__MAX_INFLIGT": "1"}
    assert problems(tmp_path, environ=environ) == [
        f"{file} line 10: mqqt is not a section of settings; did you mean 'mqtt'?",
        f"{file} line 12: lake must be an object {{ ... }}",
        f"{file} line 11: listeners.tcpp is not a section of settings; did you mean 'tcp'?",
        (
            f"{file} line 4: mqtt.keep_alive: 'soon' is not a duration; "
            "write a number with ms, s, m, h, d or w, as '15s' or '7d'"
        ),
        f"{file} line 3: mqtt.max_inflight is 'many'; expected a whole number",
        f"{file} line 5: mqtt.retain is 'perhaps'; expected true or false",
        f"{file} line 6: mqtt.overflow is 'explode'; expected 'drop' or 'wait'",
        f'{file} line 7: mqtt.topics is 5; expected a list, as ["a", "b"]',
        f"{file} line 8: mqtt.nested.depth is 11; expected at most 10",
        f"{file} line 8: mqtt.nested.depht is not a setting; did you mean 'depth'?",
        f"{file} line 2: mqtt.max_packet_sise is not a setting; did you mean 'max_packet_size'?",
        (
            "environment variable SLUICE_MQTT__MAX_INFLIGT: "
            "mqtt.max_infligt is not a setting; did you mean 'max_inflight'?"
        ),
    ]


def test_a_file_that_does_not_parse_is_told_beside_the_others(tmp_path: Path) -> None:
    (tmp_path / "base.hocon").write_text("mqtt {")
    (tmp_path / "sluice.conf").write_text("mqtt.max_inflight = 0")
    found = problems(tmp_path)
    assert found[0].startswith(f"{tmp_path / 'base.hocon'} line 1, column 7: expected '}}'")
    assert (
        found[1]
        == f"{tmp_path / 'sluice.conf'} line 1: mqtt.max_inflight is 0; expected at least 1"
    )


def test_a_named_file_that_is_missing_is_a_problem(tmp_path: Path) -> None:
    missing = tmp_path / "none.conf"
    assert problems(tmp_path, config_files=[missing]) == [f"{missing}: no such file or directory"]


def test_contradicting_overrides_are_told() -> None:
    found = problems(overrides={"mqtt.nested": "1", "mqtt.nested.depth": "2", "mqtt.topics": "[a"})
    assert (
        "command line: mqtt.nested.depth is set as a value and as an object; keep one of the two"
        in found
    )
    assert any(
        problem.startswith("command line line 1, column 3: expected ']'") for problem in found
    )


def test_secrets_show_nowhere(tmp_path: Path) -> None:
    (tmp_path / "sluice.conf").write_text("mqtt.password = hunter2")
    config = load(tmp_path)
    password = config.get("mqtt", MqttSettings).password
    assert password is not None
    assert password.reveal() == "hunter2"
    assert password == Secret("hunter2")
    assert password != Secret("hunter3")
    settings = config.get("mqtt")
    shown = (
        f"{password} {password!r} {settings!r} {settings.model_dump_json()} {config.effective()}"
    )
    assert "hunter2" not in shown
    assert config.effective()["mqtt"]["password"] == "******"
    (tmp_path / "sluice.conf").write_text("mqtt.password = 2718281828")
    assert problems(tmp_path) == [
        f'{tmp_path / "sluice.conf"} line 1: mqtt.password is ******; expected a string; put it in quotes, as "text"'
    ]


def test_effective_settings_have_the_shape_of_the_files() -> None:
    tree = load().effective()
    assert tree["listeners"]["tcp"]["default"] == {"bind": "127.0.0.1:1883"}
    assert tree["mqtt"]["nested"] == {"depth": 3}


def test_a_section_not_loaded_is_not_found() -> None:
    with pytest.raises(NotFound):
        load().get("rules")
    with pytest.raises(TypeError):
        load().get("mqtt", LakeSettings)


def test_every_setting_is_described() -> None:
    entries = {entry.key: entry for entry in load().describe()}
    assert entries["mqtt.max_packet_size"].type == "size"
    assert entries["mqtt.keep_alive"].type == "duration"
    assert entries["mqtt.password"].type == "secret (optional)"
    assert entries["mqtt.overflow"].type == "drop | wait"
    assert entries["mqtt.topics"].type == "list of text"
    assert (entries["mqtt.topics"].default, entries["mqtt.retain"].default) == ("[]", "true")
    assert entries["mqtt.nested.depth"].description == "levels"
    assert entries["mqtt.retain"].description == "Whether retained messages are kept."
    assert entries["listeners.tcp.default.bind"].default == "127.0.0.1:1883"


def test_ten_thousand_keys_in_two_files_load(tmp_path: Path) -> None:
    lines = [f't{n} {{ topics = ["t/{n}"] }}' for n in range(2_500)]
    (tmp_path / "base.hocon").write_text("streams {\n" + "\n".join(lines) + "\n}")
    (tmp_path / "api.hocon").write_text("streams {\n" + "\n".join(lines) + "\n}")
    assert [len(held.objects) for held in load(tmp_path).objects["streams"]] == [2_500, 2_500]


def test_a_section_may_be_written_by_the_name_another_broker_gives_it(tmp_path: Path) -> None:
    (tmp_path / "sluice.conf").write_text('message_validation.validations = [{ name = "a" }]\n')
    config = load(tmp_path)
    (held,) = config.objects["schema_validation.validations"]
    assert [spec["name"] for spec in held.objects] == ["a"]
    assert held.places(("schema_validation", "validations"))["a"].endswith("sluice.conf line 1")
    (tmp_path / "sluice.conf").write_text(
        "message_validation.validations = []\nschema_validation.validations = []\n"
    )
    (problem,) = problems(tmp_path)
    assert "are one section; keep one of the two" in problem


def test_a_section_may_be_a_list_where_its_model_takes_one(tmp_path: Path) -> None:
    class Chain(Settings):
        takes_a_list = True

        links: list[str] = Field(default_factory=list, description="in order")

        @model_validator(mode="before")
        @classmethod
        def _from_list(cls, value: Any) -> Any:
            return {"links": value} if isinstance(value, list) else value

    (tmp_path / "sluice.conf").write_text("chain = [a, b]\nmqtt = [1]\n")
    with pytest.raises(ConfigError) as caught:
        load_config({**MODELS, "chain": Chain}, data_dir=tmp_path, environ={})
    assert [problem.partition(": ")[2] for problem in caught.value.problems] == [
        "mqtt must be an object { ... }"
    ]
    (tmp_path / "sluice.conf").write_text("chain = [a, b]\n")
    found = load_config({**MODELS, "chain": Chain}, data_dir=tmp_path, environ={}).get(
        "chain", Chain
    )
    assert found.links == ["a", "b"]


def test_a_size_of_any_number_of_digits_is_a_number_or_refused() -> None:
    with pytest.raises(ValueError, match="a size of 400 digits is too large"):
        parse_size_bytes("9" * 400 + "MB")
