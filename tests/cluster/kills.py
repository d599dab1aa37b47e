"""Rounds of traffic over several cells, in which cells are killed or stopped and the supervisor is killed, each
followed by an account of what was promised.

To what ``tests.end_to_end.kills`` looks at come the promises of several cells: clients of a cell that lives stay
connected, and those without a session on disk get all that is acknowledged meanwhile; each message is one row of a
rule; what came to a member of a share group with QoS 2 comes to no member again.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Final

import psutil

from broker.cluster.directories import cell_directory
from broker.codec.packets import Connect, Publish, SubscriptionRequest
from broker.core import reason
from broker.core.cells import Place
from broker.storage.rocksdb.store import RocksStore
from broker.streams.catalogue import stored_streams
from tests.end_to_end.kills import DEADLINE_S, World
from tests.end_to_end.memories import (
    BrokenPromise,
    Lasting,
    Publisher,
    Refused,
    Sent,
    Subscriber,
)
from tests.support.node import Node
from tests.support.waiting import within

CELLS: Final = 3
CONFIG: Final = "lake.run_spark = false\noverload.enable = false\n"
_MOST_PACKETS: Final = 1500
_AWAY: Final = (reason.SERVER_UNAVAILABLE, 3)
_GONE: Final = (ConnectionError, OSError, TimeoutError, asyncio.IncompleteReadError)
ROWS: Final = "rows"
"""Name of the rule, and of its stream."""
# Faults by how often each happens, once all have happened.
FAULTS: Final = {"cell": 8, "cells": 2, "supervisor": 2, "both": 2, "stop": 4}


class Clean(Subscriber):
    """A subscriber without a session on disk."""

    is_clean = True

    def __init__(
        self,
        client_id: str,
        noticed: Callable[[], None],
        chance: Random,
        *filters: SubscriptionRequest,
        may_move: bool = False,
    ) -> None:
        super().__init__(client_id, 5, noticed, chance, may_move=may_move)
        self.filters = filters

    def resume(self) -> None:
        super().resume()
        for remembered in (self.received, self._open, self._unacked, self._unreleased, self.last):
            remembered.clear()


class Live(Clean):
    """A subscriber that gets what is acknowledged while it is connected."""

    def __init__(
        self, client_id: str, qos: int, noticed: Callable[[], None], chance: Random
    ) -> None:
        filters = [SubscriptionRequest(name, qos) for name in ("k/#", "l/#")]
        super().__init__(client_id, noticed, chance, *filters)
        self.is_prompt = True

    def settle(self) -> None:
        """It is asked for what came in one round."""
        super().settle()
        self.received.clear()

    def _take_at_least_once(self, packet: Publish) -> None:
        """A publisher whose cell was killed may send a message again that came already."""
        if packet.payload not in self.received:
            self._receive(packet)


class Group:
    """What the members of a share group got, all together."""

    def __init__(self, name: str, may_be_late: Callable[[Lasting], bool]) -> None:
        """``may_be_late`` says of which members the connection was lost with messages on their way: these may come
        when others have them."""
        self.name = name
        self._may_be_late = may_be_late
        self.received: set[bytes] = set()
        self._once: dict[bytes, tuple[str, int]] = {}
        """QoS 2: the session that has the message, by client and by connection where that ends it."""

    def take(self, member: Subscriber, packet: Publish) -> None:
        """A message came to a member."""
        session = (member.client_id, member.connections if member.is_clean else 0)
        owner = self._once.get(packet.payload)
        if (
            owner is not None
            and (packet.qos, session) != (2, owner)
            and not (packet.qos == 1 and self._may_be_late(member))
        ):
            raise BrokenPromise(
                f"{self.name}: {session} got {packet}, which {owner} has with QoS 2"
            )
        if packet.qos == 2:
            self._once[packet.payload] = session
        self.received.add(packet.payload)


class Member(Subscriber):
    """A member of a share group with a session on disk, and with so small a window that other cells' members get
    messages, too."""

    receive_maximum = 4
    group: Group
    filters: tuple[SubscriptionRequest, ...]

    def _take_publish(self, packet: Publish) -> None:
        self.group.take(self, packet)
        super()._take_publish(packet)


class CleanMember(Clean, Member):
    """A member of a share group with a session in memory."""


class CellWorld(World):
    """A broker of several cells, its clients, and what they were told."""

    def __init__(self, node: Node, seed: int) -> None:
        super().__init__(node, seed)
        self.place = Place(0, node.workers, Path())
        noticed, chance = self._notice, self.chance
        self.publishers = []
        for cell in range(node.workers):
            for topic, version, qos in (("k", 4, 1), ("k", 5, 2), ("l", 5, 1), ("l", 4, 2)):
                name = self._name(f"p{topic}{qos}", cell)
                self.publishers.append(Publisher(name, version, noticed, _making(name, topic, qos)))
        self.subscribers = [
            Subscriber(self._name("s", cell), 4 + cell % 2, noticed, chance)
            for cell in range(node.workers)
        ]
        self.live = [
            Live(self._name(f"live{qos}", cell), qos, noticed, chance)
            for cell in range(node.workers)
            for qos in (1, 2)
        ]
        self.group = Group("g", self._may_be_late)
        lasting = [self._member(self.group, qos, cell) for qos, cell in ((1, 0), (2, 1), (2, 2))]
        self.mixed = Group("h", self._may_be_late)
        """One member has a session on disk."""
        lasting.append(self._member(self.mixed, 2, 0))
        self.lasting = lasting
        self.members = [*lasting]
        self.clean_members = [
            self._clean_member(self.mixed, qos, cell) for qos, cell in ((1, 2), (2, 1), (2, 2))
        ]
        self._victims: set[int] = set()
        self._struck = asyncio.Event()
        self._marks: dict[Publisher, int] = {}
        """Number of messages that each publisher was told of before this round."""
        self.faults: Counter[str] = Counter()
        self.lost: set[bytes] = set()
        """Messages of QoS 2 that came to no member of the mixed group."""

    def _member(self, group: Group, qos: int, cell: int) -> Member:
        name = self._name(f"{group.name}{qos}", cell)
        member = Member(name, 5, self._notice, self.chance, may_move=True)
        member.group = group
        member.filters = (_share(group, qos),)
        return member

    def _clean_member(self, group: Group, qos: int, cell: int) -> CleanMember:
        name = self._name(f"{group.name}clean{qos}", cell)
        member = CleanMember(name, self._notice, self.chance, _share(group, qos), may_move=True)
        member.group = group
        return member

    def _name(self, prefix: str, cell: int) -> str:
        return next(
            name
            for name in (f"{prefix}-{number}" for number in count())
            if self.place.cell_of(name) == cell
        )

    def _all(self) -> list[Lasting]:
        return [
            *self.publishers,
            self.keeper,
            *self.subscribers,
            self.absent,
            *self.members,
            self.churner,
            *self.live,
            *self.clean_members,
        ]

    async def begin(self) -> None:
        for subscriber in (*self.subscribers, self.absent):
            await subscriber.connect(self._port)
            await subscriber.subscribe(SubscriptionRequest("k/#", 2), SubscriptionRequest("w/#", 2))
        await self.absent.leave()
        for member in self.lasting:
            await member.connect(self._port)
            await member.subscribe(*member.filters)
        await self._come_back([client for client in self._all() if client is not self.absent])
        await self._begin_churn()

    async def round(self, number: int) -> None:
        """Traffic with a fault in it, and the account."""
        self.figures.rounds += 1
        self._marks = {one: len(one.acknowledged) for one in self.publishers}
        connections = {one: one.connections for one in self.live}
        await self._leave_wills(number)
        self._strike_after(self.chance.randint(1, _MOST_PACKETS))
        for subscriber in (*self.subscribers, *self.members, *self.clean_members):
            subscriber.is_prompt = False
        for publisher in self._publishing():
            publisher.go_on()
        self.churner.is_churning = True
        self.churner.change()
        await within(self._struck.wait(), DEADLINE_S)
        for client in self._of_victims(self._all()):
            await within(client.ended(), DEADLINE_S)
        for publisher in self._publishing():
            publisher.is_publishing = False
        self.churner.is_churning = False
        for dying in self.will_clients:
            await dying.close()
        self.will_clients.clear()
        await self._repair()
        await self._account(connections, is_complete=number % 5 == 4)

    async def _repair(self) -> None:
        """Start what was killed and does not start by itself."""
        assert self.node.process is not None
        if self.node.process.returncode is not None:
            await asyncio.to_thread(self.node.start)

    def _publishing(self) -> list[Publisher]:
        return [*self.publishers, self.keeper]

    def _of_victims(self, clients: list[Lasting]) -> Iterator[Lasting]:
        return (one for one in clients if self.place.cell_of(one.client_id) in self._victims)

    def _links_were_late(self) -> bool:
        """Whether cells did not reach each other for so long that live messages for another one were dropped."""
        return False

    def _cells_may_have_ended(self) -> bool:
        return bool(self._victims)

    def _may_have_ended(self, client: Lasting) -> bool:
        """Whether the fault of this round may have cut off a client."""
        return self.place.cell_of(client.client_id) in self._victims

    def _may_be_late(self, client: Lasting) -> bool:
        """Whether the connection of a client was lost with messages on their way."""
        del client
        return False

    # -- faults --

    def _strike_after(self, packets: int) -> None:
        self._victims.clear()
        self._struck.clear()
        self._packets_left = packets

    def _kill(self) -> None:
        """Called once the packets of the round have come."""
        kind = self._next_of(FAULTS)
        cells = list(range(self.place.count))
        self.chance.shuffle(cells)
        if kind == "stop":
            stopped = self.node.cell(cells[0])
            stopped.suspend()
            asyncio.get_running_loop().call_later(
                self.chance.uniform(0.1, 0.9), self._go_on, stopped
            )
            return
        if kind in ("supervisor", "both"):
            self.node.kill_supervisor()
        if kind != "supervisor":
            for cell in cells[: 2 if kind == "cells" else 1]:
                self.node.cell(cell).send_signal(signal.SIGKILL)
                self._victims.add(cell)
        self._struck.set()

    def _next_of(self, faults: Mapping[str, int]) -> str:
        """A fault that has not happened, or else any, by how often each does."""
        kinds = [kind for kind in faults if kind not in self.faults]
        kinds = kinds or self.chance.choices([*faults], [*faults.values()])
        kind = self.chance.choice(kinds)
        self.faults[kind] += 1
        self.figures.kills += 1
        return kind

    def _go_on(self, stopped: psutil.Process) -> None:
        stopped.resume()
        self._struck.set()

    # -- the account --

    async def _come_back(self, clients: list[Lasting]) -> None:
        await asyncio.gather(*map(self._connected, clients))

    async def _connected(self, client: Lasting) -> None:
        """Connect; while its cell is away the client is refused, or its connection ends."""
        if isinstance(client, Subscriber):
            client.is_prompt = True
        for _ in range(100):
            if client.is_connected:
                break
            try:
                await client.connect(self._port)
            except Refused as refused:
                if refused.code not in _AWAY:
                    raise
            except _GONE:
                await asyncio.sleep(0.1)
            else:
                if isinstance(client, Clean):
                    await client.subscribe(*client.filters)
        if not client.is_connected:
            raise BrokenPromise(f"{client.client_id} cannot connect again")

    async def _account(self, connections: dict[Live, int], *, is_complete: bool) -> None:
        stayed = [one for one in self.live if not self._may_have_ended(one)]
        for one in stayed:
            one.check()
            if not one.is_connected or one.connections != connections[one]:
                raise BrokenPromise(f"{one.client_id} was cut off, and its cell lives")
        following = [*self.subscribers, *([self.absent] if is_complete else [])]
        others = [one for one in self._all() if one is not self.absent or is_complete]
        await self._come_back(others)
        await self._check_subscriptions()
        await self._until(
            lambda: all(one.is_settled for one in self._publishing()), "acknowledgements"
        )
        told = self._told("k")
        for subscriber in (*following, *self.members, *self.clean_members):
            subscriber.answer()
        expected = told | self.wills_told
        await self._until(
            lambda: all(expected <= one.received.keys() for one in following),
            lambda: _missing(expected, following),
        )
        due_to_mixed = told - self.lost
        if self._cells_may_have_ended() or any(map(self._may_have_ended, self.clean_members)):
            # QoS 2 that a member in memory may have seen is dropped when its session ends
            due_to_mixed = {payload for payload in told if Sent.of(payload).qos == 1}
        for group, due in ((self.group, told), (self.mixed, due_to_mixed)):
            await self._until(partial(_has, group, due), partial(_lacks, group, due))
        self.lost = told - self.mixed.received
        await self._check_retained()
        at_live = set() if self._links_were_late() else self._told_now()
        await self._until(
            lambda: all(at_live <= one.received.keys() for one in stayed),
            lambda: _missing(at_live, stayed),
        )
        self._settle(told, following)
        for one in self.live:
            one.settle()
        if is_complete:
            await self.absent.leave()

    async def _check_retained(self) -> None:
        """A new subscriber in any cell gets the retained messages of all cells."""
        told = self.keeper.told()
        cell = self.chance.randrange(self.place.count)
        held: dict[str, bytes] = {}
        async with await self._guest(Connect(self._name("reader", cell), 5)) as reader:
            await reader.subscribe(SubscriptionRequest("r/#"))
            try:
                while held != told:
                    packet = await reader.expect(Publish)
                    held[packet.topic] = packet.payload
            except TimeoutError:
                raise BrokenPromise(f"retained messages are {held}, told {told}") from None
            await reader.silence()

    def _told(self, topic: str) -> set[bytes]:
        return {
            publish.payload
            for publisher in self.publishers
            for publish in publisher.acknowledged
            if publish.topic.startswith(topic)
        }

    def told_rows(self) -> list[bytes]:
        """All that was acknowledged and is to be a row, each as often as it was."""
        return [
            publish.payload
            for publisher in self.publishers
            for publish in publisher.acknowledged
            if publish.topic.startswith("k")
        ]

    def _told_now(self) -> set[bytes]:
        """All that was acknowledged in this round."""
        return {
            publish.payload
            for publisher in self.publishers
            for publish in publisher.acknowledged[self._marks[publisher] :]
        }


def _share(group: Group, qos: int) -> SubscriptionRequest:
    return SubscriptionRequest(f"$share/{group.name}/k/#", qos)


def _making(name: str, topic: str, qos: int) -> Callable[[int], Publish]:
    def make(number: int) -> Publish:
        sent = Sent(name, f"{topic}/{name}/{'ab'[number // 3 % 2]}", qos, number)
        return Publish(sent.topic, sent.payload, sent.qos)

    return make


def _missing(expected: set[bytes], subscribers: list[Subscriber] | list[Live]) -> str:
    lacking = {one.client_id: sorted(expected - one.received.keys()) for one in subscribers}
    return (
        f"never came: { {name: (len(lost), lost[:5]) for name, lost in lacking.items() if lost} }"
    )


def _has(group: Group, due: set[bytes]) -> bool:
    return due <= group.received


def _lacks(group: Group, due: set[bytes]) -> str:
    return f"never came to the group {group.name}: {sorted(due - group.received)[:5]}"


def define(node: Node, actions: Sequence[str] = ()) -> None:
    """A rule that writes each message below ``k`` to a stream, and to other actions."""
    node.call("POST", "/streams", {"name": ROWS})
    node.call("POST", "/rules", {
        "name": ROWS, "sql": 'SELECT payload FROM "k/#"', "actions": [{"type": "stream", "stream": ROWS}, *actions],
    })  # fmt: skip


def check_rows(found: Counter[bytes], told: Sequence[bytes]) -> None:
    """Each message that is to be a row is one, and there are no others."""
    wrong = {payload: found[payload] for payload in told if found[payload] != 1}
    assert not wrong, (
        f"{len(wrong)} of {len(told)} messages are not one row: {list(wrong.items())[:5]}"
    )
    assert sum(found.values()) == len(told)


def rows(data_dir: Path, cells: int) -> Counter[bytes]:
    """How often each payload is in the stream, over all cells, which do not run."""
    found: Counter[bytes] = Counter()
    for cell in range(cells):
        store = RocksStore(cell_directory(data_dir, cell), "os")
        try:
            log = next(log for name, log, _ in stored_streams(store) if name == ROWS)
            for shard in (shard for shard in store.shards() if shard.log == log):
                position = 0
                while part := store.read(shard, position, 1000):
                    position = part[-1][0] + 1
                    found.update(
                        json.loads(record.payload)["payload"].encode() for _, record in part
                    )
        finally:
            store.close()
    return found
