"""Messages of share groups that this cell's parts of them have granted to members of another cell.

A part keeps a message that it granted until the member's cell answers how it ended. After a break of the link that
cell repeats the answers that were not confirmed, and says what its members have; nothing else has arrived there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from broker.cluster.far_members import FarMember
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
from broker.cluster.link import GRACE_S, Link
from broker.cluster.notices import FRAME_BYTES, Key, MemberKey, Told, in_frames, is_logged
from broker.codec.outgoing import Outgoing
from broker.connection.hub import Hub
from broker.connection.sharing.cursors import Cursor
from broker.connection.sharing.group import FarMemberRecord, Grant, ShareGroup
from broker.core.errors import PeerError
from broker.core.stored import record_of
from broker.core.topic import TopicFilter
from broker.session.delivery import DENIED, SharedDelivery

# Bytes of grants that the other cell has not taken: from half of this on publishers of QoS 0 wait.
MAX_UNTAKEN_BYTES: Final = 4 * 1024 * 1024
# Messages, and their bytes, that are granted to members of one cell and not settled: more wait in their groups.
MAX_GRANTED: Final = 65_536
MAX_GRANTED_BYTES: Final = 16 * 1024 * 1024
_WHYS: Final = {Notice.DENIED: DENIED, Notice.TOO_LARGE: "packet_too_large"}


class _Sent(NamedTuple):
    """A message that was granted and is not settled. ``was_seen`` is what was known before it was granted."""

    member: FarMember
    delivery: SharedDelivery
    was_seen: bool
    is_durable: bool
    """True if the member's session outlives its process, and with it that it has the message."""
    size_bytes: int


class GrantedMessages:
    """Members of one other cell as this one's parts of groups know them, and what was granted to them. Implements
    ``broker.cluster.far_members.Granting``. ``flush_soon`` has what is granted sent, ``hear_soon`` has the other cell
    hear what of its answers is safe."""

    def __init__(
        self, hub: Hub, link: Link, flush_soon: Callable[[], None], hear_soon: Callable[[], None]
    ) -> None:
        self._hub = hub
        self._link = link
        self._groups = hub.share_groups
        self._flush_soon = flush_soon
        self._hear_soon = hear_soon
        self.number = link.number
        peer = str(link.number)
        self._sent_count = hub.context.metrics.counter(
            "cell_shared_sent", "messages of share groups sent for members of a cell", peer=peer
        )
        hub.context.metrics.gauge(
            "cell_shared_inflight", lambda: len(self._granted),
            "messages of share groups that members of a cell have and did not settle", peer=peer,
        )  # fmt: skip
        self._lives = 0
        self.members: dict[MemberKey, FarMember] = {}
        self._listed: set[MemberKey] | None = None
        self._granted: dict[Key, _Sent] = {}
        self._granted_bytes = 0
        self._is_told = False
        """True once the other cell has told all that it has."""
        self._going: dict[MemberKey, FarMember] = {}
        """Members that went, and may have messages on their way."""
        self._unsure: set[Key] = set()
        """Grants from before the link came up, whose outcome the other cell has not told yet."""
        self._ended: set[Key] = set()
        """Those of them that an earlier process of the other cell had; the link may break before it has told."""
        self._last_number = 0
        self._out: list[Granted] = []
        self._out_bytes = 0
        self._asks: list[Told] = []
        self._recording: list[Granted] | None = None
        """Grants whose record is in the commit group that is gathering."""
        hub.context.writer.before_commit(self._sealed)
        self._untaken: deque[int] = deque()
        self._untaken_bytes = 0
        self._was_full = False
        self._frames_sent = 0
        self._answers_taken = 0
        self.safe = 0
        """Frames of answers since the link is up, of which everything is safe."""
        self._is_unrecorded = False
        """True while answers that were taken are in no record: their commit group could not be written."""
        self.version = 0
        """Version of the members that messages published from now on may be given to."""

    # -- the link --

    def begin(self, *, is_peer_new: bool) -> None:
        """The link is up: the other cell will say what its members have."""
        self._unsure = set(self._granted)
        if is_peer_new:
            self._ended = set(self._granted)
        self._answers_taken = self.safe = self._frames_sent = 0

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
        self._check_relief()
        self.await_return()

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

    def flush(self) -> None:
        """Send what was granted and asked."""
        out, self._out = self._out, []
        asks, self._asks = self._asks, []
        size, self._out_bytes = self._out_bytes, 0
        if not self._link.is_up:
            return
        if out:
            self._send_frame(Grants(out), size)
        for part in in_frames(asks):
            self._send_frame(Grants([], part), 0)

    def _send_frame(self, grants: Grants, size: int) -> None:
        self._frames_sent += 1
        self._untaken.append(size)
        self._link.send(encoded(grants))

    def heard(self, heard: Heard) -> None:
        """The other cell has taken so many frames."""
        if heard.grants > self._frames_sent:
            raise FrameError("HEARD frame: expected fewer frames than were sent")
        while len(self._untaken) > self._frames_sent - heard.grants:
            self._untaken_bytes -= self._untaken.popleft()
        self._check_relief()

    # -- messages --

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
        if self._is_unrecorded:
            self._hub.context.writer.when_committed(
                partial(self._recorded_again, self._lives, self._answers_taken)
            )

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
        if self._out_bytes >= FRAME_BYTES:
            self.flush()
        else:
            self._flush_soon()

    def ask(self, member: FarMember) -> None:
        """Ask for room of a member."""
        if self._link.is_up:
            self._asks.append((Notice.ASK, member.group.key, member.client_id, member.turn, 0))
            self._flush_soon()

    def _take_out(self, key: Key, sent: _Sent) -> None:
        del self._granted[key]
        self._ended.discard(key)
        self._granted_bytes -= sent.size_bytes

    # -- answers --

    def take_answers(self, frame: Frame) -> None:
        """Take a frame of answers."""
        refused: dict[FarMember, list[SharedDelivery]] = {}
        groups: dict[ShareGroup, None] = {}
        members: dict[FarMember, None] = {}
        rooms: list[tuple[FarMember, int, int]] = []
        recorded: ShareGroup | None = None
        gone: list[MemberKey] = []
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
        self, key: Key, client_id: str, sent: _Sent | None, *, is_empty: bool
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
        """A commit group is written, or not: then what it had of share groups is with the next one that is sealed, and
        one that was sealed before does not have it."""
        if error is not None:
            self._is_unrecorded = True
        elif lives == self._lives and not self._is_unrecorded:
            self.safe = count
            self._hear_soon()

    def _recorded_again(self, lives: int, count: int, error: BaseException | None) -> None:
        if error is None:
            self._is_unrecorded = False
            self._safe(lives, count, None)

    # -- members --

    def take_members(self, frame: Frame) -> None:
        """Take a frame of members."""
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
        self.version = version
        self._hear_soon()

    # -- the store --

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
    names = len(granted.group) + len(granted.client_id) + len(record.client_id)
    size = len(record.payload) + len(record.topic) + len(record.properties or "")
    return size + names + len(record.username or "") + 64
