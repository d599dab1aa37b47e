"""Authentication of a connection: asking the chain, the AUTH packets of both sides, authenticating again.

Before the CONNACK a client that named a method may send AUTH and DISCONNECT only [MQTT-3.1.2-30]; its packets are held
to the size limit that holds before authentication, and all of it to ``connect_timeout``. Authenticating again runs
along with the client's other traffic (4.12.1).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final

from broker.auth.access import Access
from broker.auth.attempt import ConnectAttempt
from broker.auth.backends.source import Unanswered
from broker.auth.client_attributes import ClientAttributes
from broker.auth.decision import IGNORED, Decision
from broker.auth.exchange import Continue, Finished
from broker.auth.subject import Subject
from broker.codec.decode import decode_packet
from broker.codec.encode import encode_fitting
from broker.codec.framing import frame_at
from broker.codec.packets import Auth, Properties
from broker.codec.primitives import protocol_error
from broker.connection.authentication.expiry import Expiries
from broker.connection.authentication.pending import PendingLogins
from broker.connection.authentication.permissions import Permissions
from broker.connection.connection import PARKED_LOGIN, Connection, Login, LoginDone
from broker.connection.context import Context
from broker.connection.state_machine import check_order
from broker.core import reason
from broker.core.client import Client
from broker.core.errors import PeerError

METHOD: Final = "Authentication-Method"
DATA: Final = "Authentication-Data"


class ConnectRefused(PeerError):
    """A CONNECT is refused. The text is for the client, ``detail`` for the log alone, and ``server`` the address of
    another server to use."""

    def __init__(self, code: int, text: str = "", *, detail: str = "", server: str = "") -> None:
        super().__init__(code, text)
        self.detail = detail
        self.server = server


class Logins:
    """Logs clients in, and takes AUTH."""

    def __init__(self, context: Context, access: Access, permissions: Permissions) -> None:
        self._context = context
        self._access = access
        self._permissions = permissions
        settings = context.settings
        override = None if settings.clientid_override == "disabled" else settings.clientid_override
        self.attributes = ClientAttributes(settings.client_attrs_init, context.metrics, override)
        """Attributes of clients, by the settings of the start."""
        self.waiting = PendingLogins(context)
        self._expiries = Expiries(context)
        self._again: set[Connection] = set()
        """Connected, and an exchange of AUTH is under way."""

    def begin(
        self, c: Connection, attempt: ConnectAttempt, properties: Properties, done: LoginDone
    ) -> None:
        """Authenticate a client that connects; ``done`` is called now or later, or never when the connection ends."""
        method = properties.get(METHOD)
        chain = self._access.chain_of(attempt.listener)
        if method is None:
            verdict = self._with_rules(attempt, self._access.authenticate(attempt))
            if isinstance(verdict, Decision):
                done(verdict, {})
            else:
                self.waiting.wait(c, verdict, lambda decision: done(decision, {}))
            return
        exchange = chain.begin(method, attempt)
        if isinstance(exchange, Decision):
            done(exchange, {})
            return
        c.login = Login(method, attempt, done)
        c.login.exchange = exchange
        self._step(c, c.login, properties.get(DATA))

    def _with_rules(
        self, attempt: ConnectAttempt, verdict: Decision | Coroutine[Any, Any, Decision]
    ) -> Decision | Coroutine[Any, Any, Decision]:
        """The verdict with the rules of outside sources, which are awaited."""
        is_plain = isinstance(verdict, Decision) and (
            not verdict.is_allowed or verdict.is_superuser
        )
        return (
            verdict
            if is_plain or not self._access.authorizer.outside
            else self._prepared(attempt, verdict)
        )

    async def _prepared(
        self, attempt: ConnectAttempt, verdict: Decision | Coroutine[Any, Any, Decision]
    ) -> Decision:
        decision = verdict if isinstance(verdict, Decision) else await verdict
        if not decision.is_allowed or decision.is_superuser:
            return decision
        return await self._access.authorizer.prepared(
            decision, self._subject(attempt.after(decision), decision)
        )

    def _subject(self, attempt: ConnectAttempt, decision: Decision) -> Subject:
        return self._access.authorizer.subject_of(
            attempt, decision, self.attributes.roots, attempt.zone
        )

    def read_exchange(self, c: Connection, data: bytes, position: int) -> int:
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
                check_order(c.phase, kind)
                self._context.figures.note_before_connack(kind)
                c.packets_in += 1
                if isinstance(packet, Auth):
                    self.take_auth(c, packet)
                else:
                    c.end("normal", is_will_due=False)
            except PeerError as error:
                c.refuse_connect(error.reason_code, str(error))
        return len(data) if c.is_closed else position

    def take_auth(self, c: Connection, packet: Auth) -> None:
        """AUTH of a client, before or after its CONNACK.

        Raises:
            PeerError: it is not one that the client may send now.
        """
        login = c.login
        assert login is not None  # by the order of packets
        if packet.properties.get(METHOD) != login.method:
            # [MQTT-4.12.0-5]
            raise protocol_error("AUTH names another authentication method than CONNECT did")
        if packet.reason_code == reason.REAUTHENTICATE and c.is_connected:
            if login.exchange is not None:
                raise protocol_error("AUTH asks to authenticate again while that is under way")
            exchange = self._access.chain_of(login.attempt.listener).begin(
                login.method, login.attempt
            )
            if isinstance(exchange, Decision):
                self._not_again(c, login)
                return
            login.exchange = exchange
            login.deadline_s = self._context.now_s + self._context.settings.connect_timeout
            self._again.add(c)
        elif packet.reason_code != reason.CONTINUE_AUTHENTICATION or login.exchange is None:
            # [MQTT-3.15.2-1]
            raise protocol_error(
                f"AUTH with reason code 0x{packet.reason_code:02X} has no meaning now"
            )
        self._step(c, login, packet.properties.get(DATA))

    def tick(self) -> None:
        """Continue logins that have waited long enough; end connections whose credentials or exchanges expired."""
        self.waiting.tick()
        self._access.tick()
        self._permissions.refresh.tick()
        self._expiries.tick()
        for c in list(self._again):
            if c.login is not None and self._context.now_s > c.login.deadline_s:
                self._not_again(c, c.login)

    def abandon(self, c: Connection) -> None:
        """The connection has ended."""
        self._again.discard(c)
        self._expiries.abandon(c)
        self._permissions.refresh.abandon(c)
        if c.is_parked:
            self.waiting.abandon(c)
        if c.is_connected:
            self._access.flapping.disconnected(c.client.client_id)

    def _step(self, c: Connection, login: Login, data: bytes | None) -> None:
        assert login.exchange is not None
        result = login.exchange.step(data)
        if isinstance(result, Continue):
            self._send(c, login, reason.CONTINUE_AUTHENTICATION, result.data)  # [MQTT-4.12.0-2]
        elif isinstance(result, Finished):
            if c.is_connected:
                self._context.scheduler.give_way(c)  # what comes next is read by the rules of then
            self._finish(c, login, result)
        else:
            if c.is_connected:
                c.hold(PARKED_LOGIN)
            self.waiting.wait(
                c, result, lambda decision: self._finish(c, login, Finished(decision))
            )

    def _finish(self, c: Connection, login: Login, result: Finished) -> None:
        verdict = self._with_rules(login.attempt, result.decision)
        if isinstance(verdict, Decision):
            self._finished(c, login, result)
            return
        if c.is_connected:
            c.hold(PARKED_LOGIN)
        self.waiting.wait(
            c,
            verdict,
            lambda decision: self._finished(c, login, replace(result, decision=decision)),
        )

    def _finished(self, c: Connection, login: Login, result: Finished) -> None:
        login.exchange = None
        decision = self._access.chain_of(login.attempt.listener).counted(
            result.decision, login.attempt, login.method, result.user
        )
        if not c.is_connected:
            answer = (
                {METHOD: login.method, DATA: result.data} if result.data else {METHOD: login.method}
            )
            login.done(decision, answer)
            # it holds the CONNECT, its will included; the rest is kept to authenticate again
            del login.done
            return
        self._authenticated_again(c, login, result)

    def _authenticated_again(self, c: Connection, login: Login, result: Finished) -> None:
        decision = result.decision
        self._again.discard(c)
        is_same = decision.username in (None, c.client.username)
        if not (decision.is_allowed and is_same and self._access.still_admits(decision)):
            self._not_again(c, login)
            return
        c.client = c.session.client = self.let_in(
            c, c.client, login.attempt.after(decision), decision
        )
        self._permissions.recheck(c)
        if not c.is_closed:
            self._send(c, login, reason.SUCCESS, result.data)

    def when_answered(
        self, c: Connection, unanswered: Unanswered, finish: Callable[[], None]
    ) -> None:
        """Ask an outside source about a request of a client that connects; then ``finish``."""

        async def answered() -> Decision:
            await unanswered.answer()
            return IGNORED

        self.waiting.wait(c, answered(), lambda _: finish())

    def check_ban(self, who: ConnectAttempt) -> None:
        """Refuse a client that is banned; it does not learn by whom or why. Raises ``ConnectRefused`` 0x8A."""
        ban = self._access.bans.of(who)
        if ban is not None:
            about = f" ({ban.reason})" if ban.reason else ""
            detail = f"banned as {ban.kind} {ban.who!r} until {ban.as_shown()['until']}{about}"
            raise ConnectRefused(reason.BANNED, detail=detail)

    def check_decided(self, attempt: ConnectAttempt, decision: Decision) -> None:
        """Refuse a client that authentication does not admit, or no longer. Raises ``ConnectRefused``."""
        if not decision.is_allowed:
            raise ConnectRefused(decision.reason_code, detail=decision.why)
        if not self._access.still_admits(decision):
            raise ConnectRefused(
                reason.BAD_USER_NAME_OR_PASSWORD, detail="the user was changed during the login"
            )
        self.check_ban(attempt)  # by the name that the authenticator knows

    def let_in(
        self, c: Connection, client: Client, attempt: ConnectAttempt, decision: Decision
    ) -> Client:
        """Keep what is certain of a client that was authenticated, and for how long; give it its permits. Returns the
        client with its standing."""
        c.subject = self._subject(attempt, decision)
        self._expiries.watch(c, decision.expires_s)
        client = replace(client, standing=c.subject.standing(), authenticator=decision.mechanism)
        self._permissions.grant(c, client)
        return client

    def has_lost_its_user(self, client: Client) -> bool:
        """See ``Access``."""
        return self._access.has_lost_its_user(client)

    def _not_again(self, c: Connection, login: Login) -> None:
        """Authenticating again failed: disconnect [MQTT-4.12.1-2]."""
        login.exchange = None
        self._context.figures.reauthentication_failed.value += 1
        c.disconnect(
            reason.NOT_AUTHORIZED, "not_authorized", text="authenticating again has failed"
        )

    def _send(self, c: Connection, login: Login, code: int, data: bytes) -> None:
        properties: Properties = (
            {METHOD: login.method, DATA: data} if data else {METHOD: login.method}
        )
        encoded = encode_fitting(Auth(code, properties), 5, c.max_sent_bytes)
        if len(encoded) <= c.max_sent_bytes:
            c.reply(encoded)
        elif c.is_connected:  # [MQTT-3.1.2-24]
            c.disconnect(reason.PACKET_TOO_LARGE, "answer_too_large")
        else:
            c.refuse_connect(reason.PACKET_TOO_LARGE)
