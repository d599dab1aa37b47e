"""Keys of requests: while one runs, when they are old, and how many are kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from starlette.requests import Request
from starlette.responses import Response

from broker.core.values import Values
from tests.support.mqtt_server import MovedClock
from ui.api.idempotency import LIFE_S, MOST_ANSWER_BYTES, MOST_KEYS, IdempotencyKeys
from ui.api.problems import ApiProblem


def _request(key: str) -> Request:
    headers = [(b"idempotency-key", key.encode())]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/streams",
        "query_string": b"",
        "headers": headers,
    }
    return Request({**scope, "server": ("localhost", 80), "scheme": "http", "root_path": ""})


class Counted:
    """Counts how often it was done."""

    def __init__(self, status: int = 201, body: bytes = b"{}") -> None:
        self.done, self._status, self._body = 0, status, body

    async def __call__(self) -> Response:
        self.done += 1
        return Response(self._body, self._status)


async def _refuse_while_the_first_runs() -> None:
    keys, go, act = IdempotencyKeys(Values(), MovedClock()), asyncio.Event(), Counted()

    async def slow() -> Response:
        await go.wait()
        return await act()

    first = asyncio.create_task(keys.once(_request("k"), {"a": 1}, slow))
    await asyncio.sleep(0)
    for body, status in (({"a": 1}, 409), ({"a": 2}, 422)):
        with pytest.raises(ApiProblem) as refused:
            await keys.once(_request("k"), body, act)
        assert refused.value.status == status
    go.set()
    await first
    again = await keys.once(_request("k"), {"a": 1}, act)
    assert (again.headers["idempotent-replayed"], act.done) == ("true", 1)


def test_a_request_whose_first_one_still_runs_is_refused() -> None:
    asyncio.run(_refuse_while_the_first_runs())


@pytest.mark.parametrize(
    ("act", "age_s", "others", "times"),
    [
        (Counted, LIFE_S - 1, 0, 1),
        (Counted, LIFE_S, 0, 2),
        (Counted, 0, MOST_KEYS - 1, 1),
        (Counted, 0, MOST_KEYS, 2),
        (lambda: Counted(status=422), 0, 0, 2),
        (lambda: Counted(body=b"x" * (MOST_ANSWER_BYTES + 1)), 0, 0, 2),
    ],
)
def test_answers_are_kept_for_a_day_within_bounds_and_only_of_what_was_done(
    act: Callable[[], Counted], age_s: int, others: int, times: int
) -> None:
    assert asyncio.run(_times_done(act(), age_s, others)) == times


async def _times_done(counted: Counted, age_s: int, others: int) -> int:
    values, clock = Values(), MovedClock()
    keys = IdempotencyKeys(values, clock)
    await keys.once(_request("k"), {}, counted)
    for number in range(others):
        await keys.once(_request(str(number)), {}, Counted())
    clock.move(age_s)
    await IdempotencyKeys(values, clock).once(_request("k"), {}, counted)  # as after a restart
    assert len(values.names("")) <= MOST_KEYS
    return counted.done
