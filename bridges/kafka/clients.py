"""Additions to aiokafka's clients, by their private members.

A broker that is gone must not hold up what the others know. And a client must end although the cluster does not answer:
its own ``stop`` waits for the cluster; cut short it leaves tasks behind, which continue when the cluster is back: a
producer would send old batches after newer ones, and a consumer would take partitions of its group.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from contextvars import ContextVar
from errno import EACCES
from functools import partial
from typing import Any, Final, Self, TypeVar

import aiokafka.client
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.conn import AIOKafkaConnection

from bridges.resource.errors import BadSettings
from broker.config.ssrf import AddressDenied, AddressGuard, GuardedLoop

T = TypeVar("T")

# A broker that has not answered for so long is not waited for alone.
_NEXT_S: Final = 1.0


class GuardedId(str):
    """The identifier of a client, which aiokafka hands to each of its connections: by it they find their guard."""

    guard: AddressGuard

    def __new__(cls, text: str, guard: AddressGuard) -> Self:
        client_id = super().__new__(cls, text)
        client_id.guard = guard
        return client_id


class Connection(AIOKafkaConnection):  # type: ignore[misc]  # aiokafka has no types
    """aiokafka's, to an address that was checked, also where the cluster names the broker."""

    def __init__(self, host: str, port: int, *, client_id: str, **options: Any) -> None:
        super().__init__(host, port, client_id=client_id, **options)
        if isinstance(client_id, GuardedId):
            self._loop: Any = GuardedLoop(asyncio.get_running_loop(), client_id.guard)

    async def connect(self) -> Any:
        """See ``AIOKafkaConnection``, whose callers expect ``OSError``."""
        try:
            return await super().connect()
        except AddressDenied as error:
            raise PermissionError(EACCES, str(error)) from error


_opened: ContextVar[list[Any]] = ContextVar("connections that a search for the cluster has made")
_bootstrap = aiokafka.client.AIOKafkaClient.bootstrap


async def _noted(host: str, port: int, **options: Any) -> Any:
    connection = Connection(host, port, **options)
    await connection.connect()
    _opened.get([]).append(connection)
    return connection


async def _bootstrap_and_close(client: Any) -> None:
    """aiokafka's search for the cluster, cut short, leaves its connection open until it is garbage."""
    connections: list[Any] = []
    before = _opened.set(connections)
    try:
        await _bootstrap(client)
    except BaseException:
        for connection in connections:
            connection.close()
        raise
    finally:
        _opened.reset(before)


aiokafka.client.create_conn = _noted
aiokafka.client.AIOKafkaClient.bootstrap = _bootstrap_and_close


class Admin(AIOKafkaAdminClient):  # type: ignore[misc]  # aiokafka has no types
    """aiokafka's, which asks one broker at random, and waits for that one."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._silent: set[int] = set()
        """Brokers that gave no answer to the last question."""
        connect_side_by_side(self._client)

    async def _send_request(self, request: Any, node_id: int | None = None) -> Any:
        numbers = self._in_turn()
        if node_id is not None or not numbers:
            return await super()._send_request(request, node_id)
        return await first_answer(partial(self._answer_of, number, request) for number in numbers)

    async def _answer_of(self, number: int, request: Any) -> Any:
        try:
            answer = await super()._send_request(request, number)
        except BaseException:
            self._silent.add(number)
            raise
        self._silent.discard(number)
        return answer

    def _in_turn(self) -> Sequence[int]:
        """The brokers, those that answered the last question and have a connection first."""
        connections = self._client._conns
        connected = {
            number for (number, _), connection in connections.items() if connection.connected()
        }
        numbers = [broker.nodeId for broker in self._client.cluster.brokers()]
        random.shuffle(numbers)
        return sorted(numbers, key=lambda number: (number in self._silent, number not in connected))


def connect_side_by_side(client: Any) -> None:
    """Let an aiokafka client connect to several brokers at once.

    aiokafka makes one connection at a time: a broker that does not answer holds up those to the others until the
    request times out, again and again.
    """
    connect = client._get_conn
    locks: defaultdict[object, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def one_at_a_time(number: object, **options: Any) -> Any:
        async with locks[number]:
            return await connect(number, **options)

    client._get_conn_lock_value = nullcontext()
    client._get_conn = one_at_a_time


async def first_answer(asks: Iterable[Callable[[], Awaitable[T]]]) -> T:
    """The first that comes of at least one. Each is asked when those before have failed, or not answered for a while.

    Raises ``BadSettings`` at once, since others would say the same; else, where all fail, the last error.
    """
    waiting = iter(asks)
    ask = next(waiting, None)
    doing: set[asyncio.Future[T]] = set()
    error: BaseException | None = None
    try:
        while ask or doing:
            if ask:
                doing.add(asyncio.ensure_future(ask()))
            ask = next(waiting, None)
            done, doing = await asyncio.wait(
                doing, timeout=_NEXT_S if ask else None, return_when="FIRST_COMPLETED"
            )
            for answered in done:
                error = answered.exception()
                if error is None:
                    return answered.result()
                if isinstance(error, BadSettings):
                    raise error
    finally:
        for task in doing:
            task.cancel()
    assert error is not None
    raise error


_STOP_S: Final = 2.0
_CLOSE_S: Final = 1.0


async def end_producer(producer: Any) -> None:
    """End a producer; its unsent records are discarded. Takes seconds at most."""
    producer._closed = True
    sender = producer._sender.sender_task
    if sender is not None:
        sender.cancel()
    await _at_most(_CLOSE_S, producer.client.close)
    while sender is not None and not sender.done():
        # it waits for requests that are on the way, and their tasks for new metadata; each cancel ends one of them
        await asyncio.wait((sender,), timeout=_CLOSE_S)
        sender.cancel()
    if sender is not None and not sender.cancelled():
        sender.exception()
    await _at_most(_CLOSE_S, producer.client.close)  # connections that the sender made since


def lag_of(consumer: Any, ends: Mapping[TopicPartition, int]) -> int | None:
    """Number of records a consumer has not given yet, up to these ends or later ones that were fetched; None while an
    end or a position is not known."""
    subscription = consumer._subscription.subscription
    if subscription is None or subscription.assignment is None:
        return None
    lag = 0
    for place in subscription.assignment.tps:
        partition = subscription.assignment.state_value(place)
        end = ends.get(place)
        if end is None or not partition.has_valid_position:
            return None
        lag += max(0, end - partition.position, (partition.lso or 0) - partition.position)
    return lag


async def end_consumer(consumer: Any) -> None:
    """Leave the group and end a consumer."""
    await _at_most(_STOP_S, consumer.stop)
    if consumer._coordinator is not None:
        for stop in ("_stop_heartbeat_task", "_stop_commit_offsets_refresh_task"):
            if hasattr(consumer._coordinator, stop):
                await _at_most(_CLOSE_S, getattr(consumer._coordinator, stop))
    if consumer._fetcher is not None:
        await _at_most(_CLOSE_S, consumer._fetcher.close)
    await _at_most(_CLOSE_S, consumer._client.close)


async def _at_most(seconds: float, finish: Any) -> None:
    with suppress(Exception):
        async with asyncio.timeout(seconds):
            await finish()
