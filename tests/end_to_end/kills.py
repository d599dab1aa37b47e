"""Rounds of traffic that end with ``kill -9`` of a bare broker, each followed by an account of what was promised.

What a round looks at, by the numbers of ``docs/what-is-promised.md``: D1 and D2 every subscriber has what publishers
were told is taken, in order, QoS 2 once; D3 retained messages; D4 subscriptions as told; D5 and D6 identifiers of what
is sent again; D7 wills whose delay passed and sessions that expired while the broker was away.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final

from broker.codec.packets import (
    Connect,
    Disconnect,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubscriptionRequest,
    Will,
)
from tests.end_to_end.memories import (
    HOUR_S,
    BrokenPromise,
    Churner,
    Lasting,
    Publisher,
    Sent,
    Subscriber,
)
from tests.support.node import Node
from tests.support.waiting import within
from tests.support.wire import WireClient

DEADLINE_S: Final = 60.0
CONFIG: Final = "lake.run_spark = false\noverload.enable = false\n"
MOST_PACKETS: Final = 1500
"""A kill comes after so many packets to all clients at most."""
TOPICS: Final = 20
PROBE_END: Final = "c/end"
"""Topic of the last message of a probe."""
WILL_DELAY_S: Final = 1
SHORT_EXPIRY_S: Final = 1
_GONE: Final = (ConnectionError, OSError, TimeoutError, asyncio.IncompleteReadError)


@dataclass(slots=True)
class Figures:
    """What the rounds did, for the report."""

    rounds: int = 0
    kills: int = 0
    acknowledged: int = 0
    received: int = 0
    resent: int = 0
    wills: int = 0
    slowest_start_s: float = 0.0


@dataclass(slots=True)
class _Retained:
    """One topic of the retained set: what was acknowledged last, and what was sent after that; empty is deleted."""

    told: bytes = b""
    sent: list[bytes] = field(default_factory=list)


class Keeper(Publisher):
    """Publishes and deletes retained messages, and knows what may be there."""

    def __init__(self, noticed: Callable[[], None], chance: Random) -> None:
        super().__init__("keeper", 5, noticed, self._next, 5)
        self._chance = chance
        self.topics = {f"r/{number}": _Retained() for number in range(TOPICS)}

    def _next(self, number: int) -> Publish:
        topic = self._chance.choice(list(self.topics))
        payload = b"" if self._chance.random() < 0.4 else b"v%d" % number
        self.topics[topic].sent.append(payload)
        return Publish(topic, payload, 1, retain=True)

    def told(self) -> dict[str, bytes]:
        """Take in what was acknowledged by now; the retained set as told."""
        for publish in self.acknowledged:
            topic = self.topics[publish.topic]
            topic.told = publish.payload
            topic.sent.pop(0)
        self.acknowledged.clear()
        return {name: topic.told for name, topic in self.topics.items() if topic.told}

    def check(self) -> None:
        super().check()
        self.told()

    def check_held(self, held: dict[str, bytes]) -> None:
        """Each topic has what was acknowledged last, or something sent after that."""
        self.told()
        for name, topic in self.topics.items():
            if held.get(name, b"") not in (topic.told, *topic.sent):
                raise BrokenPromise(
                    f"retained {name} is {held.get(name)!r}, told {topic.told!r}, then {topic.sent}"
                )


class World:
    """A broker, its clients, and what they were told. Leave it by ``close``."""

    def __init__(self, node: Node, seed: int) -> None:
        self.node, self.seed, self.chance = node, seed, Random(seed)
        self.figures = Figures()
        self._packets, self._packets_left = 0, -1
        self._kills = 0
        """Since the start."""
        noticed, chance = self._notice, self.chance
        self.publishers = [
            Publisher(name, version, noticed, _making(name, qos))
            for name, version, qos in [
                ("p1", 4, (1,)), ("p2", 4, (2,)), ("p3", 5, (1,)), ("p4", 5, (2,)), ("p5", 5, (1, 2)),
            ]
        ]  # fmt: skip
        self.keeper = Keeper(noticed, chance)
        self.subscribers = [
            Subscriber("s1", 5, noticed, chance),
            Subscriber("s2", 4, noticed, chance),
            Subscriber("s3", 5, noticed, chance),
        ]
        self.absent = Subscriber("absent", 5, noticed, chance)
        self.members = [Subscriber(f"m{n}", 5 - n, noticed, chance, may_move=True) for n in (0, 1)]
        self.churner = Churner("churner", noticed, chance, [f"c/{number}" for number in range(8)])
        self.will_clients: list[WireClient] = []
        self.wills_told: set[bytes] = set()
        self.wills_late: set[bytes] = set()
        """Those that may come much later than they are due."""
        self.sessions_left: list[tuple[str, float]] = []

    # -- the rounds --

    async def begin(self) -> None:
        """Make the subscriptions that never change."""
        port = self._port
        for subscriber, qos in [*zip(self.subscribers, (2, 1, 1), strict=True), (self.absent, 2)]:
            await subscriber.connect(port)
            await subscriber.subscribe(
                SubscriptionRequest("k/#", qos), SubscriptionRequest("w/#", qos)
            )
        for member, qos in zip(self.members, (1, 2), strict=True):
            await member.connect(port)
            await member.subscribe(SubscriptionRequest("$share/g/k/#", qos))
        await self.absent.leave()
        for client in (*self.publishers, self.keeper, self.churner):
            await client.connect(port)
        await self._begin_churn()
        await _retain(port, "end", b"end")

    async def round(self, number: int) -> None:
        """Traffic until the kill, a start, and the account."""
        self.figures.rounds += 1
        if not self.churner.is_connected:
            await self._connect([self.churner])
        await self._leave_sessions(number)
        await self._leave_wills(number)
        await self._traffic(self.chance.randint(1, MOST_PACKETS))
        self._restart(number)
        while not await self._is_accounted(is_complete=number % 5 == 4):
            self._restart(number)

    async def close(self) -> None:
        """End what still runs."""
        for client in self._all():
            with suppress(BrokenPromise):
                await client.leave()

    def _all(self) -> list[Lasting]:
        return [
            *self.publishers,
            self.keeper,
            *self.subscribers,
            self.absent,
            *self.members,
            self.churner,
        ]

    # -- kills and starts --

    @property
    def _port(self) -> int:
        return self.node.mqtt[1]

    def _notice(self) -> None:
        self._packets += 1
        self._packets_left -= 1
        if self._packets_left == 0:
            self._kill()

    def _kill(self) -> None:
        self.node.kill()
        self._kills += 1
        self.figures.kills += 1

    def _is_killed(self) -> bool:
        """Whether the broker was killed since it was started; it does not end by itself."""
        assert self.node.process is not None
        if self._kills == 0 and self.node.process.poll() is not None:
            raise BrokenPromise(f"the broker ended by itself with {self.node.process.returncode}")
        return self._kills > 0

    def _restart(self, number: int) -> None:
        """Start again, now and then killed while starting."""
        self.node.config = CONFIG + f"store.durability = {('fsync', 'os')[number % 2]}\n"
        if self.chance.random() < 0.1:
            self._start_and_kill(self.chance.uniform(0.3, 3))
        self._start_now()

    def _start_now(self) -> None:
        began_s = time.monotonic()
        self.node.start(120)
        self._kills = 0
        self.figures.slowest_start_s = max(self.figures.slowest_start_s, time.monotonic() - began_s)

    def _start_and_kill(self, after_s: float) -> None:
        killing = threading.Timer(after_s, self._kill_process)
        killing.start()
        with suppress(AssertionError):  # it was killed before it said ready
            self.node.start(60)
        killing.join()
        self._kill()

    def _kill_process(self) -> None:
        if self.node.process is not None:
            self.node.process.kill()

    # -- traffic --

    async def _traffic(self, packets: int) -> None:
        """Everybody is busy until the broker has sent so many packets and is killed."""
        for subscriber in (*self.subscribers, *self.members):
            subscriber.is_prompt = False
        self._packets_left = packets
        for publisher in (*self.publishers, self.keeper):
            publisher.go_on()
        self.churner.is_churning = True
        self.churner.change()
        await self._all_ended()

    async def _all_ended(self) -> None:
        await _within(asyncio.gather(*(client.ended() for client in self._all())), "the kill")
        for publisher in (*self.publishers, self.keeper):
            publisher.is_publishing = False
        self.churner.is_churning = False
        for client in self.will_clients:
            await client.close()
        self.will_clients.clear()

    async def _leave_sessions(self, number: int) -> None:
        """A client whose session is to expire soon leaves."""
        client = await self._guest(
            Connect(f"e{number}", 5, False, properties={"Session-Expiry-Interval": 1})
        )
        client.send(Disconnect())
        await client.closed()
        self.sessions_left.append((f"e{number}", time.monotonic()))

    async def _leave_wills(self, number: int) -> None:
        """Three clients whose connections the kill will cut: the will of the third is far in the future."""
        kinds = [
            (f"o{number}", 4, 0, True),
            (f"w{number}", 5, WILL_DELAY_S, False),
            (f"x{number}", 5, HOUR_S, False),
        ]
        for client_id, version, delay_s, is_clean in kinds:
            payload = Sent(client_id, f"w/{client_id}", 2, 0).payload
            connect = Connect(client_id, version, is_clean, will=Will(f"w/{client_id}", payload, 2))
            if version == 5:
                connect.properties = {"Session-Expiry-Interval": HOUR_S}
                assert connect.will is not None
                connect.will.properties = {"Will-Delay-Interval": delay_s}
            self.will_clients.append(await self._guest(connect))
            if delay_s != HOUR_S:
                self.wills_told.add(payload)

    async def _guest(self, connect: Connect) -> WireClient:
        return await WireClient.connected(self._port, connect)

    # -- the account --

    async def _is_accounted(self, *, is_complete: bool) -> bool:
        """Hold the broker against what clients were told; False when it was killed meanwhile, which is to be begun
        again. ``is_complete`` has the absent client come as well."""
        self._packets_left = self.chance.randint(1, 200) if self.chance.random() < 0.25 else -1
        try:
            self.keeper.check_held(await _retained(self._port))
            await self._connect(
                [*self.subscribers, *self.members, *([self.absent] if is_complete else [])]
            )
            await self._check_subscriptions()
            await self._connect([*self.publishers, self.keeper])
            await self._drained(is_complete=is_complete)
            await self._check_sessions()
        except _GONE:
            if not self._is_killed():
                raise
        if self._is_killed():
            await self._all_ended()
            return False
        self._packets_left = -1
        if is_complete:
            await self.absent.leave()
        return True

    async def _connect(self, clients: Iterable[Lasting]) -> None:
        for client in clients:
            if isinstance(client, Subscriber):
                client.is_prompt = True
            if not client.is_connected:
                await client.connect(self._port)

    async def _drained(self, *, is_complete: bool) -> None:
        """Wait until everything that was acknowledged has come to everybody, and look at it."""
        await self._until(
            lambda: all(one.is_settled for one in (*self.publishers, self.keeper)),
            "acknowledgements",
        )
        told = {one.payload for publisher in self.publishers for one in publisher.acknowledged}
        following = [*self.subscribers, *([self.absent] if is_complete else [])]
        for one in (*following, *self.members):
            one.answer()
        await self._until(partial(_complete, told, following), lambda: _missing(told, following))
        await self._until(
            lambda: told <= self._shared(),
            lambda: f"never came to the group: {sorted(told - self._shared())[:5]}",
        )
        await self._until(
            partial(_complete, self.wills_told, following),
            lambda: _missing(self.wills_told, following),
        )
        held = await _retained(self._port)
        if held != self.keeper.told():
            raise BrokenPromise(f"retained messages are {held}, told {self.keeper.told()}")
        self._settle(told, following)

    def _shared(self) -> set[bytes]:
        return {payload for one in self.members for payload in one.received}

    def _settle(self, told: set[bytes], following: list[Subscriber]) -> None:
        """The account is right: nobody may get anything else, or again."""
        possible = told | self.wills_told | self.wills_late
        for one in (*following, *self.members):
            if unknown := one.received.keys() - possible:
                raise BrokenPromise(
                    f"{one.client_id} got what nobody was told of: {sorted(unknown)[:5]}"
                )
            one.settle()
        self.figures.acknowledged = len(told)
        self.figures.received = sum(
            len(one.received) for one in (*self.subscribers, self.absent, *self.members)
        )
        self.figures.resent = sum(
            one.resent for one in (*self.subscribers, self.absent, *self.members)
        )
        self.figures.wills = len(self.wills_told)

    async def _begin_churn(self) -> None:
        """The subscription that the churner keeps: the last message of a probe comes behind all others."""
        self.churner.ask(PROBE_END, 2)
        await self._until(lambda: self.churner.told.get(PROBE_END), "the first SUBACK")

    async def _check_subscriptions(self) -> None:
        """A message to every filter that the churner may have: it gets those that it was told of, with their QoS."""
        churner = self.churner
        await self._connect([churner])
        await self._until(lambda: not churner.is_waiting, f"an answer to {churner.asked}")
        possible = list(churner.possible())
        probe = churner.next_probe()
        async with await self._guest(Connect("prober", 5)) as prober:
            for number, topic in enumerate(churner.told, 1):
                prober.send(Publish(topic, probe, 2, packet_id=number))
                await prober.expect(PubRec)
                prober.send(PubRel(number))
                await prober.expect(PubComp)
        await self._until(
            lambda: PROBE_END in churner.got and churner.got in possible,
            lambda: f"subscriptions {churner.got} are none of {possible}",
        )
        churner.told = {name: churner.got.get(name) for name in churner.told}
        churner.asked = None  # not before: an account that is cut short begins again

    async def _check_sessions(self) -> None:
        """Those that were to expire did so also while the broker was away."""
        for client_id, left_s in list(self.sessions_left):
            if time.monotonic() - left_s < SHORT_EXPIRY_S + 4:
                continue
            async with await self._guest(Connect(client_id, 5, False)) as client:
                if client.connack.session_present:
                    raise BrokenPromise(f"the session of {client_id} has outlived its expiry")
            self.sessions_left.remove((client_id, left_s))

    async def _until(self, is_so: Callable[[], object], what: str | Callable[[], str]) -> None:
        """Wait for a condition; fails when a client saw a broken promise, the broker is gone, or nothing comes to
        anybody for so long."""
        deadline_s, seen = time.monotonic() + DEADLINE_S, self._packets
        while not is_so():
            for client in self._all():
                client.check()
            if self._is_killed():
                raise ConnectionError("the broker was killed")
            if self._packets != seen:
                deadline_s, seen = time.monotonic() + DEADLINE_S, self._packets
            if time.monotonic() > deadline_s:
                raise BrokenPromise(
                    f"nothing for {DEADLINE_S:g} s: {what() if callable(what) else what}"
                )
            await asyncio.sleep(0.005)


def _making(name: str, qos: tuple[int, ...]) -> Callable[[int], Publish]:
    def make(number: int) -> Publish:
        sent = Sent(name, f"k/{name}/{'ab'[number // 3 % 2]}", qos[number % len(qos)], number)
        return Publish(sent.topic, sent.payload, sent.qos)

    return make


def _complete(told: set[bytes], subscribers: list[Subscriber]) -> bool:
    return all(told <= one.received.keys() for one in subscribers)


def _missing(told: set[bytes], subscribers: list[Subscriber]) -> str:
    lacking = {one.client_id: sorted(told - one.received.keys()) for one in subscribers}
    return (
        f"never came: { {name: (len(lost), lost[:5]) for name, lost in lacking.items() if lost} }"
    )


async def _retain(port: int, topic: str, payload: bytes) -> None:
    async with await WireClient.connected(port, Connect("", 4)) as client:
        client.send(Publish(topic, payload, 1, retain=True, packet_id=1))
        await client.receive()


async def _retained(port: int) -> dict[str, bytes]:
    """The retained set, as a new subscriber sees it; ``end`` was subscribed to last, so it comes last."""
    found: dict[str, bytes] = {}
    async with await WireClient.connected(port, Connect("", 4)) as client:
        await client.subscribe(SubscriptionRequest("r/#"), SubscriptionRequest("end"))
        while (packet := await client.expect(Publish)).topic != "end":
            found[packet.topic] = packet.payload
    return found


async def _within(waiting: asyncio.Future[list[None]], what: str) -> None:
    try:
        await within(waiting, DEADLINE_S)
    except TimeoutError:
        raise AssertionError(f"{what} did not happen in {DEADLINE_S:g} s") from None
