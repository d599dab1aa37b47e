"""Authentication of a connection: asking the chain, the AUTH packets of both sides, authenticating again.

Before the CONNACK a client that named a method may send AUTH and DISCONNECT only [MQTT-3.1.2-30]; its packets are held
to the size limit that holds before authentication, and all of it to ``connect_timeout``. Authenticating again goes on
beside the client's other traffic (4.12.1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from broker.auth.attempt import ConnectAttempt
from broker.auth.decision import Decision
from broker.auth.exchange import Continue, Exchange, Finished
from broker.auth.subject import subject_of
from broker.codec.decode import decode_packet
from broker.codec.encode import encode_fitting
from broker.codec.framing import frame_at
from broker.codec.packets import Auth, Disconnect, Properties
from broker.codec.wire import protocol_error
from broker.connection import close
from broker.connection.authentication.permits import grant, recheck
from broker.core import reason
from broker.core.errors import PeerError

if TYPE_CHECKING:
    from broker.connection.connection import Connection

METHOD: Final = "Authentication-Method"
DATA: Final = "Authentication-Data"

Told = dict[str, Any]
Done = Callable[[Decision, Told], None]
"""Called with what was decided, and the properties of AUTH that belong into the CONNACK."""


class Login:
    """How a connection logs in: kept as long as it lives, for authenticating again.

    ``exchange`` is there while one is under way, and ends by ``deadline_s`` when that follows a CONNACK.
    """

    __slots__ = ("attempt", "deadline_s", "done", "exchange", "method")

    def __init__(self, method: str, attempt: ConnectAttempt, done: Done) -> None:
        self.method, self.attempt, self.done = method, attempt, done
        self.exchange: Exchange | None = None
        self.deadline_s = 0.0


def begin(c: Connection, attempt: ConnectAttempt, properties: Properties, done: Done) -> None:
    """Authenticate a client that connects; ``done`` is called now or later, or never when the connection ends."""
    method, chain = properties.get(METHOD), c.hub.access.authenticators
    if method is None:
        found = chain.authenticate(attempt)
        if isinstance(found, Decision):
            done(found, {})
        else:
            c.hub.logins.wait(c, found, lambda decision: done(decision, {}))
        return
    exchange = chain.begin(method, attempt)
    if isinstance(exchange, Decision):
        done(exchange, {})
        return
    c.login = Login(method, attempt, done)
    c.login.exchange = exchange
    _step(c, c.login, properties.get(DATA))


def read_exchange(c: Connection, data: bytes, position: int) -> int:
    """Take AUTH and DISCONNECT of a client that has no CONNACK yet; returns how many bytes were used."""
    while not (c.is_closed or c.is_connected or c.is_parked):
        try:
            frame = frame_at(data, position, c.max_packet_bytes)
            if frame is None:
                return position
            start, stop = frame
            if stop > len(data):
                c.wanted = stop - position
                return position
            kind = data[position] >> 4
            packet = decode_packet(data[position], data, start, stop, c.version)
            position = stop
            if isinstance(packet, Disconnect | Auth):
                c.hub.figures.note_before_connack(kind)
            if isinstance(packet, Disconnect):
                close.end(c, "normal", is_will_due=False)
            elif isinstance(packet, Auth):
                take_auth(c, packet)
            else:
                raise protocol_error(f"{type(packet).__name__.upper()} came before authentication had ended")
        except PeerError as error:
            close.refuse_connect(c, error.reason_code, str(error))
    return len(data) if c.is_closed else position


def take_auth(c: Connection, packet: Auth) -> None:
    """AUTH of a client, before or after its CONNACK.

    Raises:
        PeerError: it is not one that the client may send now.
    """
    login = c.login
    if login is None:
        raise protocol_error("AUTH came without an authentication method in the CONNECT")  # [MQTT-4.12.0-6]
    if packet.properties.get(METHOD) != login.method:
        raise protocol_error("AUTH names another authentication method than CONNECT did")  # [MQTT-4.12.0-5]
    if packet.reason_code == reason.REAUTHENTICATE and c.is_connected:
        if login.exchange is not None:
            raise protocol_error("AUTH asks to authenticate again while that is under way")
        exchange = c.hub.access.authenticators.begin(login.method, login.attempt)
        if isinstance(exchange, Decision):
            _not_again(c, login)
            return
        login.exchange = exchange
        login.deadline_s = c.hub.now_s + c.hub.settings.connect_timeout
        c.hub.reauthenticating.add(c)
    elif packet.reason_code != reason.CONTINUE_AUTHENTICATION or login.exchange is None:  # [MQTT-3.15.2-1]
        raise protocol_error(f"AUTH with reason code 0x{packet.reason_code:02X} has no meaning now")
    _step(c, login, packet.properties.get(DATA))


def end_overdue(c: Connection) -> None:
    """End a connection whose client began to authenticate again and does not go on."""
    if c.login is not None and c.hub.now_s > c.login.deadline_s:
        _not_again(c, c.login)


def _step(c: Connection, login: Login, data: bytes | None) -> None:
    assert login.exchange is not None
    result = login.exchange.step(data)
    if isinstance(result, Continue):
        _send(c, login, reason.CONTINUE_AUTHENTICATION, result.data)  # [MQTT-4.12.0-2]
    elif isinstance(result, Finished):
        if c.is_connected:
            c.hub.turns.give_way(c)  # what comes next is read by the rules of then
        _finish(c, login, result)
    else:
        if c.is_connected:
            c.hold(c.hub.logins)
        c.hub.logins.wait(c, result, lambda decision: _finish(c, login, Finished(decision)))


def _finish(c: Connection, login: Login, result: Finished) -> None:
    login.exchange = None
    decision = c.hub.access.authenticators.counted(result.decision, login.attempt, login.method, result.user)
    if not c.is_connected:
        told = {METHOD: login.method, DATA: result.data} if result.data else {METHOD: login.method}
        login.done(decision, told)
        del login.done  # it holds the CONNECT, its will included; the rest is kept to authenticate again
        return
    _authenticated_again(c, login, result)


def _authenticated_again(c: Connection, login: Login, result: Finished) -> None:
    decision = result.decision
    c.hub.reauthenticating.discard(c)
    is_same = decision.username in (None, c.client.username)
    if not (decision.is_allowed and is_same and c.hub.access.still_admits(decision)):
        _not_again(c, login)
        return
    let_in(c, login.attempt.after(decision), decision)
    grant(c, c.client)
    recheck(c)
    if not c.is_closed:
        _send(c, login, reason.SUCCESS, result.data)


def let_in(c: Connection, attempt: ConnectAttempt, decision: Decision) -> None:
    """Keep what is certain of a client that was authenticated, and for how long."""
    hub = c.hub
    trusted = hub.access.authorizer.settings.trusted_client_attributes
    c.subject = subject_of(attempt, decision, roots=hub.client_attributes.roots, trusted=trusted)
    c.account = decision.account
    hub.expiries.watch(c, decision.expires_s)


def _not_again(c: Connection, login: Login) -> None:
    """It failed [MQTT-4.12.1-2]."""
    login.exchange = None
    c.hub.figures.reauthentication_failed.value += 1
    close.disconnect(c, reason.NOT_AUTHORIZED, "not_authorized", text="authenticating again has failed")


def _send(c: Connection, login: Login, code: int, data: bytes) -> None:
    properties: Properties = {METHOD: login.method, DATA: data} if data else {METHOD: login.method}
    encoded = encode_fitting(Auth(code, properties), 5, c.max_sent_bytes)
    if len(encoded) <= c.max_sent_bytes:
        c.reply(encoded)
    elif c.is_connected:  # [MQTT-3.1.2-24]
        close.disconnect(c, reason.PACKET_TOO_LARGE, "answer_too_large")
    else:
        close.refuse_connect(c, reason.PACKET_TOO_LARGE)
