"""Bounds of the audit log: size, age, long values, deleted objects; and its order when the clock is set back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from broker.admin.audit_log import (
    MOST_ENTRY_BYTES,
    SEGMENT_BYTES,
    UNDO_S,
    AuditedChange,
    AuditLog,
    AuditRecord,
    DeletedObject,
    change_of,
)
from broker.core import jsontext
from broker.core.errors import NotFound, Unavailable
from broker.observe.settings import AuditLogSettings
from broker.storage.memory import MemoryStore
from broker.storage.store import Batch, Committed
from broker.storage.writer import Writer
from tests.support.mqtt_server import MovedClock

SETTINGS = AuditLogSettings.model_validate({"max_bytes": "4MB", "max_age": "1h"})


def changed(text: str) -> AuditedChange:
    change = change_of(
        "rule", "hot", {"sql": "a", "inner": {"~/": 1}}, {"sql": text, "inner": {"~/": 2}}
    )
    assert change is not None
    return change


def record(number: int, text: str = "b") -> AuditRecord:
    return AuditRecord(actor="a", origin="api", operation=f"op{number}", changes=[changed(text)])


def test_an_entry_of_many_objects_has_room_for_the_first_ones_and_counts_the_others() -> None:
    async def many(log: AuditLog, writer: Writer, _clock: MovedClock) -> None:
        changes = [
            change_of("user", f"u{number}", None, {"name": f"u{number}"}) for number in range(5_000)
        ]
        entry = AuditRecord(
            actor="a",
            origin="api",
            operation="importUsers",
            changes=[c for c in changes if c],
            omitted=7,
        )
        id = log.record(entry)
        await writer.committed()
        view = log.get(id)
        assert len(jsontext.encode(view)) < MOST_ENTRY_BYTES + 2_000
        assert len(view["changes"]) + view["omitted"] == 5_007
        assert [change["name"] for change in view["changes"][:2]] == ["u0", "u1"]
        assert view["summary"] == "created, with 5,006 more"
        [longest] = [
            change_of("rule", "r", None, {f"{number:05}{'k' * 900}": 1 for number in range(900)})
        ]
        assert longest is not None
        id = log.record(
            AuditRecord(actor="a", origin="api", operation="putRule", changes=[longest])
        )
        await writer.committed()
        assert len(jsontext.encode(log.get(id))) < MOST_ENTRY_BYTES + 2_000
        assert log.get(id)["changes"][0]["differences"][-1]["is_cut"]

    in_a_loop(many)


def in_a_loop(test: Callable[[AuditLog, Writer, MovedClock], Awaitable[None]]) -> None:
    async def main() -> None:
        writer = Writer(MemoryStore(), asyncio.get_running_loop())
        clock = MovedClock()
        await test(AuditLog(writer, clock, SETTINGS), writer, clock)
        await writer.close()

    asyncio.run(main())


async def operations(log: AuditLog) -> list[str]:
    page = await log.page(100_000)
    return [row["operation"] for row in page["items"]]


def test_differences_have_pointers_and_nothing_changed_is_no_change() -> None:
    assert [(d["pointer"], d["before"], d["after"]) for d in changed("b")["differences"]] == [
        ("/sql", "a", "b"),
        ("/inner/~0~1", 1, 2),
    ]
    assert change_of("rule", "hot", {"a": 1}, {"a": 1}) is None


def test_differences_that_are_too_many_are_marked_as_incomplete() -> None:
    change = change_of("rule", "hot", {}, {str(number): number for number in range(5_000)})
    assert change is not None
    assert len(change["differences"]) == 1_000
    assert [difference["is_cut"] for difference in change["differences"]] == [False] * 999 + [True]


def test_the_oldest_segments_go_when_the_log_is_full_and_a_restart_knows_the_rest() -> None:
    async def test(log: AuditLog, writer: Writer, clock: MovedClock) -> None:
        for number in range(120):
            await log.recorded(record(number, "x" * 50_000))
        kept = await operations(log)
        assert kept == [f"op{number}" for number in range(119, 119 - len(kept), -1)]
        assert 3 * SEGMENT_BYTES / 51_000 <= len(kept) <= SETTINGS.max_bytes / 50_000
        again = AuditLog(writer, clock, SETTINGS)
        assert await operations(again) == kept
        await again.recorded(record(120))
        assert (await operations(again))[:2] == ["op120", "op119"]

    in_a_loop(test)


def test_entries_that_are_too_old_are_not_shown() -> None:
    async def test(log: AuditLog, writer: Writer, clock: MovedClock) -> None:
        await log.recorded(record(1))
        id = (await log.page(1))["items"][0]["id"]
        assert log.get(id)["operation"] == "op1"
        clock.move(3601)
        assert await operations(log) == []
        with pytest.raises(NotFound):
            log.get(id)

    in_a_loop(test)


def test_a_clock_that_is_set_back_changes_no_order() -> None:
    async def test(log: AuditLog, writer: Writer, clock: MovedClock) -> None:
        await log.recorded(record(1))
        clock.move(-60)
        again = AuditLog(writer, clock, SETTINGS)
        await again.recorded(record(2))
        assert await operations(again) == ["op2", "op1"]
        latest, first = (await again.page(2))["items"]
        assert latest["at"] < first["at"], "the time that the clock has"

    in_a_loop(test)


def test_values_that_are_too_long_are_left_out_the_longest_first() -> None:
    async def test(log: AuditLog, writer: Writer, clock: MovedClock) -> None:
        await log.recorded(record(1, "x" * 3_000_000))
        entry = log.get((await log.page(1))["items"][0]["id"])
        long, short = entry["changes"][0]["differences"]
        assert (long["pointer"], long["after"], long["is_cut"]) == ("/sql", None, True)
        assert (short["after"], short["is_cut"]) == (2, False)
        assert len(jsontext.encode(entry)) < MOST_ENTRY_BYTES

    in_a_loop(test)


def test_deleted_objects_are_held_for_ten_minutes_and_within_bounds() -> None:
    async def test(log: AuditLog, writer: Writer, clock: MovedClock) -> None:
        ids = []
        for number in range(12):
            deleted = DeletedObject("schema", "s", {"source": "x" * 4_000_000}, [])
            ids.append(
                log.record(
                    AuditRecord(actor="a", origin="api", operation=f"op{number}", deleted=[deleted])
                )
            )
        held = [bool(log.deleted(id)) for id in ids]
        assert held == [False] * 4 + [True] * 8
        clock.move(UNDO_S)
        assert not any(log.deleted(id) for id in ids)

    in_a_loop(test)


def test_a_disk_that_takes_nothing_does_not_fail_the_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class FullStore(MemoryStore):
        def commit(self, batch: Batch) -> Committed:
            raise Unavailable("disk full")

    async def main() -> None:
        writer = Writer(FullStore(), asyncio.get_running_loop())
        await AuditLog(writer, MovedClock(), SETTINGS).recorded(record(1))

    asyncio.run(main())
    assert any("audit_log.not_written" in line.getMessage() for line in caplog.records)
