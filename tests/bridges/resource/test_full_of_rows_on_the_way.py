"""A buffer that is full of rows which are on the way, so that there is no oldest to make room."""

from __future__ import annotations

from tests.support.bridges import Outside, scripted_bridges
from tests.support.mqtt_server import on_loop
from tests.support.waiting import until


@on_loop
async def test_a_row_for_which_nothing_can_make_room_is_given_up_as_any_other() -> None:
    outside = Outside()
    outside.answers.clear()
    republish = {"kind": "republish", "args": {"topic": "given/up", "payload": "${n}"}}
    more = {"dead_letters": {"causes": ["queue_full"]}, "fallback_actions": [republish]}
    memory = {"max_buffer_bytes": "1KB", "buffer_mode": "memory_only"}
    async with scripted_bridges(outside, memory, action=more) as bridges:
        bridges.send_many(1)
        await bridges.until(lambda: bridges.counts()["inflight"] == 1)
        assert "takes no more" in str(bridges.send({"n": 1, "key": "k"}))
        assert bridges.counts()["dropped.queue_full"] == 1

        async def letters() -> list[tuple[str, int]]:
            shown = await bridges.actions.dead_letters("out", 10)
            return [(item["cause"], item["row"]["n"]) for item in shown["items"]]

        assert await until(letters) == [("queue_full", 1)]
        assert [(message.topic, message.payload) for message in bridges.published.messages] == [
            ("given/up", b"1")
        ]
        outside.answers.set()
        await bridges.until_sent(1)
