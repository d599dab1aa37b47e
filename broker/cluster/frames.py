"""Frames of a link between two cells: bytes to frames and back, without I/O.

A frame is the length of its body (four bytes), its type, flags, a count (two bytes), and the body. A LIVE body consists
of PUBLISH packets as they are on the wire, of MQTT 5 first; a byte of a version says that those behind it are of that
version, in later frames too, and marks before a packet what it came through, such as its trace. Every other body is a
MessagePack struct with bounds on each member.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from typing import Annotated, Final, NamedTuple, TypeVar

import msgspec

from broker.core.cells import MAX_CELLS
from broker.core.errors import SluiceError

# Newest and oldest link protocol of this release. A link uses the newest that both cells support, so that machines can
# be upgraded one after the other.
PROTOCOL: Final = 4
OLDEST: Final = 4
# Body of a frame with a struct, in bytes.
MAX_STRUCT_BYTES: Final = 1024 * 1024
# Members of a list in one frame; numbers of messages in one.
MAX_LISTED: Final = 8192
MAX_NUMBERS: Final = 65_536
# Body of a frame with messages, in bytes: the largest packet that MQTT has, and some.
MAX_MESSAGES_BYTES: Final = 272 * 1024 * 1024
# Bytes before packets of MQTT 5, and of the versions below.
MARK_V5: Final = b"\5"
MARK_V3: Final = b"\4"
# Byte before the packet of a dead letter.
MARK_LETTER: Final = b"\6"
# Byte before the packet of a message in a trace; the identifiers of the trace and of its span are behind it.
MARK_TRACE: Final = b"\7"
TRACE: Final = Struct("!QQQ")
_HEADER: Final = Struct("!IBBH")
_HEADER_BYTES: Final = _HEADER.size


class FrameError(SluiceError):
    """Bytes that are not frames of a link; nothing behind them can be read."""

    code = "bad_frame"


class FrameType(IntEnum):
    """Types of frames."""

    HELLO = 1
    ROUTES = 2
    ROUTED = 3
    LIVE = 4
    TAKEN = 5
    LOG = 6
    KEPT = 7
    RETAINED_ASKED = 8
    RETAINED_FOUND = 9
    RETAINED_TOLD = 10
    MEMBERS = 11
    GRANTS = 12
    ANSWERS = 13
    HEARD = 14
    FIGURES = 15
    PING = 17


class Frame(NamedTuple):
    """One frame."""

    type: FrameType
    body: bytes
    messages: int = 0
    flags: int = 0


_Name = Annotated[str, msgspec.Meta(max_length=64)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Filter = Annotated[str, msgspec.Meta(min_length=1, max_length=65_535)]
_Numbers = Annotated[list[_Number], msgspec.Meta(max_length=MAX_NUMBERS)]


class Hello(msgspec.Struct, array_like=True, frozen=True):
    """First frame in both directions: identity of a cell, and its progress with what the other one sent before."""

    protocol: _Number
    """The newest that the cell supports."""
    cell: Annotated[int, msgspec.Meta(ge=0, lt=MAX_CELLS)]
    cells: Annotated[int, msgspec.Meta(ge=1, le=MAX_CELLS)]
    incarnation: _Name
    """Changes with each start of the cell."""
    log: _Name
    """Identity of its session log."""
    heard: _Name = ""
    """Incarnation of the other cell that the next two members are about; empty for none."""
    live: _Number = 0
    """Number of its live messages of QoS 1 and 2 that arrived."""
    held: _Numbers = []
    """Positions of those that wait for slow subscribers. Publishers of others wait no longer."""
    log_heard: _Name = ""
    """Identity of the other cell's session log that ``kept`` is about; empty for none."""
    kept: _Number = 0
    """Offset in that log up to which everything is committed here."""
    came: _Number = 0
    """Offset in that log up to which records arrived, and need not be sent again."""
    oldest: _Number = 4
    """The oldest protocol that the cell supports; the default is that of releases without this member. Later releases
    append members, which earlier ones ignore."""


class RouteChanges(msgspec.Struct, array_like=True, frozen=True):
    """Topic filters that a cell has subscribers for, with their kinds (``broker.cluster.routes``); None for none."""

    version: _Number
    is_first: bool
    """True if filters of earlier frames no longer hold."""
    is_last: bool
    """False if more frames belong to this version."""
    changes: Annotated[
        list[tuple[_Filter, Annotated[int, msgspec.Meta(ge=0, lt=12)] | None]],
        msgspec.Meta(max_length=MAX_LISTED),
    ]


class Routed(msgspec.Struct, array_like=True, frozen=True):
    """Messages published from now on follow the routes of this version."""

    version: _Number


# Flag of a TAKEN frame about records of the session log, by offset, and not about live messages.
OF_LOG: Final = 1


class Taken(msgspec.Struct, array_like=True, frozen=True):
    """Messages that subscribers have: live ones of QoS 1 and 2 by position, or records of the session log by offset."""

    before: _Number
    """All before this position arrived and are with their subscribers, but those ``held`` now or earlier."""
    held: _Numbers = []
    released: _Numbers = []
    """Positions that were held, and are no more."""


class LoggedRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A record of the sender's session log: ``broker.core.stream.StreamRecord`` without an addressee."""

    offset: _Number
    ts_us: int
    topic: Annotated[str, msgspec.Meta(min_length=1, max_length=65_535)]
    payload: bytes
    qos: Annotated[int, msgspec.Meta(ge=0, le=2)]
    retain: bool
    client_id: Annotated[str, msgspec.Meta(max_length=65_535)]
    username: Annotated[str, msgspec.Meta(max_length=65_535)] | None = None
    properties: str | None = None
    stamp: _Number = 0
    """Stamp of a message for the receiver's retained store, whose payload is a value of it, empty for a deletion; 0 for
    a message to subscribers."""


class LogRecords(msgspec.Struct, array_like=True, frozen=True):
    """Records of the sender's session log, in order; ``following`` is the offset behind the last one that was read."""

    records: Annotated[list[LoggedRecord], msgspec.Meta(max_length=MAX_LISTED)]
    following: _Number


class Kept(msgspec.Struct, array_like=True, frozen=True):
    """Everything below this offset of the other's session log is committed here."""

    offset: _Number


class MemberState(msgspec.Struct, array_like=True, frozen=True):
    """How a client of the sender is a member of a share group."""

    qos: Annotated[int, msgspec.Meta(ge=0, le=2)]
    is_here: bool
    """True if it has a connection."""
    is_durable: bool
    """True if its session outlives the process."""
    retains: bool
    """True if it wants RETAIN as it was published."""
    window: Annotated[int, msgspec.Meta(ge=0, le=65_535)]
    """Messages of QoS 1 and 2 that it may have in flight."""
    turn: _Number


_ClientId = Annotated[str, msgspec.Meta(max_length=65_535)]


class Members(msgspec.Struct, array_like=True, frozen=True):
    """Members of share groups among the sender's clients: group, client, and its state, None for one that left."""

    version: _Number
    is_first: bool
    """True if members of earlier frames that are not in this version are gone."""
    is_last: bool
    """False if more frames belong to this version."""
    changes: Annotated[
        list[tuple[_Filter, _ClientId, MemberState | None]], msgspec.Meta(max_length=MAX_LISTED)
    ]


class Granted(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A message for a member of a share group. The record's offset is the number of the grant: twice its offset in
    the sender's session log, or an odd one; 0 at QoS 0."""

    group: _Filter
    client_id: _ClientId
    turn: _Number
    may_be_seen: bool
    record: LoggedRecord


class Notice(IntEnum):
    """What the part of a group, or a member's cell, tells the other one about a member or a grant."""

    ASK = 0
    """The part waits for room of the member, in the turn that the number says."""
    PASS = 1
    """The part does not need the room that it was offered."""
    UNKNOWN = 2
    """The part has no such grant."""
    GOES = 13
    """The part has heard that the member went: keys move once the answer says that nothing is on its way."""
    WENT = 14
    SETTLED = 3
    RETURNED = 4
    """The member was sent it, and others may have it."""
    NO_ROOM = 5
    """The member was not sent it."""
    GONE = 6
    """The same, and the client is no member."""
    DENIED = 7
    TOO_LARGE = 8
    ROOM = 9
    """The member can take as many as the number says."""
    HELD = 10
    """The member has it."""
    HELD_EMPTY = 11
    """The same, and its cell lost the message."""
    TOLD = 12
    """All that the cell has was told since the link is up."""


_Notices = Annotated[
    list[
        tuple[Notice, Annotated[str, msgspec.Meta(max_length=65_535)], _ClientId, _Number, _Number]
    ],
    msgspec.Meta(max_length=MAX_LISTED),
]


class Grants(msgspec.Struct, array_like=True, frozen=True):
    """What a part of a group sends to a cell of members: messages, and notices of kind, group, client, number, turn."""

    granted: Annotated[list[Granted], msgspec.Meta(max_length=MAX_LISTED)]
    notices: _Notices = []


class Answers(msgspec.Struct, array_like=True, frozen=True):
    """What a cell of members sends to a part of their group."""

    notices: _Notices


class Heard(msgspec.Struct, array_like=True, frozen=True):
    """Progress with frames about share groups since the link is up."""

    grants: _Number = 0
    """GRANTS frames that were taken."""
    answers: _Number = 0
    """ANSWERS frames of which everything is safe."""
    version: _Number = 0
    """Version of the members that messages published from now on may be given to."""


_Name255 = Annotated[str, msgspec.Meta(max_length=255)]
_Key = Annotated[bytes, msgspec.Meta(max_length=200_000)]


class LookUp(msgspec.Struct, array_like=True, frozen=True):
    """A request for a slice of the retained messages of a cell that match a filter, from a position on."""

    number: _Number
    filter: _Filter
    position: _Key
    has_values: bool = True
    """False to leave the values empty."""


class RetainedAsked(msgspec.Struct, array_like=True, frozen=True):
    """Requests about retained messages. ``settles``, if not 0, asks for RETAINED_TOLD with this number, once all
    messages with RETAIN that the receiver published before are with the cells of their topics, and with the sender."""

    settles: _Number = 0
    look_ups: Annotated[list[LookUp], msgspec.Meta(max_length=MAX_LISTED)] = []


class FoundSlice(msgspec.Struct, array_like=True, frozen=True):
    """The answer to a ``LookUp``: keys of topics and values, as the retained store has them. ``as_of`` is the sender's
    stamp up to which messages were seen; ``position`` is where the next slice begins, None at the end."""

    number: _Number
    as_of: _Number
    values: Annotated[list[tuple[_Key, bytes]], msgspec.Meta(max_length=MAX_LISTED)]
    position: _Key | None


class RetainedFound(msgspec.Struct, array_like=True, frozen=True):
    """Answers to requests of RETAINED_ASKED."""

    slices: Annotated[list[FoundSlice], msgspec.Meta(max_length=MAX_LISTED)]


# A message that was not retained: its offset, the reason, its code, and the text.
Refused = tuple[_Number, _Name255, Annotated[int, msgspec.Meta(ge=0x80, le=0xFF)], str]


class RetainedTold(msgspec.Struct, array_like=True, frozen=True):
    """The number and bytes of the sender's retained messages. ``settled`` answers ``RetainedAsked.settles``: later
    messages of the sender have stamps above ``since``. ``refused`` are messages of the receiver's session log that
    were not retained; the first frame since the link is up repeats those that a break may have lost."""

    count: _Number
    size_bytes: _Number
    settled: _Number = 0
    since: _Number = 0
    refused: Annotated[list[Refused], msgspec.Meta(max_length=MAX_LISTED)] = []


class Figures(msgspec.Struct, array_like=True, frozen=True):
    """What the sender says of itself on ``$SYS`` topics, by the name that follows ``$SYS/broker/``."""

    values: Annotated[dict[_Name255, int | float], msgspec.Meta(max_length=MAX_LISTED)]


S = TypeVar("S", bound=msgspec.Struct)

_encode: Final = msgspec.msgpack.Encoder().encode
_BODIES: Final[dict[type[msgspec.Struct], FrameType]] = {
    Hello: FrameType.HELLO,
    RouteChanges: FrameType.ROUTES,
    Routed: FrameType.ROUTED,
    Taken: FrameType.TAKEN,
    LogRecords: FrameType.LOG,
    Kept: FrameType.KEPT,
    Members: FrameType.MEMBERS,
    Grants: FrameType.GRANTS,
    Answers: FrameType.ANSWERS,
    Heard: FrameType.HEARD,
    RetainedAsked: FrameType.RETAINED_ASKED,
    RetainedFound: FrameType.RETAINED_FOUND,
    RetainedTold: FrameType.RETAINED_TOLD,
    Figures: FrameType.FIGURES,
}
_DECODERS: Final = {body: msgspec.msgpack.Decoder(body).decode for body in _BODIES}
_WITH_MESSAGES: Final = frozenset(
    (FrameType.LIVE, FrameType.LOG, FrameType.GRANTS, FrameType.RETAINED_FOUND)
)
_TYPES: Final = {int(frame_type): frame_type for frame_type in FrameType}


def header(frame_type: FrameType, size_bytes: int, count: int = 0, flags: int = 0) -> bytes:
    """The bytes before a body."""
    return _HEADER.pack(size_bytes, frame_type, flags, min(count, 0xFFFF))


# A frame without a body: the sender's event loop runs.
PING: Final = header(FrameType.PING, 0)


def encoded(body: msgspec.Struct, flags: int = 0) -> bytes:
    """A frame with a struct."""
    data = _encode(body)
    return header(_BODIES[type(body)], len(data), 0, flags) + data


def decoded(kind: type[S], frame: Frame) -> S:
    """The struct in a frame.

    Raises:
        FrameError: the body is no such struct, or a member is out of bounds.
    """
    try:
        struct = _DECODERS[kind](frame.body)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise FrameError(
            f"{frame.type.name} frame: expected {kind.__name__}, got {error}"
        ) from None
    assert isinstance(struct, kind)
    return struct


class FrameDecoder:
    """Takes bytes in any pieces and gives frames. Holds no more than came of one frame."""

    __slots__ = ("_buffer", "_max_messages_bytes", "_wanted")

    def __init__(self, max_messages_bytes: int = MAX_MESSAGES_BYTES) -> None:
        self._max_messages_bytes = max_messages_bytes
        self._buffer = bytearray()
        self._wanted = _HEADER_BYTES

    @property
    def held_bytes(self) -> int:
        """Bytes of a frame that is not complete."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Every frame that is complete now, in order; iterate to the end before feeding again.

        Raises:
            FrameError: the stream breaks the rules; the frames before were given, and nothing behind can be read.
        """
        self._buffer += data
        if len(self._buffer) < self._wanted:
            return
        whole = bytes(self._buffer)
        self._buffer.clear()
        end = len(whole)
        position = 0
        self._wanted = _HEADER_BYTES
        while end - position >= _HEADER_BYTES:
            size, number, flags, count = _HEADER.unpack_from(whole, position)
            frame_type = _TYPES.get(number)
            if frame_type is None:
                raise FrameError(f"expected a known type of frame, got {number}")
            limit = self._max_messages_bytes if frame_type in _WITH_MESSAGES else MAX_STRUCT_BYTES
            if size > limit:
                raise FrameError(
                    f"{frame_type.name} frame: expected at most {limit} bytes, got {size}"
                )
            stop = position + _HEADER_BYTES + size
            if stop > end:
                self._wanted = stop - position
                break
            body = whole[position + _HEADER_BYTES : stop]
            position = stop
            yield Frame(frame_type, body, count, flags)
        self._buffer += whole[position:]
