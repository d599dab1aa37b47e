"""Share groups over cells: each cell has a part of a group, for the messages that are published there.

All parts know all members. A part gives a message to a member of its own cell where the strategy leaves that free, or
*grants* it to one of another cell, which sends it if the member has room and answers how it ended: settled, or
returned for others. Until then the part keeps the message (``granted``), as it keeps what its own members have in
flight. After a break of the link, the member's cell (``held``) repeats the answers that were not confirmed, and says
what its members have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from broker.cluster.far_members import FarMember
from broker.cluster.frames import Frame, FrameType, Heard, decoded, encoded
from broker.cluster.granted import GrantedMessages
from broker.cluster.held import HeldMessages
from broker.cluster.link import Link
from broker.cluster.notices import MemberKey
from broker.connection.hub import Hub
from broker.connection.sharing.group import FarMemberRecord, Grant, ShareGroup
from broker.connection.sharing.member import Member
from broker.connection.sharing.services import OF_CELL
from broker.session.delivery import SharedDelivery
from broker.session.session import Session


class CellShares:
    """What this cell and another one tell each other about share groups, over their link."""

    def __init__(self, shares: Shares, link: Link) -> None:
        self._shares = shares
        self._link = link
        self._context = link.hub.context
        self._is_flushing = self._is_hearing = False
        self._peer = self._peer_log = ""
        self.granted = GrantedMessages(link.hub, link, self._flush_soon, self._hear_soon)
        self.held = HeldMessages(link.hub, link, self._flush_soon, self._hear_soon)
        link.parts.append(self)
        link.takers |= {
            FrameType.MEMBERS: self.granted.take_members,
            FrameType.GRANTS: self.held.take,
            FrameType.ANSWERS: self.granted.take_answers,
            FrameType.HEARD: self._take_heard,
        }

    def begin(self) -> None:
        """The link is up: say who is a member here, and what of the other cell's messages they have."""
        link = self._link
        is_peer_new = link.heard != self._peer
        is_log_same = self._peer_log in ("", link.log_heard)
        self._peer, self._peer_log = link.heard, link.log_heard
        self.granted.begin(is_peer_new=is_peer_new)
        self.held.begin(is_peer_new=is_peer_new, is_log_same=is_log_same)
        self.held.tell(self._shares.all(), self._shares.version, is_whole=True)
        self._flush()

    def end(self) -> None:
        """The link is down."""
        self.granted.end()
        self.held.end()
        self._shares.check_told()

    def _flush_soon(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            self._context.defer(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        if self._link.is_up:
            self.granted.flush()
            self.held.flush()

    def _hear_soon(self) -> None:
        if not self._is_hearing:
            self._is_hearing = True
            self._context.defer(self._hear)

    def _hear(self) -> None:
        self._is_hearing = False
        heard = Heard(self.held.taken, self.granted.safe, self.granted.version)
        self._link.send(encoded(heard))

    def _take_heard(self, frame: Frame) -> None:
        heard = decoded(Heard, frame)
        told = self.held.told
        self.held.heard(heard)
        if self.held.told > told:
            self._shares.check_told()
        self.granted.heard(heard)


class Shares:
    """Share groups over cells. Construct it before ``Hub.load``. Implements
    ``broker.connection.sharing.services.OtherCells``."""

    def __init__(self, hub: Hub, links: Sequence[Link]) -> None:
        self._hub = hub
        self._cells = {link.number: CellShares(self, link) for link in links}
        self._links = {link.number: link for link in links}
        self.version = 1
        self._changed: dict[MemberKey, None] = {}
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        hub.share_groups.span(self)

    def start(self) -> None:
        """Forget what other cells had if they do not come."""
        for cell in self._cells.values():
            cell.granted.await_return()

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
                cell.held.tell(changes, self.version)
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
            cell.held.told >= version
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
        self._cells[member.cell].granted.rejoin(group.key, member)

    def restore(
        self,
        group: ShareGroup,
        members: list[FarMemberRecord],
        granted: list[tuple[Grant, SharedDelivery]],
    ) -> None:
        """Restore the members that a group has in other cells, and what was granted to them."""
        for record in members:
            self._cells[record.cell].granted.restore_member(group, record)
        for grant, delivery in granted:
            self._cells[grant.cell].granted.restore_granted(group, grant, delivery)

    def adopt(self, session: Session, packet_id: int, delivery: SharedDelivery) -> bool:
        """Take up what a restored session has in flight from another cell; False if it must be forgotten."""
        del packet_id
        assert delivery.claim is not None
        number, identity, key = delivery.claim[0].removeprefix(OF_CELL).split(":", 2)
        cell = self._cells.get(int(number))
        return cell is not None and cell.held.adopt(session, key, identity, delivery)
