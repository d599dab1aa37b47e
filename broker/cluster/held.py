"""Messages of another cell's parts of share groups that members of this cell have.

A part grants a message to a member here. A member with room gets it, and the answer to the part says whether it was
settled, or returned for others. Answers are repeated after a break of the link until they are confirmed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from broker.cluster.frames import (
    Answers,
    Frame,
    FrameError,
    Granted,
    Grants,
    Heard,
    LoggedRecord,
    Members,
    MemberState,
    Notice,
    decoded,
    encoded,
)
from broker.cluster.link import Link
from broker.cluster.notices import FRAME_BYTES, NOTICES, Key, MemberKey, Told, in_frames, is_logged
from broker.codec.outgoing import Outgoing
from broker.connection.hub import Hub
from broker.connection.sharing.group import ShareGroup
from broker.connection.sharing.member import Member
from broker.connection.sharing.services import OF_CELL, Origin
from broker.core.errors import PeerError
from broker.core.message import Message
from broker.core.stored import message_of
from broker.core.stream import StreamRecord
from broker.session import sending
from broker.session.delivery import DENIED, NO_OFFSET, SharedDelivery
from broker.session.session import Session
from broker.storage.collection import RAW, TEXT, Collection

_OUTCOMES: Final = {DENIED: Notice.DENIED, "packet_too_large": Notice.TOO_LARGE}
# Outcomes that are repeated until they are confirmed.
_LASTING: Final = frozenset(
    (
        Notice.SETTLED,
        Notice.RETURNED,
        Notice.NO_ROOM,
        Notice.GONE,
        Notice.DENIED,
        Notice.TOO_LARGE,
    )
)


class Held(Origin):
    """A message that another cell granted to a member of this one."""

    __slots__ = (
        "_messages",
        "client_id",
        "delivery",
        "group",
        "identity",
        "key",
        "number",
        "state",
    )

    def __init__(
        self, messages: HeldMessages, key: str, client_id: str, number: int, identity: str
    ) -> None:
        self._messages = messages
        self.key = key
        self.client_id = client_id
        self.number = number
        self.identity = identity
        """Of the session log that the message is in."""
        self.delivery: SharedDelivery
        self.group: ShareGroup
        self.state = "held"
        """``own`` if the other cell ended and forgot it, ``void`` if it has given it to another member."""

    def settled(self, delivery: SharedDelivery) -> None:
        self._messages.answer(self, Notice.SETTLED, is_stored=delivery.claim is not None)

    def returned(self, delivery: SharedDelivery) -> bool:
        if self.state == "own":
            return False
        self._messages.answer(self, Notice.RETURNED)
        return True

    def refused(self, delivery: SharedDelivery, why: str) -> None:
        self._messages.answer(self, _OUTCOMES[why])


class HeldMessages:
    """Members of this cell towards one other cell, and what they have of its messages. ``flush_soon`` has what is
    said here sent, ``hear_soon`` has the other cell hear how many frames were taken."""

    def __init__(
        self, hub: Hub, link: Link, flush_soon: Callable[[], None], hear_soon: Callable[[], None]
    ) -> None:
        self._hub = hub
        self._link = link
        self._groups = hub.share_groups
        self._flush_soon = flush_soon
        self._hear_soon = hear_soon
        self._received_count = hub.context.metrics.counter(
            "cell_shared_received",
            "messages of share groups that came from a cell",
            peer=str(link.number),
        )
        self._held: dict[Key, Held] = {}
        self._turns: dict[MemberKey, int] = {}
        self._rooms: dict[Member, int] = {}
        self._asked: set[Member] = set()
        self._answers: list[Told] = []
        self._unconfirmed: deque[list[Told]] = deque()
        self._answers_sent = 0
        self.taken = 0
        """Frames of grants since the link is up."""
        self.told = 0
        """Version of this cell's members that the other one follows."""
        self._stored = Collection(hub.context.writer, b"share-settled/%d/" % link.number, TEXT, RAW)
        self._is_unwritten = False
        hub.context.writer.before_commit(self._sealed)
        self._settled: dict[Key, str] = {}
        """Identities of the session logs of answers that are stored until they are confirmed: sessions on disk have
        settled these."""
        for stored_key, _ in self._stored.stored():
            identity, number, group = stored_key.split("/", 2)
            self._settled[group, int(number)] = identity
            self._answers.append((Notice.SETTLED, group, "", int(number), 0))

    # -- the link --

    def begin(self, *, is_peer_new: bool, is_log_same: bool) -> None:
        """The link is up: forget what the other cell no longer waits for."""
        link = self._link
        for (key, number), identity in list(self._settled.items()):
            if identity != link.log_heard:
                self._forget_settled(key, number)
        self.taken = self.told = self._answers_sent = 0
        self._turns.clear()
        if is_peer_new:
            for held in [held for held in self._held.values() if not is_logged(held.number)]:
                held.state = "own"
                self._let_go_of(held)
        for held in [held for held in self._held.values() if held.identity != link.log_heard]:
            self._forget_held(held)
        earlier = [*(notice for frame in self._unconfirmed for notice in frame), *self._answers]
        self._unconfirmed.clear()
        # A message that was refused is granted again under its number: only the last answer holds, and none while a
        # member has it.
        last = {(notice[1], notice[3]): notice for notice in earlier if notice[0] in _LASTING}
        self._answers = [
            (Notice.GONE if kind is Notice.NO_ROOM else kind, group, client_id, number, 0)
            for kind, group, client_id, number, _ in last.values()
            if (is_log_same if is_logged(number) else not is_peer_new)
            and (group, number) not in self._held
        ]
        for held in self._held.values():
            kind = Notice.HELD if held.delivery.outgoing is not None else Notice.HELD_EMPTY
            if kind is Notice.HELD_EMPTY and held.delivery.is_released:
                kind = Notice.HELD
            self._answers.append((kind, held.key, held.client_id, held.number, 0))
        self._answers.append((Notice.TOLD, "", "", 0, 0))

    def end(self) -> None:
        """The link is down: the other cell no longer asks for room."""
        for asked in self._asked:
            asked.askers = tuple(asker for asker in asked.askers if asker is not self)
        self._asked.clear()
        for promised in list(self._rooms):
            self._release_room(promised)

    def flush(self) -> None:
        """Send the answers."""
        answers, self._answers = self._answers, []
        for part in in_frames(answers):
            self._answers_sent += 1
            self._unconfirmed.append(part)
            self._link.send(encoded(Answers(part)))

    def heard(self, heard: Heard) -> None:
        """The other cell has taken so many frames of answers, and all that they say is safe there."""
        if heard.answers > self._answers_sent:
            raise FrameError("HEARD frame: expected fewer frames than were sent")
        while len(self._unconfirmed) > self._answers_sent - heard.answers:
            for _, key, _, number, _ in self._unconfirmed.popleft():
                if (key, number) in self._settled:
                    self._forget_settled(key, number)
        self.told = max(self.told, heard.version)

    # -- members --

    def tell(
        self,
        changes: Iterable[tuple[str, str, Member | None]],
        version: int,
        *,
        is_whole: bool = False,
    ) -> None:
        """Tell the other cell how clients of this one are members."""
        part: list[tuple[str, str, MemberState | None]] = []
        size = 0
        is_first = is_whole
        for key, client_id, member in changes:
            if size >= FRAME_BYTES or len(part) >= NOTICES:
                self._link.send(encoded(Members(version, is_first, False, part)))
                is_first = False
                part = []
                size = 0
            state = None
            if member is not None:
                session = member.session
                state = MemberState(
                    member.qos,
                    member.is_here,
                    session.is_durable and member.qos > 0,
                    member.retain_as_published,
                    max(session.window.size, 0),
                    self._turns.get((key, client_id), 0),
                )
            part.append((key, client_id, state))
            size += (len(key) + len(client_id)) * 3 + 32
        self._link.send(encoded(Members(version, is_first, True, part)))

    def offer(self, member: Member) -> None:
        """A member has room, and this cell is the next to have some of it."""
        member.askers = member.askers[1:]
        self._asked.discard(member)
        key = member.group.key
        is_wanted = bool(member.askers) or self._groups.groups[key].waiting > 0
        count = 1 if is_wanted else max(member.session.window.quota - member.reserved, 1)
        member.reserved += count
        self._rooms[member] = self._rooms.get(member, 0) + count
        turn = self._turns.get((key, member.client_id), 0)
        self._say((Notice.ROOM, key, member.client_id, count, turn))

    def _release_room(self, member: Member) -> None:
        member.reserved -= self._rooms.pop(member, 0)
        self._use(member)

    def _use_room(self, member: Member) -> None:
        count = self._rooms.get(member, 0)
        if count:
            member.reserved -= 1
            if count == 1:
                del self._rooms[member]
            else:
                self._rooms[member] = count - 1

    def _own_member(self, key: str, client_id: str) -> Member | None:
        group = self._groups.groups.get(key)
        member = None if group is None else group.members.get(client_id)
        return member if member is not None and member.cell is None else None

    # -- messages --

    def take(self, frame: Frame) -> None:
        """Take a frame of messages and notices."""
        grants = decoded(Grants, frame)
        try:
            for granted in grants.granted:
                self._take_granted(granted)
        finally:
            # a slow member holds up its own messages, not the link
            self._hub.backpressure.fresh.clear()
        for kind, key, client_id, number, _ in grants.notices:
            member = self._own_member(key, client_id)
            if kind is Notice.UNKNOWN:
                held = self._held.get((key, number))
                if held is not None:
                    self._forget_held(held)
            elif kind is Notice.GOES:
                self._say((Notice.WENT, key, client_id, 0, 0))
            elif member is None:
                continue
            elif kind is Notice.PASS:
                self._release_room(member)
            elif kind is Notice.ASK and self._turns.get((key, client_id), 0) == number:
                if self not in member.askers:
                    member.askers += (self,)
                    self._asked.add(member)
                self._use(member)
        self.taken += 1
        self._hear_soon()

    @staticmethod
    def _use(member: Member) -> None:
        """Give the next cell that asks, or this one's part, the room that a member has."""
        if member.is_here and member.has_room:
            member.offer_room()

    def _take_granted(self, granted: Granted) -> None:
        record = granted.record
        key = granted.group
        number = record.offset
        self._received_count.value += 1
        message = _message(record)
        member = self._own_member(key, granted.client_id)
        if not record.qos:
            if member is None:
                self._hub.context.figures.delivery_dropped("qos0_msg").value += 1
            else:
                self._groups.groups[key].take_granted_qos0(member, Outgoing(message))
            return
        held = self._held.get((key, number))
        if held is not None:
            self._fill(held, message)
            return
        if member is None:
            self._say((Notice.GONE, key, granted.client_id, number, 0))
            return
        turn = self._turns.get((key, granted.client_id), 0)
        if granted.turn == turn:
            self._use_room(member)
            if not (member.is_here and member.has_room):
                turn = self._turns[key, granted.client_id] = turn + 1
        if granted.turn != turn:
            self._say((Notice.NO_ROOM, key, granted.client_id, number, turn))
            return
        held = Held(self, key, granted.client_id, number, self._link.log_heard)
        delivery = SharedDelivery(Outgoing(message), held, NO_OFFSET, 0)
        delivery.may_be_seen = granted.may_be_seen
        held.delivery = delivery
        self._hold(held)
        if is_logged(number) and member.session.is_durable:
            delivery.place = number >> 1
            delivery.claim = (self._claim_key(held), 0, 0, number)
        self._groups.groups[key].take_granted(member, delivery)

    def _claim_key(self, held: Held) -> str:
        return f"{OF_CELL}{self._link.number}:{held.identity}:{held.key}"

    def _fill(self, held: Held, message: Message) -> None:
        """The message of a delivery that a restart left without it: the client is sent it again."""
        delivery = held.delivery
        if delivery.outgoing is not None:
            return
        delivery.outgoing = Outgoing(message)
        holder = delivery.holder
        assert isinstance(holder, Member)
        session = holder.session
        packet_id = _packet_id_of(session, delivery)
        if packet_id is not None and session.window.is_open and not delivery.is_released:
            now_ns = self._hub.context.clock.now_ns()
            sending.emit(session, packet_id, delivery, now_ns, dup=True)

    def adopt(self, session: Session, key: str, identity: str, delivery: SharedDelivery) -> bool:
        """Take up what a restored session has in flight from the other cell."""
        member = self._own_member(key, session.client_id)
        assert delivery.claim is not None
        number = delivery.claim[3]
        if member is None:
            return False
        held = Held(self, key, session.client_id, number, identity)
        held.delivery = delivery
        delivery.cursor = held
        delivery.place = number >> 1
        self._hold(held)
        self._groups.groups[key].take_up_granted(member, delivery)
        return True

    def _forget_held(self, held: Held) -> None:
        """The other cell knows nothing of a message that a member has, which the client may settle all the same."""
        held.state = "void"
        self._let_go_of(held)
        delivery = held.delivery
        delivery.claim = None
        holder = delivery.holder
        if delivery.outgoing is not None or delivery.is_released or not isinstance(holder, Member):
            return
        packet_id = _packet_id_of(holder.session, delivery)
        if packet_id is not None:
            del holder.session.window.inflight[packet_id]
            held.group.settled(holder, delivery)

    def answer(self, held: Held, kind: Notice, *, is_stored: bool = False) -> None:
        """Tell the other cell how a message that it granted ended."""
        if held.state != "held":
            return
        held.state = "over"
        self._let_go_of(held)
        if is_stored:
            self._settled[held.key, held.number] = held.identity
            self._store_settled(held.key, held.number, held.identity)
        self._say((kind, held.key, held.client_id, held.number, 0))

    def _hold(self, held: Held) -> None:
        self._held[held.key, held.number] = held
        held.group = self._groups.groups[held.key]
        held.group.borrowed += 1

    def _let_go_of(self, held: Held) -> None:
        del self._held[held.key, held.number]
        held.group.borrowed -= 1

    def _say(self, notice: Told) -> None:
        self._answers.append(notice)
        self._flush_soon()

    def _store_settled(self, key: str, number: int, identity: str) -> None:
        self._stored.put(f"{identity}/{number}/{key}", b"")
        self._hub.context.writer.when_committed(self._settled_committed)

    def _settled_committed(self, error: BaseException | None) -> None:
        self._is_unwritten = self._is_unwritten or error is not None

    def _sealed(self) -> None:
        """Put the answers into the commit group that is being sealed where an earlier one could not be written."""
        if self._is_unwritten:
            self._is_unwritten = False
            for (key, number), identity in self._settled.items():
                self._store_settled(key, number, identity)

    def _forget_settled(self, key: str, number: int) -> None:
        identity = self._settled.pop((key, number))
        self._stored.put(f"{identity}/{number}/{key}", None)


def _message(record: LoggedRecord) -> Message:
    try:
        return message_of(
            StreamRecord(
                record.ts_us, record.topic, record.payload, record.qos, record.retain, record.client_id,
                record.username, record.properties,
            )
        )  # fmt: skip
    except (PeerError, ValueError, RecursionError) as error:
        raise FrameError(f"GRANTS frame: expected a message, got {error}") from None


def _packet_id_of(session: Any, delivery: SharedDelivery) -> int | None:
    return next(
        (packet_id for packet_id, flying in session.window.inflight.items() if flying is delivery),
        None,
    )
