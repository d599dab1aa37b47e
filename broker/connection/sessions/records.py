"""Records of sessions and share groups: once in a commit group, however often it changes.

The records of sessions are made when a group is sealed, and what a session held back for its record leaves when that
is committed (``Session.take_held``). One that only moved on, as the record on disk predicts, is written soon, many
changes in one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.connection.context import Context
from broker.connection.sessions.log import SessionLog
from broker.session.outbox import Outbox
from broker.session.prediction import IdPrediction
from broker.session.record import encode_session, encode_subscriptions
from broker.session.state import SessionState
from broker.storage.collection import RAW, TEXT, Collection

# Records of sessions that moved on are written after this number of seconds at the latest.
_MOVED_S: Final = 0.02

# A session whose record is being written, its connection's box, and what leaves there when the record is committed.
_HeldPackets = tuple[SessionState, Outbox | None, IdPrediction, list[bytes]]


class SessionRecords:
    """Writes the records of sessions and share groups, once in a commit group.

    ``save_groups`` puts the records of share groups.
    """

    def __init__(
        self, context: Context, session_log: SessionLog, save_groups: Callable[[], None]
    ) -> None:
        self._session_log = session_log
        self._save_groups = save_groups
        self._later = context.later
        self._writer = context.writer
        self.sessions = Collection(context.writer, b"session/", TEXT, RAW)
        self.subscriptions = Collection(context.writer, b"subscriptions/", TEXT, RAW)
        """By client identifier, as ``broker.session.record`` writes them."""
        self._changed: dict[SessionState, None] = {}
        self._moved: dict[SessionState, None] = {}
        self._subscriptions: dict[SessionState, None] = {}
        """Sessions whose subscriptions changed: all of a session are one value, so a flood of SUBSCRIBEs writes it
        once."""
        self._is_due = False  # records of sessions that moved on
        self._made = 0  # times that records were made
        context.writer.before_commit(self._save)

    @property
    def has_unwritten(self) -> bool:
        """True if records of sessions still have to be written."""
        return bool(self._changed or self._moved)

    def changed(self, session: SessionState) -> None:
        """Write the record of a durable session with the current commit group; of others there is none."""
        if session.is_durable and session not in self._changed and not session.is_ended:
            self._changed[session] = None
            self._writer.touch()

    def moved(self, session: SessionState) -> None:
        """Write the record of a durable session with the next commit group, or soon."""
        self._moved[session] = None
        if not self._is_due:
            self._is_due = True
            self._later(_MOVED_S, self._save_moved)

    def subscriptions_changed(self, session: SessionState) -> None:
        """Write the subscriptions of a durable session, and its record: what is predicted from here on goes by them."""
        self._subscriptions[session] = None
        self._writer.touch()
        self.changed(session)

    def ended(self, session: SessionState) -> None:
        """Delete what is written of a session."""
        self._changed.pop(session, None)
        self._moved.pop(session, None)
        self._subscriptions.pop(session, None)
        if session.is_durable:
            self.sessions.put(session.client_id, None)
            self.subscriptions.put(session.client_id, None)

    def _save_moved(self) -> None:
        self._is_due = False
        if self._moved:
            self._writer.touch()

    def _save(self) -> None:
        """Put what changed into the group that is being sealed."""
        self._save_groups()
        if self._changed or self._moved:
            dirty = self._changed | self._moved
            self._changed = {}
            self._moved = {}
            self._save_sessions(
                [session for session in dirty if session.is_durable and not session.is_ended]
            )

    def _save_sessions(self, sessions: list[SessionState]) -> None:
        self._made += 1
        number = self._made
        log_next = self._session_log.log_next
        waiting = list[_HeldPackets]()
        changed = self._subscriptions
        self._subscriptions = {}
        for session in (
            changed_session for changed_session in changed if changed_session.is_durable
        ):
            self.subscriptions.put(session.client_id, encode_subscriptions(session))
        for session in sessions:
            self.sessions.put(session.client_id, encode_session(session, log_next))
            prediction = session.prediction
            if prediction is not None:
                waiting.append((session, session.box, prediction, prediction.take_held(number)))

        def committed(error: BaseException | None) -> None:
            if error is not None:
                again = (
                    candidate
                    for candidate in sessions
                    if candidate.is_durable and not candidate.is_ended
                )
                self._changed = dict.fromkeys(again) | self._changed
                self._subscriptions = (
                    dict.fromkeys(candidate for candidate in changed if not candidate.is_ended)
                    | self._subscriptions
                )
            for session, box, prediction, packets in waiting:
                prediction.recorded(number, is_written=error is None)
                if packets and box is not None and session.box is box:
                    _release(session, box, packets, error)

        self._writer.when_committed(committed)


def _release(
    session: SessionState, box: Outbox, packets: list[bytes], error: BaseException | None
) -> None:
    """Send the packets that were held back; if their record could not be written, end the connection."""
    if error is None:
        for packet in packets:
            box.add(packet)
    elif session.owner is not None:
        session.owner.fail(error)
