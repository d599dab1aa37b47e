"""Rows on their way through an action: order, batches, retries, what is given up, and counters that add up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from bridges.resource.contract import Answers
from bridges.resource.errors import NeverAgain, TryAgain
from broker.core.action import PushedBack
from broker.core.client import Client
from broker.core.message import Message
from tests.support.bridges import FAST, Outside, Settled, scripted_bridges
from tests.support.waiting import within

MODES = ["memory_only", "disk"]


def run(test: Any) -> None:
    asyncio.run(within(test, 120))


def by_key(outside: Outside) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for _, key, value in outside.arrived:
        found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("mode", MODES)
def test_rows_arrive_in_batches_in_the_order_of_each_key(mode: str) -> None:
    async def check() -> None:
        outside = Outside()
        async with scripted_bridges(outside, {"buffer_mode": mode}) as bridges:
            bridges.send_many(500, keys=7)
            await bridges.until_sent(500)
            assert all(values == sorted(values) for values in by_key(outside).values())
            assert sorted(outside.values) == list(range(500))
            assert max(outside.batches) == 10
            assert bridges.settled == [None] * 500

    run(check())


@pytest.mark.parametrize("mode", MODES)
def test_one_batch_on_the_way_keeps_all_rows_in_one_order(mode: str) -> None:
    async def check() -> None:
        outside = Outside()
        async with scripted_bridges(
            outside, {"buffer_mode": mode, "inflight_window": 1}
        ) as bridges:
            bridges.send_many(200, keys=7)
            await bridges.until_sent(200)
            assert outside.values == list(range(200))

    run(check())


@pytest.mark.parametrize("mode", MODES)
def test_rows_wait_while_the_target_is_away_and_arrive_in_order(mode: str) -> None:
    async def check() -> None:
        outside = Outside()
        outside.is_there = False
        async with scripted_bridges(outside, {"buffer_mode": mode}) as bridges:
            bridges.send_many(100)
            await bridges.until(
                lambda: "connection refused" in bridges.actions.get("out")["status_reason"]
            )
            shown = bridges.actions.get("out")
            assert shown["status"] == "disconnected"
            assert shown["status_reason"] == "connector: outside:1: connection refused"
            assert bridges.counts()["queuing"] + bridges.counts()["inflight"] == 100
            outside.is_there = True
            await bridges.until_sent(100)
            assert all(values == sorted(values) for values in by_key(outside).values())
            assert bridges.actions.get("out")["status"] == "connected"

    run(check())


def test_what_waits_on_disk_for_a_target_that_is_away_is_not_in_memory() -> None:
    async def check() -> None:
        outside = Outside()
        outside.is_there = False
        options = {"buffer_mode": "disk", "batch_size": 100, "inflight_window": 100}
        async with scripted_bridges(outside, options, is_pipelined=True) as bridges:
            for number in range(
                1200
            ):  # 24 MB, of which 16 MiB may be read ahead, and a read more of 4 MiB
                bridges.send({"n": number, "key": f"k{number % 3}", "text": "x" * 20_000})
                await asyncio.sleep(0)
            buffer = bridges.feature.resources.actions["out"].buffer
            await bridges.until(lambda: buffer.taken > 0)
            await bridges.until(
                lambda: "connection refused" in bridges.actions.get("out")["status_reason"]
            )
            assert buffer.taken * 20_000 <= 20 * 1024 * 1024
            assert (bridges.counts()["queuing"], bridges.counts()["inflight"]) == (1200, 0)
            outside.is_there = True
            await bridges.until_sent(1200)
            assert len(outside.arrived) == 1200

    run(check())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("pipelined", [False, True])
def test_a_connection_that_breaks_again_and_again_loses_nothing(mode: str, pipelined: bool) -> None:
    async def check() -> None:
        outside = Outside()
        async with scripted_bridges(
            outside, {"buffer_mode": mode}, is_pipelined=pipelined, lanes=1
        ) as bridges:
            for round in range(5):
                bridges.send_many(50, start=50 * round)
                await bridges.until_sent(50 * round + 20)
                outside.is_there = False
                bridges.send_many(0)
                await bridges.until(
                    lambda: bridges.connectors.get("plant")["status"] != "connected"
                )
                outside.is_there = True
                await bridges.until_sent(50 * round + 50)
            assert sorted(set(outside.values)) == list(range(250))
            assert bridges.counts()["failed"] == bridges.counts()["dropped"] == 0

    run(check())


def test_rows_that_must_be_tried_again_go_before_later_ones_of_their_key() -> None:
    async def check() -> None:
        outside = Outside()
        tries: dict[int, int] = {}

        def refuses(value: int) -> Exception | None:
            tries[value] = tries.get(value, 0) + 1
            return TryAgain("busy") if value % 10 == 0 and tries[value] < 3 else None

        outside.refuses = refuses
        options = {"batch_size": 1}
        async with scripted_bridges(outside, options) as bridges:
            bridges.send_many(60)
            await bridges.until_sent(60)
            assert all(values == sorted(values) for values in by_key(outside).values())
            counts = bridges.counts()
            assert (counts["retried"], counts["retried.success"], counts["retried.failed"]) == (
                6,
                6,
                0,
            )

    run(check())


def test_what_is_never_taken_is_given_up_alone_and_kept_with_the_reason() -> None:
    async def check() -> None:
        outside = Outside()
        outside.refuses = lambda value: NeverAgain(f"{value} is too large") if value == 7 else None
        async with scripted_bridges(outside, {"buffer_mode": "memory_only"}) as bridges:
            bridges.send_many(20)
            bridges.send({"poison": True})
            await bridges.until_sent(19)
            counts = await bridges.until(
                lambda: bridges.counts()["failed"] == 2 and bridges.counts()
            )
            assert counts["dead_letters.failed"] == 2
            await bridges.writer.committed()
            letters = await bridges.actions.dead_letters("out", 10)
            reasons = {item["reason"]: item["row"] for item in letters["items"]}
            assert reasons == {
                "7 is too large": {"n": 7, "key": "k1"},
                "the row is poison": {"poison": True},
            }
            assert bridges.actions.get("out")["status"] == "connected"
            assert [str(error) for error in bridges.settled if error] != []

    run(check())


def test_dead_letters_are_sent_again_once_the_cause_is_mended() -> None:
    async def check() -> None:
        outside = Outside()
        outside.refuses = lambda value: NeverAgain("no") if value >= 5 else None
        async with scripted_bridges(outside) as bridges:
            bridges.send_many(10)
            await bridges.until(lambda: bridges.counts()["failed"] == 5)
            await bridges.writer.committed()
            outside.refuses = lambda value: None
            sent = await bridges.actions.redrive("out", 3)
            assert (sent["sent"], sent["waiting"]) == (3, 2)
            await bridges.until_sent(8)
            assert (await bridges.actions.redrive("out", 100))["sent"] == 2
            await bridges.until_sent(10)
            assert sorted(outside.values) == list(range(10))
            assert bridges.actions.get("out")["dead_letters_waiting"] == 0

    run(check())


def test_dead_letters_are_bounded_and_can_be_purged() -> None:
    async def check() -> None:
        outside = Outside()
        outside.refuses = lambda value: NeverAgain("no")
        action = {"dead_letters": {"max_records": 5}}
        async with scripted_bridges(outside, {"inflight_window": 1}, action=action) as bridges:
            for number in range(20):
                bridges.send_many(1, start=number)
                await bridges.until_failed(number + 1)
                await bridges.services.storage.queues.open(
                    "dead-letters/scripted:out", max_records=1, max_bytes=1
                ).committed()
            letters = await bridges.actions.dead_letters("out", 100)
            assert [item["row"]["n"] for item in letters["items"]] == [15, 16, 17, 18, 19]
            assert bridges.actions.purge("out")["purged"] == 5
            assert (await bridges.actions.dead_letters("out", 100))["items"] == []

    run(check())


def test_retries_may_be_bounded() -> None:
    async def check() -> None:
        outside = Outside()
        outside.refuses = lambda value: TryAgain("busy") if value == 3 else None
        async with scripted_bridges(outside, {"max_retries": 2}) as bridges:
            bridges.send_many(10)
            await bridges.until_sent(9)
            counts = await bridges.until(
                lambda: bridges.counts()["failed"] == 1 and bridges.counts()
            )
            assert (counts["retried"], counts["retried.failed"]) == (1, 1)

    run(check())


@pytest.mark.parametrize("mode", MODES)
def test_rows_that_wait_too_long_are_dropped_as_expired(mode: str) -> None:
    async def check() -> None:
        outside = Outside()
        outside.is_there = False
        action = {"dead_letters": {"causes": ["expired"]}}
        async with scripted_bridges(
            outside, {"buffer_mode": mode, "request_ttl": "500ms"}, action=action
        ) as bridges:
            bridges.send_many(30)
            await bridges.until(lambda: bridges.counts()["dropped.expired"] == 30)
            assert bridges.counts()["dead_letters.expired"] == 30
            outside.is_there = True
            await bridges.until(lambda: bridges.actions.get("out")["status"] == "connected")
            bridges.send_many(1, start=100)
            await bridges.until_sent(1)
            assert outside.values == [100]

    run(check())


@pytest.mark.parametrize("mode", MODES)
def test_a_full_buffer_drops_the_oldest_and_counts_them(mode: str) -> None:
    async def check() -> None:
        outside = Outside()
        outside.is_there = False
        async with scripted_bridges(
            outside, {"buffer_mode": mode, "max_buffer_records": 50}
        ) as bridges:
            for number in range(200):
                bridges.send_many(1, start=number)
                if mode == "disk":
                    await bridges.writer.committed()
            counts = bridges.counts()
            assert counts["dropped.queue_full"] >= 150 - counts["inflight"]
            bridges.assert_adds_up()
            outside.is_there = True
            left = counts["queuing"] + counts["inflight"]
            await bridges.until_sent(left)
            assert 199 in outside.values
            assert bridges.counts()["dropped.queue_full"] == 200 - left

    run(check())


@pytest.mark.parametrize("mode", MODES)
def test_a_full_buffer_that_refuses_tells_whoever_publishes(mode: str) -> None:
    async def check() -> None:
        outside = Outside()
        outside.is_there = False
        options = {"buffer_mode": mode, "max_buffer_records": 50, "overflow": "refuse"}
        async with scripted_bridges(outside, options) as bridges:
            refused = 0
            for number in range(300):
                error = bridges.send({"n": number, "key": "k"})
                if error is not None:
                    assert isinstance(error, PushedBack)
                    refused += 1
            assert refused == bridges.counts()["dropped.queue_full"] > 0
            outside.is_there = True
            await bridges.until_sent(300 - refused)
            assert outside.values == list(range(300 - refused))

    run(check())


def test_a_missing_target_is_told_and_rows_are_given_up_or_wait() -> None:
    async def check(waits: bool) -> None:
        outside = Outside()
        outside.topics = set()
        async with scripted_bridges(
            outside, {"missing_target": "wait" if waits else "give_up"}
        ) as bridges:
            bridges.send_many(5)
            reason = "unhealthy target: no topic 't'"
            await bridges.until(lambda: bridges.actions.get("out")["status_reason"] == reason)
            assert bridges.connectors.get("plant")["status"] == "connected"
            if not waits:
                await bridges.until(lambda: bridges.counts()["failed"] == 5)
            outside.topics = {"t"}
            await bridges.until(lambda: bridges.actions.get("out")["status"] == "connected")
            await bridges.until_sent(5 if waits else 0)

    run(check(waits=True))
    run(check(waits=False))


def test_a_target_that_does_not_answer_is_given_up_and_the_rows_are_sent_again() -> None:
    async def check() -> None:
        outside = Outside()
        outside.answers.clear()
        async with scripted_bridges(outside, {"request_timeout": "100ms"}) as bridges:
            bridges.send_many(10)
            await bridges.until(
                lambda: (
                    "within 0.1 s"
                    in (bridges.actions.get("out")["last_error"] or {}).get("text", "")
                )
            )
            outside.answers.set()
            await bridges.until_sent(10)
            retried = bridges.counts()["retried"]
            assert retried >= 10
            assert retried % 10 == 0, "all of them, each time"

    run(check())


class Tidy(Outside):
    """Takes a moment to end what it is no longer wanted for, as libraries do."""

    async def take(self, records: Sequence[tuple[str, str, Any]]) -> Answers:
        try:
            return await super().take(records)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01 * (records[0][2] % 4))
            raise


def test_requests_that_are_ending_when_the_connection_is_given_up_are_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The time of all is over at once; the first to end has the connection given up, which ends the others."""

    async def check() -> None:
        outside = Tidy()
        outside.answers.clear()
        async with scripted_bridges(outside, {"request_timeout": "50ms"}) as bridges:
            bridges.send_many(40, keys=40)
            await bridges.until(lambda: bridges.feature.resources.supervisors["plant"].epoch >= 4)
            outside.answers.set()
            await bridges.until_sent(40)
        assert outside.connections == 0

    run(check())
    assert "bridge.member_failed" not in caplog.text


def test_rows_that_wait_are_sent_as_the_action_is_after_it_was_changed() -> None:
    async def check(mode: str) -> None:
        outside = Outside()
        outside.is_there = False
        async with scripted_bridges(outside, {"buffer_mode": mode}) as bridges:
            bridges.send_many(40)
            spec = {
                "name": "out",
                "type": "scripted",
                "connector": "plant",
                "parameters": {"topic": "u"},
            }
            bridges.actions.replace("out", {**spec, "resource_opts": {**FAST, "buffer_mode": mode}})
            bridges.connectors.replace(
                "plant", {"name": "plant", "type": "scripted", "password": "open sesame"}
            )
            outside.topics = {"u"}
            outside.is_there = True
            await bridges.connectors.restart("plant")
            await bridges.until_sent(40)
            assert {topic for topic, _, _ in outside.arrived} == {"u"}

    for mode in MODES:
        run(check(mode))


def test_a_buffer_moves_from_memory_to_disk_with_what_is_in_it() -> None:
    async def check() -> None:
        outside = Outside()
        outside.is_there = False
        async with scripted_bridges(outside) as bridges:
            bridges.send_many(40)
            spec = {"name": "out", "type": "scripted", "connector": "plant"}
            bridges.actions.replace(
                "out", {**spec, "resource_opts": {**FAST, "buffer_mode": "disk"}}
            )
            bridges.assert_adds_up()
            outside.is_there = True
            await bridges.until_sent(40)
            assert all(values == sorted(values) for values in by_key(outside).values())

    run(check())


def test_a_paused_action_takes_rows_and_a_stopped_one_drops_them() -> None:
    async def check() -> None:
        outside = Outside()
        async with scripted_bridges(outside) as bridges:
            await bridges.until(lambda: bridges.actions.get("out")["status"] == "connected")
            bridges.actions.pause("out")
            bridges.send_many(10)
            await asyncio.sleep(0)
            assert (outside.values, bridges.actions.get("out")["paused"]) == ([], True)
            bridges.actions.resume("out")
            await bridges.until_sent(10)
            await bridges.actions.stop("out")
            bridges.send_many(5, start=10)
            assert bridges.counts()["dropped.resource_stopped"] == 5
            assert bridges.actions.get("out")["status"] == "stopped"
            await bridges.actions.start("out")
            bridges.send_many(5, start=20)
            await bridges.until_sent(15)
            assert sorted(outside.values) == [*range(10), *range(20, 25)]

    run(check())


def test_draining_sends_what_waits_and_takes_nothing_more() -> None:
    async def check() -> None:
        outside = Outside()
        outside.answers.clear()
        async with scripted_bridges(outside) as bridges:
            bridges.send_many(100)
            draining = asyncio.create_task(bridges.actions.drain("out", 5.0))
            await bridges.until(lambda: bridges.actions.get("out")["status"] == "stopped")
            bridges.send_many(3, start=100)
            outside.answers.set()
            assert await draining == {
                "name": "out",
                "left": 0,
                "drained": True,
                "status": "stopped",
            }
            assert sorted(outside.values) == list(range(100))
            assert bridges.counts()["dropped.resource_stopped"] == 3

    run(check())


def test_fallbacks_take_what_is_given_up_and_have_no_fallbacks_themselves() -> None:
    async def check() -> None:
        outside = Outside()
        outside.topics = {"t", "spare"}
        outside.refuses = lambda value: NeverAgain("no") if value % 2 else None
        fallbacks = [
            {"kind": "reference", "type": "scripted", "name": "spare"},
            {"kind": "republish", "args": {"topic": "given/up", "payload": "${n}"}},
        ]
        async with scripted_bridges(outside) as bridges:
            spec = {"type": "scripted", "connector": "plant", "resource_opts": FAST}
            bridges.actions.create(
                {**spec, "name": "spare", "parameters": {"topic": "spare", "value": "${m}"}}
            )
            bridges.actions.replace("out", {**spec, "name": "out", "fallback_actions": fallbacks})
            outside.refuses = lambda value: (
                NeverAgain("no") if isinstance(value, int) and value % 2 else None
            )
            bridges.send_many(10)
            await bridges.until_sent(5)
            await bridges.until(lambda: bridges.counts("spare")["success"] == 5)
            assert sorted(m.payload for m in bridges.published.messages) == [
                b"1",
                b"3",
                b"5",
                b"7",
                b"9",
            ]
            assert {m.topic for m in bridges.published.messages} == {"given/up"}

    run(check())


def test_counters_begin_anew_and_still_add_up() -> None:
    async def check() -> None:
        outside = Outside()
        outside.is_there = False
        async with scripted_bridges(outside) as bridges:
            bridges.send_many(10)
            bridges.actions.reset_metrics("out")
            assert bridges.counts()["matched"] == 10
            outside.is_there = True
            await bridges.until_sent(10)
            bridges.assert_adds_up()

    run(check())


def test_a_fault_while_rows_are_told_of_does_not_stop_the_action() -> None:
    async def check() -> None:
        outside = Outside()
        async with scripted_bridges(outside, {"buffer_mode": "memory_only"}) as bridges:
            told: list[Any] = []

            class Faulty(Settled):
                def succeeded(self, rows: int) -> None:
                    told.append(rows)
                    raise AssertionError("a bug of whoever handed the row over")

            sink = bridges.services.endpoints.sinks.find("scripted:out")
            assert sink is not None
            message = Message("in", b"", 0, False, Client("c1"), 0)
            sink.write({"n": 1, "key": "k"}, message, Faulty())
            await bridges.until(lambda: told)
            bridges.send_many(10, start=2)
            await bridges.until(lambda: set(range(1, 12)) <= set(outside.values))

    run(check())


@pytest.mark.parametrize(
    ("members", "lost"),
    [
        ({}, {}),
        ({"dead_letters": {"causes": []}}, {"failed": 5}),
        (
            {
                "dead_letters": {"causes": []},
                "fallback_actions": [
                    {"kind": "republish", "args": {"topic": "t", "payload": "${n}"}}
                ],
            },
            {},
        ),
        (
            {
                "dead_letters": {"causes": []},
                "fallback_actions": [{"kind": "reference", "type": "scripted", "name": "gone"}],
            },
            {"failed": 5},
        ),
    ],
    ids=["dead-letters", "none", "fallback", "failing-fallback"],
)
def test_rows_that_nothing_holds_count_as_lost(
    members: dict[str, Any], lost: dict[str, int]
) -> None:
    async def check() -> None:
        outside = Outside()
        outside.refuses = lambda value: NeverAgain("no")
        async with scripted_bridges(outside, action=members) as bridges:
            bridges.send_many(5)
            await bridges.until(lambda: bridges.counts()["failed"] == 5)
            assert bridges.feature.lost_rows() == lost
            assert bridges.counts()["lost"] == sum(lost.values())
            bridges.actions.reset_metrics("out")
            assert bridges.feature.lost_rows() == {}

    run(check())


def test_dead_letters_that_make_room_count_as_lost() -> None:
    async def check() -> None:
        outside = Outside()
        outside.refuses = lambda value: NeverAgain("no")
        async with scripted_bridges(
            outside, action={"dead_letters": {"max_records": 2}}
        ) as bridges:
            for number in range(1, 6):
                bridges.send_many(1)
                await bridges.until_failed(number)
                await bridges.writer.committed()
            waiting = bridges.actions.get("out")["dead_letters_waiting"]
            assert bridges.feature.lost_rows() == {"dead_letters_full": 5 - waiting}
            assert waiting == 2

    run(check())
