"""TLS of one listener: contexts made of files, one certificate per server name, files read again when they change."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from broker.config.secret_text import SecretUnreadable
from broker.config.stamp import stamp_of
from broker.config.vault import NAMED_SECRETS
from broker.core.errors import ConfigError
from broker.core.times import rfc3339_of
from broker.net.settings import SniCertificate, TlsSettings
from broker.observe.log import get_logger

_log = get_logger(__name__)

_VERSIONS: Final = {"tlsv1.2": ssl.TLSVersion.TLSv1_2, "tlsv1.3": ssl.TLSVersion.TLSv1_3}
_EXPIRES_SOON: Final = timedelta(days=14)

Now = Callable[[], datetime]


def utc_now() -> datetime:
    """Time that certificates are compared with."""
    return datetime.now(UTC)


class AskedSslObject(ssl.SSLObject):
    """The TLS of one connection. It remembers the server name that the client asked for (SNI), and puts the alert that
    a client must be sent when its handshake fails (RFC 8446, section 6.2) into ``alert`` of the error: the event loops
    close the socket without sending it."""

    asked_name: str | None = None
    _outgoing: ssl.MemoryBIO

    @classmethod
    def _create(
        cls, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **named: Any
    ) -> AskedSslObject:
        created: AskedSslObject = super()._create(incoming, outgoing, *args, **named)  # type: ignore[misc]
        created._outgoing = outgoing
        return created

    def do_handshake(self) -> None:
        """Continue the handshake.

        Raises:
            SSLError: it failed, with the bytes to send as ``alert``, or it waits for more bytes.
        """
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            error.alert = self._outgoing.read()  # type: ignore[attr-defined]
            raise


@dataclass(frozen=True, slots=True)
class _Loaded:
    """Contexts made of the files as they were at one time."""

    context: ssl.SSLContext
    expires: datetime
    """When the first of the certificates ends."""


@dataclass(slots=True)
class TlsContexts:
    """TLS contexts for new connections of a listener; existing connections keep theirs.

    Raises:
        ConfigError: when it is made, a sentence for each file and setting that cannot be used.
    """

    listener: str
    settings: TlsSettings
    alpn: str
    now: Now = utc_now
    _loaded: _Loaded = field(init=False)
    _seen: tuple[object, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._seen = self._fingerprint()
        self._loaded = _load(self.listener, self.settings, self.alpn, self.now())
        self._warn()

    @property
    def context(self) -> ssl.SSLContext:
        """Context for the next handshake."""
        return self._loaded.context

    @property
    def expires(self) -> datetime:
        """When the first of the listener's certificates ends."""
        return self._loaded.expires

    def refresh(self, *, is_asked: bool = False) -> None:
        """Read the files again if one changed since they were last read, or tried to be; or if it is asked for.

        Where they cannot be used, those read before stay in use and a line says why.
        """
        seen = self._fingerprint()
        if seen == self._seen and not is_asked:
            return
        self._seen = seen
        try:
            self._loaded = _load(self.listener, self.settings, self.alpn, self.now())
        except ConfigError as error:
            for problem in error.problems:
                _log.error(
                    "listener.certificate_not_reloaded", listener=self.listener, reason=problem
                )
            return
        _log.info(
            "listener.certificate_reloaded",
            listener=self.listener,
            expires=rfc3339_of(self.expires),
        )
        self._warn()

    def _warn(self) -> None:
        if self.expires - self.now() < _EXPIRES_SOON:
            _log.warning(
                "listener.certificate_expires",
                listener=self.listener,
                expires=rfc3339_of(self.expires),
            )

    def _fingerprint(self) -> tuple[object, ...]:
        return (NAMED_SECRETS.version, *(stamp_of(Path(name)) for name in _files(self.settings)))


def _files(settings: TlsSettings) -> Iterable[str]:
    named = [settings.certfile, settings.keyfile, settings.cacertfile, settings.crlfile]
    for certificate in settings.sni:
        named += [certificate.certfile, certificate.keyfile]
    return [name for name in named if name]


def _load(listener: str, settings: TlsSettings, alpn: str, now: datetime) -> _Loaded:
    problems: list[str] = []
    contexts: dict[str, ssl.SSLContext] = {}
    ends: list[datetime] = []
    own = SniCertificate.model_construct(
        server_name="",
        certfile=settings.certfile or "",
        keyfile=settings.keyfile or "",
        password=settings.password,
    )
    for certificate in (own, *settings.sni):
        context, wrong = _context(settings, alpn)
        if certificate is not own:
            wrong = []  # the settings that all contexts share are complained of once
        end, unusable = _certify(context, certificate, now)
        problems += wrong + unusable
        ends += [end] if end is not None else []
        contexts[certificate.server_name.lower()] = context
    if problems:
        raise ConfigError([f"listener {listener}: {problem}" for problem in problems])
    front = contexts[""]
    front.sslobject_class = AskedSslObject
    front.sni_callback = _chooser(contexts)
    return _Loaded(front, min(ends))


def _context(settings: TlsSettings, alpn: str) -> tuple[ssl.SSLContext, list[str]]:
    """A context without a certificate, and the problems of the settings."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= (
        ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    )
    versions = [_VERSIONS[version] for version in settings.versions]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    context.set_alpn_protocols([alpn])
    problems = []
    if settings.ciphers:
        try:
            context.set_ciphers(settings.ciphers)
        except ssl.SSLError:
            problems.append(
                f"ssl_options.ciphers {settings.ciphers!r} names no cipher that OpenSSL knows"
            )
    checks_peers = settings.verify == "peer"
    if checks_peers:
        context.verify_mode = (
            ssl.CERT_REQUIRED if settings.fail_if_no_peer_cert else ssl.CERT_OPTIONAL
        )
        if not settings.cacertfile:
            problems.append(
                "ssl_options.verify = peer needs ssl_options.cacertfile, the authorities that clients' are checked by"
            )
    elif settings.crlfile:
        problems.append("ssl_options.crlfile has no effect without ssl_options.verify = peer")
    problems += _trust(context, settings.cacertfile, settings.crlfile if checks_peers else None)
    return context, problems


def _trust(context: ssl.SSLContext, cacertfile: str | None, crlfile: str | None) -> list[str]:
    """Give a context the authorities, by which OpenSSL also completes the chain it shows, and what is revoked."""
    problems = []
    for key, file, content in (
        ("cacertfile", cacertfile, "certificate"),
        ("crlfile", crlfile, "list"),
    ):
        if not file:
            continue
        text, unreadable = _read(key, file)
        if unreadable:
            problems.append(unreadable)
            continue
        try:
            context.load_verify_locations(
                cadata=text
            ) if key == "cacertfile" else context.load_verify_locations(file)
        except (ssl.SSLError, ValueError):
            problems.append(f"ssl_options.{key} {file!r} holds no {content} in PEM form")
    if crlfile:
        context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
    return problems


def _certify(
    context: ssl.SSLContext, certificate: SniCertificate, now: datetime
) -> tuple[datetime | None, list[str]]:
    """Give a context its certificate; when that ends, and its problems."""
    prefix = (
        f"ssl_options.sni {certificate.server_name!r}: "
        if certificate.server_name
        else "ssl_options."
    )
    cert = certificate.certfile
    key = certificate.keyfile
    problems = []
    for name, file in (("certfile", cert), ("keyfile", key)):
        if not file:
            problems.append(f"{prefix}{name} is not set; it names a file in PEM form")
        elif (unreadable := _read(name, file, prefix)[1]) is not None:
            problems.append(unreadable)
    if problems:
        return None, problems
    end, problem = _validity(cert, now, prefix)
    if problem is not None:
        return None, [problem]
    try:
        # Without a password OpenSSL asks on the terminal; an empty one makes it fail instead.
        password = certificate.password.reveal() if certificate.password is not None else ""
        context.load_cert_chain(cert, key, password=password)
    except SecretUnreadable as error:
        return None, [f"{prefix}password: {error}"]
    except (ssl.SSLError, ValueError) as error:
        return None, [f"{prefix}{_key_problem(error, certificate)}"]
    return end, []


def _key_problem(error: Exception, certificate: SniCertificate) -> str:
    reason = getattr(error, "reason", None) or ""
    if "MISMATCH" in reason:
        return (
            f"keyfile {certificate.keyfile!r} is not the key of certfile {certificate.certfile!r}"
        )
    if b"ENCRYPTED" in Path(certificate.keyfile).read_bytes():
        said = "the one given does not open it" if certificate.password else "there is none"
        return f"keyfile {certificate.keyfile!r} is encrypted and needs a password; {said}"
    return f"keyfile {certificate.keyfile!r} holds no private key in PEM form that can be used ({reason or error})"


def _validity(file: str, now: datetime, prefix: str) -> tuple[datetime | None, str | None]:
    from cryptography import x509  # only brokers with TLS need it, and it takes long to import

    try:
        chain = x509.load_pem_x509_certificates(Path(file).read_bytes())
    except ValueError:
        return None, f"{prefix}certfile {file!r} holds no certificate in PEM form"
    leaf = chain[0]
    if leaf.not_valid_after_utc < now:
        return None, f"{prefix}certfile {file!r} expired on {rfc3339_of(leaf.not_valid_after_utc)}"
    if leaf.not_valid_before_utc > now:
        return (
            None,
            f"{prefix}certfile {file!r} is not valid before {rfc3339_of(leaf.not_valid_before_utc)}",
        )
    return leaf.not_valid_after_utc, None


def _read(key: str, file: str, prefix: str = "ssl_options.") -> tuple[str, str | None]:
    """The text of a file, and the problem when there is none."""
    try:
        return Path(file).read_text(errors="replace"), None
    except FileNotFoundError:
        return "", f"{prefix}{key} {file!r} does not exist"
    except OSError as error:
        return (
            "",
            f"{prefix}{key} {file!r} cannot be read ({(error.strerror or str(error)).lower()})",
        )


def _chooser(
    contexts: dict[str, ssl.SSLContext],
) -> Callable[[Any, str | None, ssl.SSLContext], int | None]:
    """Picks the certificate for a server name; names that there is none for get the listener's own."""

    def choose(connection: Any, name: str | None, _context: ssl.SSLContext) -> None:
        if name is None:
            return
        connection.asked_name = name
        asked = name.lower()
        context = contexts.get(asked) or contexts.get(f"*.{asked.partition('.')[2]}")
        if context is not None:
            connection.context = context

    return choose
