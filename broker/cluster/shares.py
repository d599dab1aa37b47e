"""Share groups over cells: each cell has a part of a group, for the messages that are published there.

All parts know all members. A part gives a message to a member of its own cell where the strategy leaves that free, or
*grants* it to one of another cell, which sends it if the member has room and answers how it ended: settled, or
returned for others. Until then the part keeps the message, as it keeps what its own members have in flight. After a
break of the link, the member's cell repeats the answers that were not confirmed, and says what its members have.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from broker.cluster.far_members import FarMember
from broker.cluster.frames import (
    Answers,
    Frame,
    FrameError,
    FrameType,
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
from broker.cluster.link import GRACE_S, Link
from broker.codec.outgoing import Outgoing
from broker.connection.hub import Hub
from broker.connection.sharing.cursors import Cursor
from broker.connection.sharing.group import FarMemberRecord, Grant, ShareGroup
from broker.connection.sharing.member import Member
from broker.connection.sharing.services import OF_CELL, Origin
from broker.core.errors import PeerError
from broker.core.message import Message
from broker.core.stored import message_of, record_of
from broker.core.stream import StreamRecord
from broker.core.topic import TopicFilter
from broker.session import sending
from broker.session.delivery import DENIED, NO_OFFSET, SharedDelivery
from broker.session.session import Session
from broker.storage.collection import RAW, TEXT, Collection

# Bytes of messages in one frame, unless one alone is larger, and of the names in a frame of notices or members.
_FRAME_BYTES: Final = 256 * 1024
_NOTICES: Final = 4096
# Bytes of grants that the other cell has not taken: from half of this on publishers of QoS 0 wait.
MAX_UNTAKEN_BYTES: Final = 4 * 1024 * 1024
# Messages, and their bytes, that are granted to members of one cell and not settled: more wait in their groups.
MAX_GRANTED: Final = 65_536
MAX_GRANTED_BYTES: Final = 16 * 1024 * 1024
_WHYS: Final = {Notice.DENIED: DENIED, Notice.TOO_LARGE: "packet_too_large"}
_OUTCOMES: Final = {why: notice for notice, why in _WHYS.items()}
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

# Of a grant: the group's key, and its number.
_Key = tuple[str, int]
# Of a member: the group's key, and the client's identifier.
_MemberKey = tuple[str, str]
_Notice = tuple[Notice, str, str, int, int]


def is_logged(number: int) -> bool:
    """True if the number of a grant says where the message is in the session log."""
    return not number & 1


class _Sent(NamedTuple):
    """A message that was granted and is not settled. ``was_seen`` is what was known before it was granted."""

    member: FarMember
    delivery: SharedDelivery
    was_seen: bool
    is_durable: bool
    """True if the member's session outlives its process, and with it that it has the message."""
    size_bytes: int


class Held(Origin):
    """A message that another cell granted to a member of this one."""

    __slots__ = ("_shares", "client_id", "delivery", "group", "identity", "key", "number", "state")

    def __init__(
        self, shares: CellShares, key: str, client_id: str, number: int, identity: str
    ) -> None:
        self._shares = shares
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
        self._shares.answer(self, Notice.SETTLED, is_stored=delivery.claim is not None)

    def returned(self, delivery: SharedDelivery) -> bool:
        if self.state == "own":
            return False
        self._shares.answer(self, Notice.RETURNED)
        return True

    def refused(self, delivery: SharedDelivery, why: str) -> None:
        self._shares.answer(self, _OUTCOMES[why])


class CellShares:
    """What this cell and another one tell each other about share groups."""

    def __init__(self, shares: Shares, link: Link) -> None:
        self._shares = shares
        self._link = link
        self._hub = hub = link.hub
        self._groups = hub.share_groups
        self.number = link.number
        link.parts.append(self)
        link.takers |= {
            FrameType.MEMBERS: self._take_members,
            FrameType.GRANTS: self._take_grants,
            FrameType.ANSWERS: self._take_answers,
            FrameType.HEARD: self._take_heard,
        }
        peer = str(link.number)
        counter = hub.context.metrics.counter
        self._sent_count = counter(
            "cell_shared_sent", "messages of share groups sent for members of a cell", peer=peer
        )
        self._received_count = counter(
            "cell_shared_received", "messages of share groups that came from a cell", peer=peer
        )
        hub.context.metrics.gauge(
            "cell_shared_inflight", lambda: len(self._granted),
            "messages of share groups that members of a cell have and did not settle", peer=peer,
        )  # fmt: skip
        self._lives = 0
        # for parts of this cell
        self.members: dict[_MemberKey, FarMember] = {}
        self._listed: set[_MemberKey] | None = None
        self._granted: dict[_Key, _Sent] = {}
        self._granted_bytes = 0
        self._is_told = False
        """True once the other cell has told all that it has."""
        self._going: dict[_MemberKey, FarMember] = {}
        """Members that went, and may have messages on their way."""
        self._unsure: set[_Key] = set()
        """Grants from before the link came up, whose outcome the other cell has not told yet."""
        self._ended: set[_Key] = set()
        """Those of them that an earlier process of the other cell had; the link may break before it has told."""
        self._peer = self._peer_log = ""
        self._is_peer_new = True
        self._last_number = 0
        self._out: list[Granted] = []
        self._out_bytes = 0
        self._asks: list[_Notice] = []
        self._recording: list[Granted] | None = None
        """Grants whose record is in the commit group that is gathering."""
        hub.context.writer.before_commit(self._sealed)
        self._untaken: deque[int] = deque()
        self._untaken_bytes = 0
        self._was_full = False
        self._answers_taken = self._answers_safe = 0
        # for members of this cell
        self._held: dict[_Key, Held] = {}
        self._turns: dict[_MemberKey, int] = {}
        self._rooms: dict[Member, int] = {}
        self._asked: set[Member] = set()
        self._answers: list[_Notice] = []
        self._unconfirmed: deque[list[_Notice]] = deque()
        self._grants_sent = self._answers_sent = 0
        self._grants_taken = self._version_taken = 0
        self._is_flushing = self._is_hearing = False
        self.told = 0
        """Version of this cell's members that the other one follows."""
        self._stored = Collection(hub.context.writer, b"share-settled/%d/" % link.number, TEXT, RAW)
        self._settled: dict[_Key, str] = {}
        """Identities of the session logs of answers that are stored until they are confirmed: sessions on disk have
        settled these."""
        for stored_key, _ in self._stored.stored():
            identity, number, group = stored_key.split("/", 2)
            self._settled[group, int(number)] = identity
            self._answers.append((Notice.SETTLED, group, "", int(number), 0))

    # -- the link --

    def begin(self) -> None:
        """The link is up: say who is a member here, and what of the other cell's messages they have."""
        link = self._link
        self._is_peer_new = link.heard != self._peer
        self._peer = link.heard
        is_log_same = self._peer_log in ("", link.log_heard)
        self._peer_log = link.log_heard
        for (key, number), identity in list(self._settled.items()):
            if identity != link.log_heard:
                self._forget_settled(key, number)
        self._unsure = set(self._granted)
        if self._is_peer_new:
            self._ended = set(self._granted)
        self._answers_taken = self._answers_safe = self._grants_taken = self.told = 0
        self._grants_sent = self._answers_sent = 0
        self._turns.clear()
        self.tell(self._shares.all(), self._shares.version, is_whole=True)
        if self._is_peer_new:
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
            if (is_log_same if is_logged(number) else not self._is_peer_new)
            and (group, number) not in self._held
        ]
        for held in self._held.values():
            kind = Notice.HELD if held.delivery.outgoing is not None else Notice.HELD_EMPTY
            if kind is Notice.HELD_EMPTY and held.delivery.is_released:
                kind = Notice.HELD
            self._answers.append((kind, held.key, held.client_id, held.number, 0))
        self._answers.append((Notice.TOLD, "", "", 0, 0))
        self._flush()

    def end(self) -> None:
        """The link is down: its members have no connection for this cell."""
        self._lives += 1
        lost = sum(1 for granted in self._out if not granted.record.qos)
        if lost:
            self._link.count_dropped("link_lost", lost)
        self._out = []
        self._asks = []
        self._recording = None
        self._out_bytes = 0
        self._untaken.clear()
        self._untaken_bytes = 0
        self._listed = None
        self._is_told = False
        for member in list(self.members.values()):
            member.credit = None
            member.turn = 0
            if member.is_here:
                member.group.went_away(member, for_good=False)
                self._going[member.group.key, member.client_id] = member
        for asked in self._asked:
            asked.askers = tuple(asker for asker in asked.askers if asker is not self)
        self._asked.clear()
        for promised in list(self._rooms):
            self._release_room(promised)
        self._check_relief()
        self.await_return()
        self._shares.check_told()

    def await_return(self) -> None:
        """Forget the cell's members in memory if it stays away."""
        self._hub.context.later(GRACE_S, self._give_up, self._lives)

    def _give_up(self, lives: int) -> None:
        """The cell is away for long: others get what its members have at QoS 1, and those in memory are gone."""
        if lives != self._lives or self._link.is_up:
            return
        groups: dict[ShareGroup, None] = {}
        for (key, number), sent in list(self._granted.items()):
            if sent.delivery.qos < 2:  # another member never gets QoS 2
                self._take_out((key, number), sent)
                sent.member.group.returned(sent.member, sent.delivery)
                groups[sent.member.group] = None
        for member in list(self.members.values()):
            if not member.session.is_durable:
                self._remove(member)
        self._let_all_go()
        for group in groups:
            group.pump()

    # -- members of this cell --

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
            if size >= _FRAME_BYTES or len(part) >= _NOTICES:
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

    def _take_grants(self, frame: Frame) -> None:
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
        self._grants_taken += 1
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
                self.drop("qos0_msg")
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
        return f"{OF_CELL}{self.number}:{held.identity}:{held.key}"

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
            self._groups.groups[held.key].settled(holder, delivery)

    def answer(self, held: Held, kind: Notice, *, is_stored: bool = False) -> None:
        """Tell the other cell how a message that it granted ended."""
        if held.state != "held":
            return
        held.state = "over"
        self._let_go_of(held)
        if is_stored:
            self._settled[held.key, held.number] = held.identity
            self._stored.put(f"{held.identity}/{held.number}/{held.key}", b"")
        self._say((kind, held.key, held.client_id, held.number, 0))

    def _hold(self, held: Held) -> None:
        self._held[held.key, held.number] = held
        held.group = self._groups.groups[held.key]
        held.group.borrowed += 1

    def _let_go_of(self, held: Held) -> None:
        del self._held[held.key, held.number]
        held.group.borrowed -= 1

    def _say(self, notice: _Notice) -> None:
        self._answers.append(notice)
        self._flush_soon()

    def _take_heard(self, frame: Frame) -> None:
        heard = decoded(Heard, frame)
        if heard.grants > self._grants_sent or heard.answers > self._answers_sent:
            raise FrameError("HEARD frame: expected fewer frames than were sent")
        while len(self._untaken) > self._grants_sent - heard.grants:
            self._untaken_bytes -= self._untaken.popleft()
        while len(self._unconfirmed) > self._answers_sent - heard.answers:
            for _, key, _, number, _ in self._unconfirmed.popleft():
                if (key, number) in self._settled:
                    self._forget_settled(key, number)
        if heard.version > self.told:
            self.told = heard.version
            self._shares.check_told()
        self._check_relief()

    def _forget_settled(self, key: str, number: int) -> None:
        identity = self._settled.pop((key, number))
        self._stored.put(f"{identity}/{number}/{key}", None)

    # -- parts of this cell --

    @property
    def is_full(self) -> bool:
        """True if more is on the way to the other cell, or granted and not settled, than may be."""
        is_full = (
            self._untaken_bytes >= MAX_UNTAKEN_BYTES
            or self._granted_bytes >= MAX_GRANTED_BYTES
            or len(self._granted) >= MAX_GRANTED
        )
        self._was_full = self._was_full or is_full
        return is_full

    def _check_relief(self) -> None:
        """After an answer: with half as much on the way, members have room again, and publishers go on."""
        if not self._was_full or (
            self._untaken_bytes * 2 > MAX_UNTAKEN_BYTES
            or self._granted_bytes * 2 > MAX_GRANTED_BYTES
            or len(self._granted) * 2 > MAX_GRANTED
        ):
            return
        self._was_full = False
        self._hub.backpressure.relieved(self._link.live)
        for member in list(self.members.values()):
            if member.has_room:
                member.group.has_room(member)

    def drop(self, why: str) -> None:
        """Count a message that no member gets."""
        self._hub.context.figures.delivery_dropped(why).value += 1

    def grant_qos0(self, member: FarMember, outgoing: Outgoing) -> None:
        """Send a member a message of QoS 0, or drop and count it."""
        if not self._link.is_up:
            self._link.count_dropped("link_lost", 1)
            return
        if self._untaken_bytes * 2 >= MAX_UNTAKEN_BYTES:
            self._was_full = True
            self._hub.backpressure.crowded(self._link.live)
            if self._untaken_bytes >= MAX_UNTAKEN_BYTES:
                self._link.count_dropped("link_full", 1)
                return
        self._send(_granted(member, outgoing, 0, 0, may_be_seen=False))

    def grant(self, member: FarMember, delivery: SharedDelivery, *, dup: bool) -> None:
        """Send a member a message of QoS 1 or 2: one from the log once the group's record says that the member has
        it, so that a restart gives it to no other."""
        outgoing = delivery.outgoing
        assert outgoing is not None
        cursor = delivery.cursor
        if isinstance(cursor, Cursor):
            number = delivery.place << 1
        else:
            self._last_number += 1
            number = self._last_number << 1 | 1
        key = (member.group.key, number)
        is_kept = member.session.is_durable and is_logged(number)
        self._granted[key] = _Sent(member, delivery, dup, is_kept, outgoing.size_bytes)
        self._granted_bytes += outgoing.size_bytes
        granted = _granted(member, outgoing, number, delivery.qos, may_be_seen=dup)
        if not isinstance(cursor, Cursor):
            self._send(granted)
            return
        if self._recording is None:
            batch: list[Granted] = []
            self._recording = batch
            self._groups.when_recorded(member.group, partial(self._recorded, batch, self._lives))
        self._recording.append(granted)

    def _sealed(self) -> None:
        self._recording = None

    def _recorded(self, batch: list[Granted], lives: int, error: BaseException | None) -> None:
        if lives != self._lives:
            return  # the other cell says that it has none of them
        if error is None:
            for granted in batch:
                self._send(granted)
            return
        for granted in batch:
            key = (granted.group, granted.record.offset)
            sent = self._granted.get(key)
            if sent is not None:
                self._take_out(key, sent)
                sent.delivery.may_be_seen = sent.was_seen
                sent.member.group.refused(sent.member, [sent.delivery])

    def _send(self, granted: Granted) -> None:
        if not self._link.is_up:
            return  # given to others once the other cell says that it has none
        self._sent_count.value += 1
        self._out.append(granted)
        size = _size_of(granted)
        self._out_bytes += size
        self._untaken_bytes += size
        if self._out_bytes >= _FRAME_BYTES:
            self._flush_grants()
        else:
            self._flush_soon()

    def ask(self, member: FarMember) -> None:
        """Ask for room of a member."""
        if self._link.is_up:
            self._asks.append((Notice.ASK, member.group.key, member.client_id, member.turn, 0))
            self._flush_soon()

    def _take_out(self, key: _Key, sent: _Sent) -> None:
        del self._granted[key]
        self._ended.discard(key)
        self._granted_bytes -= sent.size_bytes

    def _take_members(self, frame: Frame) -> None:
        members = decoded(Members, frame)
        if members.is_first:
            self._listed = set()
        stored: dict[ShareGroup, None] = {}
        for key, client_id, state in members.changes:
            earlier = self.members.get((key, client_id))
            was_durable = earlier is not None and earlier.session.is_durable
            if state is None:
                if earlier is not None:
                    self._remove(earlier)
                    if was_durable:
                        stored[earlier.group] = None
                continue
            if self._listed is not None:
                self._listed.add((key, client_id))
            member = self._put(key, client_id, state, earlier)
            if was_durable or state.is_durable:
                stored[member.group] = None
        if not members.is_last:
            return
        if self._listed is not None:
            for member_key in self.members.keys() - self._listed:
                self._remove(self.members[member_key])
            self._listed = None
        kept = next((group for group in stored if not group.is_over), None)
        if kept is None:
            self._follow(members.version)
        else:
            self._groups.when_recorded(kept, partial(self._followed, self._lives, members.version))

    def _put(
        self, key: str, client_id: str, state: MemberState, member: FarMember | None
    ) -> FarMember:
        if member is None:
            try:
                topic_filter = TopicFilter.parse(key)
            except PeerError as error:
                raise FrameError(f"MEMBERS frame: {key[:100]!r}: {error}") from None
            if topic_filter.share_group is None:
                raise FrameError(f"MEMBERS frame: expected a share group, got {key[:100]!r}")
            member = self.members[key, client_id] = FarMember(self, client_id, state)
            self._groups.join_far(topic_filter, member, is_durable=state.is_durable)
        else:
            became_durable = state.is_durable and not member.session.is_durable
            member.take(state)
            if became_durable:
                self._groups.join_far(member.group.filter, member, is_durable=True)
        if not member.is_here and not state.is_here:
            member.turn = state.turn
        if not self._is_told:
            return member
        if state.is_here:
            member.group.has_room(member)
        elif member.is_here:
            member.group.went_away(member, for_good=False)
            self._goes(member)
        return member

    def _goes(self, member: FarMember) -> None:
        """A member went: what was on its way to it comes back before its keys move."""
        key = member.group.key
        self._going[key, member.client_id] = member
        self._asks.append((Notice.GOES, key, member.client_id, 0, 0))
        self._flush_soon()

    def _went(self, key: str, client_id: str) -> None:
        member = self._going.pop((key, client_id), None)
        if member is not None and not member.is_here:
            member.group.let_go(member)

    def _let_all_go(self) -> None:
        for key, client_id in list(self._going):
            self._went(key, client_id)

    def _remove(self, member: FarMember) -> None:
        del self.members[member.group.key, member.client_id]
        self._groups.leave_far(member)
        if self._is_told:
            self._goes(member)

    def rejoin(self, key: str, member: FarMember) -> None:
        """A member's group was deleted, and continues empty."""
        topic_filter = member.group.filter
        state = MemberState(
            member.qos,
            member.is_here,
            member.session.is_durable,
            member.retain_as_published,
            member.size,
            member.turn,
        )
        member.is_member = member.is_here = False
        again = self.members[key, member.client_id] = FarMember(self, member.client_id, state)
        self._groups.join_far(topic_filter, again, is_durable=state.is_durable)
        if state.is_here and self._is_told:
            again.group.has_room(again)

    def _followed(self, lives: int, version: int, error: BaseException | None) -> None:
        if error is None and lives == self._lives:
            self._follow(version)

    def _follow(self, version: int) -> None:
        self._version_taken = version
        self._hear_soon()

    def restore_member(self, group: ShareGroup, record: FarMemberRecord) -> None:
        """A member that a group's record names."""
        state = MemberState(record.qos, False, True, False, 0, 0)
        member = self.members[group.key, record.client_id] = FarMember(
            self, record.client_id, state
        )
        member.group = group
        group.enter(member)

    def restore_granted(self, group: ShareGroup, grant: Grant, delivery: SharedDelivery) -> None:
        """A message that a group's record says that a member has."""
        member = self.members.get((group.key, grant.client_id))
        is_durable = member is not None
        if member is None:
            state = MemberState(grant.qos, False, False, False, 0, 0)
            member = FarMember(self, grant.client_id, state)
            member.group = group
            member.is_member = False
        delivery.qos = grant.qos
        self._granted[group.key, grant.place << 1] = _Sent(member, delivery, True, is_durable, 0)
        group.take_up_granted(member, delivery)

    def _take_answers(self, frame: Frame) -> None:
        refused: dict[FarMember, list[SharedDelivery]] = {}
        groups: dict[ShareGroup, None] = {}
        members: dict[FarMember, None] = {}
        rooms: list[tuple[FarMember, int, int]] = []
        recorded: ShareGroup | None = None
        gone: list[_MemberKey] = []
        is_told = False
        for kind, key, client_id, number, turn in decoded(Answers, frame).notices:
            if kind is Notice.TOLD:
                self._resolve(groups)
                is_told = True
                continue
            if kind is Notice.WENT:
                gone.append((key, client_id))
                continue
            if kind is Notice.ROOM:
                asking = self.members.get((key, client_id))
                if asking is not None:
                    rooms.append((asking, number, turn))
                continue
            sent = self._granted.get((key, number))
            if kind in (Notice.HELD, Notice.HELD_EMPTY):
                self._confirm_held(
                    (key, number), client_id, sent, is_empty=kind is Notice.HELD_EMPTY
                )
                continue
            if sent is None:
                continue
            self._take_out((key, number), sent)
            member = sent.member
            delivery = sent.delivery
            group = member.group
            groups[group] = None
            members[member] = None
            if is_logged(number):
                recorded = group
            if kind is Notice.SETTLED:
                group.settled(member, delivery)
            elif kind is Notice.RETURNED:
                group.returned(member, delivery)
            elif kind in _WHYS:
                delivery.may_be_seen = sent.was_seen
                group.not_taken(member, delivery, _WHYS[kind])
            else:
                delivery.may_be_seen = sent.was_seen
                refused.setdefault(member, []).append(delivery)
                if kind is Notice.NO_ROOM and member.turn != turn:
                    member.turn = turn
                    member.credit = 0
                    self.ask(member)
        for member, deliveries in refused.items():
            member.group.refused(member, deliveries)
        self._answers_taken += 1
        if recorded is not None:
            self._groups.when_recorded(
                recorded, partial(self._safe, self._lives, self._answers_taken)
            )
        elif self._answers_safe == self._answers_taken - 1:
            self._answers_safe += 1
            self._hear_soon()
        else:
            self._hub.context.writer.when_committed(
                partial(self._safe, self._lives, self._answers_taken)
            )
        for member in members:
            if member.is_member and member.has_room:
                member.group.has_room(member)
        for group in groups:
            group.pump()
        for key, client_id in gone:
            self._went(key, client_id)
        if is_told:
            self._all_come()
        for member, count, turn in rooms:
            self._take_room(member, count, turn)
        self._check_relief()

    def _take_room(self, member: FarMember, count: int, turn: int) -> None:
        if member.turn == turn:
            member.credit = count
            member.group.has_room(member)
        if member.credit:
            member.credit = None
            self._asks.append((Notice.PASS, member.group.key, member.client_id, 0, 0))
            self._flush_soon()

    def _confirm_held(
        self, key: _Key, client_id: str, sent: _Sent | None, *, is_empty: bool
    ) -> None:
        if sent is None or sent.member.client_id != client_id:
            self._asks.append((Notice.UNKNOWN, key[0], client_id, key[1], 0))
            self._flush_soon()
            return
        self._unsure.discard(key)
        if not is_empty:
            return
        outgoing = sent.member.group.load(sent.delivery)
        if outgoing is None:  # the log has it no more
            self._take_out(key, sent)
            sent.member.group.settled(sent.member, sent.delivery)
            self._asks.append((Notice.UNKNOWN, key[0], client_id, key[1], 0))
            self._flush_soon()
            return
        self._send(_granted(sent.member, outgoing, key[1], sent.delivery.qos, may_be_seen=True))

    def _resolve(self, groups: dict[ShareGroup, None]) -> None:
        """The other cell said what it has: it has nothing else of what was granted before."""
        for key in self._unsure:
            sent = self._granted.get(key)
            if sent is None:
                continue
            has_ended = key in self._ended
            self._take_out(key, sent)
            group = sent.member.group
            groups[group] = None
            if not has_ended or sent.is_durable:
                # it did not arrive, or was not sent before a record said so
                sent.delivery.may_be_seen = sent.was_seen
                group.refused(sent.member, [sent.delivery])
            elif sent.delivery.qos == 1:
                group.returned(sent.member, sent.delivery)
            else:
                self.drop("cell_ended")
                group.settled(sent.member, sent.delivery)
        self._unsure.clear()
        self._ended.clear()

    def _all_come(self) -> None:
        """All is known of what the members of the other cell have: they get more."""
        self._is_told = True
        for member in list(self.members.values()):
            if member.is_connected:
                member.group.has_room(member)
        self._let_all_go()

    def _safe(self, lives: int, count: int, error: BaseException | None) -> None:
        if error is None and lives == self._lives:
            self._answers_safe = count
            self._hear_soon()

    # -- frames --

    def _flush_soon(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            self._hub.context.defer(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        if not self._link.is_up:
            return
        self._flush_grants()
        answers, self._answers = self._answers, []
        for part in _parts(answers):
            self._answers_sent += 1
            self._unconfirmed.append(part)
            self._link.send(encoded(Answers(part)))

    def _flush_grants(self) -> None:
        out, self._out = self._out, []
        asks, self._asks = self._asks, []
        size, self._out_bytes = self._out_bytes, 0
        if not self._link.is_up:
            return
        if out:
            self._send_frame(Grants(out), size)
        for part in _parts(asks):
            self._send_frame(Grants([], part), 0)

    def _send_frame(self, grants: Grants, size: int) -> None:
        self._grants_sent += 1
        self._untaken.append(size)
        self._link.send(encoded(grants))

    def _hear_soon(self) -> None:
        if not self._is_hearing:
            self._is_hearing = True
            self._hub.context.defer(self._hear)

    def _hear(self) -> None:
        self._is_hearing = False
        heard = Heard(self._grants_taken, self._answers_safe, self._version_taken)
        self._link.send(encoded(heard))


class Shares:
    """Share groups over cells. Construct it before ``Hub.load``. Implements
    ``broker.connection.sharing.services.OtherCells``."""

    def __init__(self, hub: Hub, links: Sequence[Link]) -> None:
        self._hub = hub
        self._cells = {link.number: CellShares(self, link) for link in links}
        self._links = {link.number: link for link in links}
        self.version = 1
        self._changed: dict[_MemberKey, None] = {}
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        hub.share_groups.span(self)

    def start(self) -> None:
        """Forget what other cells had if they do not come."""
        for cell in self._cells.values():
            cell.await_return()

    # -- members of this cell --

    def told(self, group: ShareGroup, member: Member) -> None:
        """A member of this cell joined, came, went, or changed how it is one."""
        self._change(group, member)

    def left(self, group: ShareGroup, member: Member) -> None:
        """A member of this cell is none any longer."""
        self._change(group, member)

    def _change(self, group: ShareGroup, member: Member) -> None:
        if group.is_private:
            return
        if not self._changed:
            self._hub.context.defer(self._tell)
        self._changed[group.key, member.client_id] = None

    def _own(self, key: str, client_id: str) -> Member | None:
        group = self._hub.share_groups.groups.get(key)
        member = None if group is None else group.members.get(client_id)
        return member if member is not None and member.cell is None else None

    def _tell(self) -> None:
        changed, self._changed = self._changed, {}
        if not changed:
            return
        self.version += 1
        changes = [(key, client_id, self._own(key, client_id)) for key, client_id in changed]
        for number, cell in self._cells.items():
            if self._links[number].is_up:
                cell.tell(changes, self.version)
        self.check_told()

    def all(self) -> Iterable[tuple[str, str, Member | None]]:
        """Every member of this cell."""
        for key, group in self._hub.share_groups.groups.items():
            if not group.is_private:
                for client_id, member in group.members.items():
                    if member.cell is None:
                        yield key, client_id, member

    def when_told(self, then: Callable[[], None]) -> bool:
        """Call a function once all linked cells follow the present members; False if they do already."""
        version = self.version + bool(self._changed)
        if self._follows(version):
            return False
        self._waiting.append((version, then))
        return True

    def tell_late(self, then: Callable[[], None]) -> None:
        """A subscriber has waited long enough."""
        for entry in self._waiting:
            if entry[1] is then:
                self._waiting.remove(entry)
                then()
                return

    def _follows(self, version: int) -> bool:
        return all(
            cell.told >= version
            for number, cell in self._cells.items()
            if self._links[number].is_up
        )

    def check_told(self) -> None:
        """A cell follows a version, or is away."""
        waiting, self._waiting = self._waiting, []
        for version, then in waiting:
            if self._follows(version):
                then()
            else:
                self._waiting.append((version, then))

    # -- the store --

    def rejoin(self, group: ShareGroup, member: FarMember) -> None:
        """A member of another cell is in a new group, since its group was deleted."""
        self._cells[member.cell].rejoin(group.key, member)

    def restore(
        self,
        group: ShareGroup,
        members: list[FarMemberRecord],
        granted: list[tuple[Grant, SharedDelivery]],
    ) -> None:
        """Restore the members that a group has in other cells, and what was granted to them."""
        for record in members:
            self._cells[record.cell].restore_member(group, record)
        for grant, delivery in granted:
            self._cells[grant.cell].restore_granted(group, grant, delivery)

    def adopt(self, session: Session, packet_id: int, delivery: SharedDelivery) -> bool:
        """Take up what a restored session has in flight from another cell; False if it must be forgotten."""
        del packet_id
        assert delivery.claim is not None
        number, identity, key = delivery.claim[0].removeprefix(OF_CELL).split(":", 2)
        cell = self._cells.get(int(number))
        return cell is not None and cell.adopt(session, key, identity, delivery)


def _parts(notices: list[_Notice]) -> Iterable[list[_Notice]]:
    """Notices in frames of bounded size."""
    part: list[_Notice] = []
    size = 0
    for notice in notices:
        if size >= _FRAME_BYTES or len(part) >= _NOTICES:
            yield part
            part = []
            size = 0
        part.append(notice)
        size += (len(notice[1]) + len(notice[2])) * 3 + 32
    if part:
        yield part


def _granted(
    member: FarMember, outgoing: Outgoing, number: int, qos: int, *, may_be_seen: bool
) -> Granted:
    message = outgoing.message
    record = record_of(message)
    return Granted(
        member.group.key, member.client_id, member.turn, may_be_seen,
        LoggedRecord(
            number, record.ts_us, record.topic, record.payload, qos, message.retain, record.client_id,
            record.username, record.properties,
        ),
    )  # fmt: skip


def _size_of(granted: Granted) -> int:
    record = granted.record
    return len(record.payload) + len(record.topic) + len(record.properties or "") + 64


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
