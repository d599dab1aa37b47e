"""Connectors, actions and sources as objects: what is refused, shown, and kept secret; the step-by-step test."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from bridges.feature import BUILT_IN
from bridges.resource.registry import Registry
from bridges.resource.settings.secret import SecretText
from broker.core.contributor import Contributor, Uses
from broker.core.errors import ConfigError, InUse, Invalid, SluiceError
from broker.core.objects import Reference
from tests.support.bridges import FAST_CONNECTOR, Bridges, Outside, scripted, scripted_bridges
from tests.support.waiting import within

PASSWORD = "tr0ub4dor&3"


def run(test: Any) -> None:
    asyncio.run(within(test, 120))


def problems_of(call: Any) -> list[str]:
    with pytest.raises(SluiceError) as caught:
        call()
    return (
        [f"{one.pointer}: {one}" for one in caught.value.problems]
        if isinstance(caught.value, Invalid)
        else []
    )


def test_what_a_type_requires_is_imported_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_to_import.py").write_text(
        "import threading\nTHREAD = threading.current_thread()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    async def check() -> None:
        async with scripted_bridges(Outside(), requires=("slow_to_import",)) as bridges:
            await bridges.until(lambda: bridges.connectors.get("plant")["status"] == "connected")
            assert sys.modules["slow_to_import"].THREAD is not threading.main_thread()

    try:
        run(check())
    finally:
        sys.modules.pop("slow_to_import", None)


def test_what_cannot_be_used_is_refused_with_its_place() -> None:
    async def check() -> None:
        async with scripted_bridges(Outside()) as bridges:
            made: Any = {"name": "x", "type": "scripted"}
            create = bridges.connectors.create
            assert problems_of(lambda: create({"name": "x", "type": "scriptd"})) == [
                "/type: there is no type 'scriptd'; did you mean 'scripted'?"
            ]
            assert problems_of(lambda: create({**made, "pasword": "p"})) == [
                "/pasword: pasword is not known; did you mean 'password'?"
            ]
            found = problems_of(
                lambda: create({**made, "name": "a b", "resource_opts": {"start_timeout": "fast"}})
            )
            assert [line.partition(":")[0] for line in found] == [
                "/name",
                "/resource_opts/start_timeout",
            ]
            action: Any = {"name": "y", "type": "scripted", "connector": "plant"}
            assert problems_of(lambda: bridges.actions.create({**action, "connector": "plan"})) == [
                "/connector: there is no connector 'plan'; there are 'plant'"
            ]
            assert problems_of(lambda: bridges.actions.create({**action, "type": "file"}))[
                0
            ].startswith("/connector")
            assert problems_of(
                lambda: bridges.actions.create({**action, "parameters": {"topik": "t"}})
            ) == ["/parameters/topik: topik is not known; did you mean 'topic'?"]
            for text, shown in (
                ("a/${b", "'${b'"),
                ("${b c}/d", "'${b c}'"),
                ("${payload.a-b}", "'${payload.a-b}'"),
            ):
                [line] = problems_of(
                    lambda text=text: bridges.actions.create(
                        {**action, "parameters": {"topic": text}}
                    )
                )
                assert line.startswith(f"/parameters/topic: {shown} is not a placeholder")
            fallback = [{"kind": "republish", "args": {"topic": "a/#"}}]
            found = problems_of(
                lambda: bridges.actions.create({**action, "fallback_actions": fallback})
            )
            assert found[0].startswith("/fallback_actions/0/args/topic")
            assert [one["name"] for one in bridges.actions.list()] == ["out"]

    run(check())


class HotRule(Contributor):
    def uses(self) -> Uses:
        return [(Reference("rule", "hot"), Reference("action", "scripted:out"))]


def test_what_is_used_is_not_deleted() -> None:
    async def check() -> None:
        async with scripted_bridges(Outside()) as bridges:
            bridges.services.contributors.append(HotRule())
            with pytest.raises(InUse, match="rule 'hot'"):
                bridges.actions.delete("out")
            with pytest.raises(InUse, match="action 'scripted:out'"):
                bridges.connectors.delete("plant")
            assert bridges.actions.get("out")["rules"] == ["hot"]

    run(check())


def test_connectors_may_go_while_their_actions_are_being_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def check() -> None:
        async with scripted_bridges(Outside()) as bridges:
            await bridges.until(lambda: bridges.actions.get("out")["status"] == "connected")
            bridges.actions.delete("out")
            await asyncio.sleep(0)
            bridges.connectors.delete("plant")
            await bridges.feature.resources.changes.all_done()
            assert not [task for task in asyncio.all_tasks() if "scripted:out" in task.get_name()]

    run(check())
    assert "bridge.chore_failed" not in caplog.text


def test_what_is_missing_says_what_to_install() -> None:
    async def check() -> None:
        bridges = Bridges(scripted(Outside(), requires=("no_such_module",), extra="scripted"))
        found = problems_of(lambda: bridges.connectors.create({"name": "x", "type": "scripted"}))
        assert found[0].startswith(
            "/type: connectors of type 'scripted' need no_such_module; install it with: "
        )
        assert found[0].endswith("pip install 'sluicemq[scripted]'")
        described = {one["name"]: one for one in bridges.connectors.types()}
        assert not described["scripted"]["is_installed"]
        assert "properties" in described["file"]["parameters"]["action"]
        await bridges.end()

    run(check())


def test_a_secret_is_never_shown_and_stars_keep_it(capfd: pytest.CaptureFixture[str]) -> None:
    async def check() -> None:
        outside = Outside()
        bridges = Bridges(scripted(outside))
        bridges.begin()
        spec = {
            "name": "plant",
            "type": "scripted",
            "password": PASSWORD,
            "resource_opts": FAST_CONNECTOR,
        }
        shown = bridges.connectors.create(spec)
        assert shown["password"] == "******"
        await bridges.until(
            lambda: "refuses the user" in bridges.connectors.get("plant")["status_reason"]
        )
        probed = await bridges.connectors.test("plant")
        told = [
            bridges.connectors.get("plant"),
            probed,
            await bridges.connectors.probe(dict(shown)),
        ]
        assert PASSWORD not in json.dumps(told)
        assert told[0]["status_reason"] == "outside:1 refuses the user 'sluice' with ******"
        bridges.connectors.replace("plant", {**shown, "description": "changed"})
        assert bridges.sections["connectors"].load()[0]["password"] == PASSWORD
        assert problems_of(
            lambda: bridges.connectors.create({**spec, "name": "b", "password": "******"})
        ) == [": the stars stand for a secret that is not stored; send the secret itself"]
        outside.password = PASSWORD
        await bridges.until(lambda: bridges.connectors.get("plant")["status"] == "connected")
        await bridges.end()

    run(check())
    assert PASSWORD not in "".join(capfd.readouterr())


def test_a_secret_may_stand_in_the_environment_or_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text(f"{PASSWORD}\n")
    monkeypatch.setenv("SLUICE_SECRET_PLANT_PASSWORD", PASSWORD)
    for reference in ("${env:SLUICE_SECRET_PLANT_PASSWORD}", "${file:%s}" % (tmp_path / "secret")):
        secret = SecretText(reference)
        assert (secret.reveal(), secret.shown) == (PASSWORD, reference)
    for reference in ("${env:SLUICE_SECRET_NOT_THERE}", "${file:%s}" % (tmp_path / "none")):
        with pytest.raises(SluiceError, match="which the settings refer to"):
            SecretText(reference).reveal()
    assert "tr0ub" not in repr(SecretText(PASSWORD))


def test_the_test_of_a_connection_tells_each_step_up_to_the_first_that_fails() -> None:
    async def check() -> None:
        outside = Outside()
        async with scripted_bridges(outside) as bridges:
            good = await bridges.actions.test("out")
            assert [(step["name"], step["result"]) for step in good["steps"]] == [
                ("connect", "ok"),
                ("authenticate", "ok"),
                ("target", "ok"),
                ("permission", "ok"),
            ]
            outside.topics = set()
            bad = await bridges.actions.test("out")
            assert (bad["ok"], bad["steps"][2]["message"]) == (False, "no topic 't'")
            outside.is_there = False
            bad = await bridges.connectors.test("plant")
            assert [(step["result"], step["message"]) for step in bad["steps"]] == [
                ("failed", "outside:1: connection refused"),
                ("skipped", ""),
            ]
            outside.is_there = True
            await bridges.until(
                lambda: outside.connections == 1, "tests leave no connection behind"
            )

    run(check())


def test_states_follow_what_people_switch() -> None:
    async def check() -> None:
        outside = Outside()
        async with scripted_bridges(outside) as bridges:

            def states() -> tuple[str, str]:
                return bridges.connectors.get("plant")["status"], bridges.actions.get("out")[
                    "status"
                ]

            await bridges.until(lambda: states() == ("connected", "connected"))
            await bridges.connectors.stop("plant")
            assert states() == ("stopped", "stopped")
            await bridges.connectors.start("plant")
            await bridges.until(lambda: states() == ("connected", "connected"))
            bridges.connectors.enable("plant", False)
            await bridges.until(lambda: states() == ("disabled", "disabled"))
            assert bridges.sections["connectors"].load()[0]["enable"] is False
            bridges.connectors.enable("plant", True)
            await bridges.until(lambda: states() == ("connected", "connected"))
            bridges.actions.enable("out", False)
            assert states() == ("connected", "disabled")
            await bridges.feature.resources.changes.all_done()
            bridges.actions.enable("out", True)
            await bridges.until(lambda: states() == ("connected", "connected"))
            await bridges.connectors.restart("plant")
            await bridges.until(lambda: outside.connections == 1)

    run(check())


@pytest.mark.parametrize("buffer_mode", ["memory_only", "disk"])
def test_an_outage_shows_its_age_attempts_and_lag(buffer_mode: str) -> None:
    async def check() -> None:
        outside = Outside()
        async with scripted_bridges(outside, {"buffer_mode": buffer_mode}) as bridges:
            await bridges.until(lambda: bridges.actions.get("out")["status"] == "connected")
            assert bridges.counts()["lag_s"] == 0
            connected_since = bridges.actions.get("out")["since"]
            outside.is_there = False
            await bridges.until(lambda: bridges.connectors.get("plant")["attempts"] > 1)
            await bridges.until(lambda: bridges.connectors.get("plant")["next_attempt_at"])
            assert bridges.actions.get("out")["since"] > connected_since
            bridges.send_many(3)
            bridges.clock.ahead_s = 90.0
            await bridges.until(lambda: 90 <= bridges.counts()["lag_s"] < 120)
            gauge = bridges.services.monitoring.metrics.value(
                "action_lag_seconds", action="scripted:out"
            )
            assert 90 <= gauge < 120
            outside.is_there = True
            await bridges.until_sent(3)
            assert bridges.counts()["lag_s"] == 0
            shown = bridges.connectors.get("plant")
            assert (shown["attempts"], shown["next_attempt_at"]) == (0, None)

    run(check())


def test_forms_know_secrets_and_units() -> None:
    [schemas] = [
        one["parameters"] for one in Registry(BUILT_IN).described() if one["name"] == "kafka"
    ]
    password = schemas["connector"]["$defs"]["PasswordAuthentication"]["properties"]["password"]
    assert password["format"] == "password"
    assert schemas["connector"]["properties"]["metadata_max_age"]["x-unit"] == "seconds"
    assert schemas["action"]["properties"]["max_batch_bytes"]["x-unit"] == "bytes"


def test_objects_of_the_configuration_that_cannot_be_used_are_named_together() -> None:
    async def check() -> None:
        bridges = Bridges(scripted(Outside()))
        bridges.services.storage.section("connectors").save({"a": {"name": "a", "type": "nothing"}})
        bridges.services.storage.section("actions").save(
            {"b": {"name": "b", "type": "scripted", "connector": "a"}}
        )
        with pytest.raises(ConfigError) as caught:
            bridges.feature.start()
        assert len(caught.value.problems) == 2
        await bridges.writer.close()

    run(check())


def test_rules_read_what_a_source_brings_in() -> None:
    async def check() -> None:
        outside = Outside()
        bridges = Bridges(scripted(outside))
        read: list[Any] = []
        bridges.services.messaging.events.listen(
            lambda name, columns, about: read.append((name, columns))
        )
        bridges.services.messaging.events.want(frozenset({"$bridges/scripted:in"}))
        bridges.begin()
        bridges.connectors.create(
            {"name": "plant", "type": "scripted", "resource_opts": FAST_CONNECTOR}
        )
        bridges.sources.create({"name": "in", "type": "scripted", "connector": "plant"})
        from bridges.resource.contract import Incoming

        outside.backlog = [Incoming({"n": number}) for number in range(3)]
        await bridges.until(lambda: len(outside.acknowledged) == 3)
        assert read == [("$bridges/scripted:in", {"n": number}) for number in range(3)]
        assert bridges.published.messages == []
        bridges.sources.pause("in")
        await bridges.until(lambda: bridges.sources.get("in")["paused"])
        bridges.sources.resume("in")
        outside.is_there = False
        await bridges.until(lambda: bridges.sources.get("in")["status"] == "disconnected")
        outside.is_there = True
        await bridges.until(lambda: bridges.sources.get("in")["status"] == "connected")
        await bridges.end()

    run(check())
