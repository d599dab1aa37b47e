"""The commit log of a cell as a stream of JetStream: one message for each group, or several where a group is large.

Every message is published with the sequence that it must follow (``Nats-Expected-Last-Sequence``), so the stream has
one writer: who claims the cell publishes a claim behind all that it has applied, and whatever an earlier owner sends
after that is refused. Answers may be lost, and a leader that was cut off may refuse wrongly. So a message whose answer
is missing is sent again as it is, never another one in its place, until it is known to be in the stream or not.

Each message begins with its kind, a flag, the epoch of its owner, the number of the group in that epoch, and a
checksum. The flag of a group says that more parts of it follow; that of a claim, that its owner's copy had content
before the log.
"""

from __future__ import annotations

import json
import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from struct import Struct
from struct import error as StructError
from typing import Any, Final, NamedTuple
from zlib import crc32

from broker.cluster.nats.line import Line, Servers
from broker.core.errors import ConfigError, Unavailable
from broker.storage.commit_log import (
    BASE,
    Entry,
    Fenced,
    LogBehind,
    LogLost,
    Mark,
    Steps,
    packed,
    unpacked,
)

_HEAD: Final = Struct(">BBIQI")
# Kinds of messages. A release writes a new kind only where the release before it reads that kind: machines of both
# follow one log during an upgrade.
_GROUP: Final = 1
_CLAIM: Final = 2

# Seconds for one try, and until an owner gives up: an election takes at most 9 s, and its heartbeat.
_TRY_S: Final = 0.6
_PAUSE_S: Final = 0.05
_GIVE_UP_S: Final = 15.0
_ASK_S: Final = 2.0
_MAKE_S: Final = 5.0
# Messages and bytes that are read at once.
_READ_MESSAGES: Final = 64
_READ_BYTES: Final = 4 * 1024 * 1024
# Room that a message leaves for its headers, and the largest one: parts share the turn with others of the server.
_HEADERS_BYTES: Final = 4096
_MOST_PART: Final = 1024 * 1024
# Codes of JetStream: server/errors.json of nats-server.
_WRONG_LAST_SEQUENCE: Final = frozenset((10071, 10164))
_NO_STREAM: Final = 10059
_STREAM_EXISTS: Final = 10058
_TOO_FEW: Final = frozenset((10005, 10008, 10009, 10074))
_OF_TOO_MUCH: Final = frozenset((10077, 10023, 10047))
CLUSTER_KEY: Final = "sluice-cluster"
LOST_END: Final = (
    "restore the data of the NATS servers, or rebuild the log with 'sluice cluster repair' on the machine whose store "
    "has the highest position"
)
_DUPLICATES_NS: Final = 120 * 1_000_000_000


class StreamSettings(NamedTuple):
    """How the stream of a cell is kept: on so many servers, and at most so many bytes on each. ``cluster`` is the
    digest of the cluster that it belongs to, which its metadata has."""

    replicas: int
    max_bytes: int
    cluster: str = ""


class _Part(NamedTuple):
    """A message on its way, and the sequence that it must follow."""

    payload: bytes
    id: str
    after: int


def problem_of_stream(config: Mapping[str, Any], stream: str, cluster: str) -> str:
    """The problem with a stream, by its configuration, that belongs to a cluster with another digest; else empty."""
    if (config.get("metadata") or {}).get(CLUSTER_KEY, cluster) == cluster:
        return ""
    return (
        f"cluster.name: the stream {stream} in NATS belongs to another cluster of this name, with other machines or "
        "cells. Try: another name, or an account of its own in NATS"
    )


class NatsLog:
    """Implements ``broker.storage.commit_log.CommitLog`` for one cell of a cluster."""

    def __init__(
        self,
        servers: Servers,
        cluster: str,
        cell: int,
        who: str,
        give_up_s: float = _GIVE_UP_S,
        on_over: Callable[[str], None] = lambda _reason: None,
    ) -> None:
        """``who`` names this process, as claims and identifiers of messages have it: unique in the cluster for ever.
        ``on_over`` is called with the reason when this process can no longer be the owner, before an error is
        raised."""
        self.cell = cell
        self._who = who
        self._subject = f"sluice.{cluster}.cell.{cell}"
        self._stream = f"sluice_{cluster}_{cell}"
        self._line = Line(servers, f"sluice {who} cell {cell}")
        self._give_up_s = give_up_s
        self._on_over = on_over
        self._is_owner = False
        self._end = Mark()
        """What this process has written last, or applied before its claim."""
        self._seen = 0
        """Sequence of the last message read, of a group that its owner did not finish too."""
        self._reason = ""
        """Why the last message was not taken."""
        self._waiting: list[_Part] = []
        """Parts that may or may not be in the stream."""

    # -- the stream --

    def make(self, settings: StreamSettings) -> None:
        """Make the stream, if there is none.

        Raises:
            ConfigError: there is one that is kept otherwise, or it cannot be made like this.
            Unavailable: no server answers, or too few.
        """
        wanted = {
            "name": self._stream,
            "subjects": [self._subject],
            "retention": "limits",
            "storage": "file",
            "discard": "new",
            "num_replicas": settings.replicas,
            "max_bytes": settings.max_bytes,
            "allow_direct": True,
            "duplicate_window": _DUPLICATES_NS,
            "metadata": {CLUSTER_KEY: settings.cluster},
        }
        answer = self._api(f"STREAM.CREATE.{self._stream}", wanted, _MAKE_S)
        code = answer.get("error", {}).get("err_code")
        if code == _STREAM_EXISTS:
            config = self.state()["config"]
            there = config["num_replicas"]
            if problem := problem_of_stream(config, self._stream, settings.cluster):
                raise ConfigError([problem])
            if there != settings.replicas:
                text = (
                    f"cluster.nats.replicas: the stream {self._stream} is kept on {there} servers, and not on "
                    f"{settings.replicas}; change the setting, or the stream with 'nats stream edit'"
                )
                raise ConfigError([text])
        elif code in _TOO_FEW:
            raise Unavailable(f"NATS: too few servers run for {settings.replicas} replicas")
        elif code is not None:
            reason = answer["error"].get("description", "")
            text = f"cluster.nats: the stream {self._stream} of {settings.replicas} replicas cannot be made: {reason}"
            raise ConfigError([text])

    def state(self) -> Mapping[str, Any]:
        """The stream as JetStream describes it: ``state`` and ``config`` of ``STREAM.INFO``.

        Raises:
            LogLost: there is no stream.
            Unavailable: no server answers.
        """
        answer = self._api(f"STREAM.INFO.{self._stream}", {}, _ASK_S)
        if answer.get("error", {}).get("err_code") == _NO_STREAM:
            raise LogLost(f"there is no stream {self._stream} in NATS")
        if "state" not in answer:
            raise Unavailable(f"NATS: {answer.get('error', {}).get('description', 'no state')}")
        return answer

    def trimmed_to(self) -> int:
        """The position that a store must have reached to follow the log. Raises as ``state``."""
        first: int = self.state()["state"]["first_seq"]
        return first - 1

    def leads_elsewhere(self, state: Mapping[str, Any]) -> str:
        """Name of this machine's server, where it has all of the stream and another one leads it; else empty. The
        leader should be with the owner: a server that is lost then stops no cells but those of its machine."""
        own = self._line.first_server
        cluster = state.get("cluster", {})
        current = [one["name"] for one in cluster.get("replicas") or () if one.get("current")]
        return own if own in current and cluster.get("leader") else ""

    def have_lead(self, server: str) -> None:
        """Ask for another leader of the stream; appends wait for less than a second.

        Raises:
            Unavailable: no server answers.
        """
        asked = {"placement": {"preferred": server}}
        self._api(f"STREAM.LEADER.STEPDOWN.{self._stream}", asked, _ASK_S)

    def give_up(self, reason: str) -> None:
        self._on_over(reason)

    def trim(self, position: int) -> None:
        answer = self._api(f"STREAM.PURGE.{self._stream}", {"seq": position}, _ASK_S)
        if "error" in answer:
            raise Unavailable(f"NATS: {answer['error'].get('description', 'not trimmed')}")

    def close(self) -> None:
        self._line.close()

    # -- reading --

    def follow(self, after: Mark) -> Iterator[Entry]:
        parts: list[bytes] = []
        at = after
        position = after.position
        while messages := self._read(position + 1):
            for sequence, payload in messages:
                if sequence != position + 1:
                    raise LogLost(
                        f"cell {self.cell}: the log in NATS continues at {sequence}, and this copy ends at {position}"
                    )
                self._seen = position = sequence
                kind, flag, epoch, number, body = self._unpacked(payload, sequence)
                if kind == _CLAIM:
                    if flag and at == Mark():
                        raise LogLost(f"cell {self.cell}: the log in NATS began after its store")
                    if at == BASE and not flag:
                        text = f"cell {self.cell}: the log in NATS began with another store than this machine's"
                        raise ConfigError([text])
                    if epoch <= at.epoch:
                        raise self._damaged(sequence, f"epoch {epoch} is claimed after {at.epoch}")
                    parts.clear()  # of a group that its owner did not finish
                    at = Mark(sequence, epoch, 0)
                    yield Entry(at, ())
                    continue
                if (epoch, number) != (at.epoch, at.number + 1):
                    after_that = (
                        f"group {number} of epoch {epoch} follows {at.number} of {at.epoch}"
                    )
                    raise self._damaged(sequence, after_that)
                parts.append(body)
                if flag:
                    continue
                at = Mark(sequence, epoch, number)
                try:
                    steps = unpacked(b"".join(parts))
                except ValueError as error:
                    raise self._damaged(sequence, "a group cannot be read") from error
                parts.clear()
                yield Entry(at, steps)

    def _read(self, first: int) -> list[tuple[int, bytes]]:
        """Some messages from a sequence on; none at the end."""
        asked = {"seq": first, "batch": _READ_MESSAGES, "max_bytes": _READ_BYTES}
        answers = self._line.ask_for_list(
            f"$JS.API.DIRECT.GET.{self._stream}", json.dumps(asked).encode(), _ASK_S
        )
        if answers[-1].is_nobodys:
            self._line.next_server()
            raise Unavailable(f"NATS: no server has the stream {self._stream} at present")
        return [
            (int(answer.headers["Nats-Sequence"]), answer.payload)
            for answer in answers
            if "Nats-Sequence" in answer.headers
        ]

    def _unpacked(self, payload: bytes, sequence: int) -> tuple[int, int, int, int, bytes]:
        try:
            kind, flag, epoch, number, checksum = _HEAD.unpack_from(payload)
        except StructError as error:
            raise self._damaged(sequence, "it is too short") from error
        body = payload[_HEAD.size :]
        if crc32(body) != checksum:
            raise self._damaged(sequence, "its checksum differs")
        if kind not in (_GROUP, _CLAIM):
            raise Unavailable(
                f"cell {self.cell}: message {sequence} of the log in NATS was written by a newer release; upgrade this "
                "machine"
            )
        return kind, flag, epoch, number, body

    def _damaged(self, sequence: int, what: str) -> LogLost:
        return LogLost(
            f"cell {self.cell}: message {sequence} of the log in NATS is damaged: {what}"
        )

    # -- writing --

    def claim(self, applied: Mark, *, has_base: bool = False) -> Mark | None:
        after = max(applied.position, self._seen)
        self._end = applied
        epoch = applied.epoch + 1
        payload = _message(_CLAIM, epoch, 0, self._who.encode(), flag=has_base)
        self._waiting = [_Part(payload, f"{self._who}/{epoch}", after)]
        self._is_owner = False
        try:
            position = self._sent()
        except Fenced:
            self._waiting.clear()
            return None
        except LogLost:
            self._waiting.clear()
            raise
        self._end = Mark(position, epoch, 0)
        self._is_owner = True
        return self._end

    def append(self, steps: Steps) -> Mark:
        end = self._end
        number = end.number + 1
        body = packed(steps)
        size = min(self._line.info.get("max_payload", _MOST_PART), _MOST_PART) - _HEADERS_BYTES
        pieces = [body[at : at + size] for at in range(0, len(body), size)] or [b""]
        last = len(pieces) - 1
        self._waiting = [
            _Part(
                _message(_GROUP, end.epoch, number, piece, flag=at < last),
                f"{self._who}/{end.epoch}/{number}/{at}",
                end.position + at,
            )
            for at, piece in enumerate(pieces)
        ]
        # decided now or later, the next one follows it
        self._end = Mark(end.position + len(pieces), end.epoch, number)
        self._sent()
        return self._end

    def decide(self) -> Mark:
        self._sent()
        return self._end

    def _sent(self) -> int:
        """Send what waits, each until it is known to be in the stream; the sequence of the last one."""
        position = self._end.position
        until_s = time.monotonic() + self._give_up_s
        while self._waiting:
            part = self._waiting[0]
            if self._is_in(part):
                position = part.after + 1
                del self._waiting[0]
            elif time.monotonic() >= until_s:
                self._check_end(part)
                raise Unavailable(
                    f"the log of cell {self.cell} in NATS has confirmed nothing for {self._give_up_s:g} s: "
                    f"{self._reason}"
                )
        return position

    def _check_end(self, part: _Part) -> None:
        """Raises ``LogBehind`` where the stream ends before what a message must follow."""
        try:
            last = self.state()["state"]["last_seq"]
        except Unavailable:
            return
        if last < part.after:
            raise LogBehind(
                f"cell {self.cell}: NATS has lost what it had confirmed: its log ends at {last}, and the store at "
                f"{part.after}; {LOST_END}"
            )

    def _is_in(self, part: _Part) -> bool:
        """Send a message once; True if it is in the stream, False if that is not known.

        Raises:
            Fenced: another message is in its place.
            LogLost: the stream begins behind a claim's place.
            Unavailable: the stream takes no more.
        """
        headers = {"Nats-Msg-Id": part.id, "Nats-Expected-Last-Sequence": str(part.after)}
        try:
            answer = self._line.ask(self._subject, part.payload, _TRY_S, headers)
        except Unavailable as error:
            return self._not_known(str(error))
        if answer.is_nobodys:
            return self._not_known("the stream has no leader")
        said = _decoded(answer.payload)
        code = said.get("error", {}).get("err_code")
        if code is None and "seq" in said:
            if said["seq"] != part.after + 1:
                raise self._fenced()
            return True
        if code in _WRONG_LAST_SEQUENCE:
            return self._is_there(part)
        if code in _OF_TOO_MUCH:
            raise Unavailable(
                f"the log of cell {self.cell} in NATS is full: {said['error'].get('description', '')}"
            )
        return self._not_known(said.get("error", {}).get("description", "no answer of JetStream"))

    def _not_known(self, reason: str) -> bool:
        self._reason = reason
        time.sleep(_PAUSE_S)
        return False

    def _is_there(self, part: _Part) -> bool:
        """Look at the message in a sent one's place: only what is committed can be read."""
        asked = {"seq": part.after + 1}
        try:
            answer = self._api(f"STREAM.MSG.GET.{self._stream}", asked, _ASK_S, raw=True)
        except Unavailable:
            return False
        if (payload := answer.get("payload")) is not None:
            if payload == part.payload:
                return True
            raise self._fenced()
        try:
            first = self.state()["state"]["first_seq"]
        except (Unavailable, LogLost):
            return False
        if (
            first > part.after + 1
        ):  # trimmed: by an owner that was behind it, or the log was made again
            if self._is_owner:
                raise self._fenced()
            raise LogLost(
                f"cell {self.cell}: the log in NATS begins at {first}, and this copy ends at {part.after}"
            )
        return self._not_known("the stream ends before it")

    def _fenced(self) -> Fenced:
        reason = f"another process has claimed cell {self.cell}"
        if self._is_owner:
            self._on_over(reason)
        return Fenced(reason)

    def _api(
        self, operation: str, body: Mapping[str, Any], within_s: float, *, raw: bool = False
    ) -> dict[str, Any]:
        """The answer of JetStream. ``raw``: with the ``payload`` of the message that it has, if it has one."""
        asked = json.dumps(body).encode() if body else b""
        answer = self._line.ask(f"$JS.API.{operation}", asked, within_s)
        if answer.is_nobodys:
            self._line.next_server()
            raise Unavailable("NATS: JetStream is not enabled, or has no majority of its servers")
        said = _decoded(answer.payload)
        if raw and "message" in said:
            said["payload"] = b64decode(said["message"].get("data", ""))
        return said


def _message(kind: int, epoch: int, number: int, body: bytes, *, flag: bool) -> bytes:
    return _HEAD.pack(kind, flag, epoch, number, crc32(body)) + body


def _decoded(payload: bytes) -> dict[str, Any]:
    try:
        said = json.loads(payload)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}
