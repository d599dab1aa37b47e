"""SCRAM without channel binding, the server's side: RFC 5802 and RFC 7677, as MQTT 5.0 carries it (4.12, example).

::

    client-first   n,,n=user,r=C                 in CONNECT, or in AUTH
    server-first   r=CS,s=salt,i=iterations      AUTH 0x18
    client-final   c=biws,r=CS,p=proof           AUTH 0x18
    server-final   v=signature                   CONNACK, or AUTH 0x00
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from broker.auth.decision import DENIED, Decision
from broker.auth.exchange import Continue, Finished
from broker.auth.passwords import MAX_NAME_BYTES, Credential, saslprep
from broker.core import reason

MALFORMED = Decision("deny", reason.NOT_AUTHORIZED)
_NONCE_BYTES = 18
# Maximum data of a client in one step: the longest name with every sign escaped, and twice that for the rest.
_MAX_DATA_BYTES = 8 * 1024


@dataclass(frozen=True, slots=True)
class Account:
    """Owner of a name in the exchange. ``decision`` is what a right proof leads to; a decoy, for a name that
    there is not, has one that denies."""

    credential: Credential
    decision: Decision


class ScramExchange:
    """One login. ``find`` gives the account of any name: whether there is such a user must not show before the end. A
    decision instead is the end."""

    def __init__(
        self, find: Callable[[str], Account | Decision], nonce: Callable[[], str] | None = None
    ) -> None:
        self._find = find
        self._nonce = nonce or _new_nonce
        self._account: Account | None = None
        self._name = ""
        self._binding = self._bare = self._server_first = self._whole_nonce = ""

    def step(self, data: bytes | None) -> Continue | Finished:
        """See ``broker.auth.exchange.Exchange``."""
        if data is None:
            return Continue(b"") if self._account is None else Finished(MALFORMED)
        if len(data) > _MAX_DATA_BYTES:
            return Finished(MALFORMED)
        try:
            text = data.decode()
            return self._first(text) if self._account is None else self._final(self._account, text)
        except ValueError:  # also of decoding and of Base64
            return Finished(MALFORMED, user=self._name)

    def _first(self, text: str) -> Continue | Finished:
        flag, authorized_as, bare = text.split(",", 2)
        if flag not in ("n", "y"):
            raise ValueError("channel binding is not offered")
        if bare.startswith("m="):
            raise ValueError("an extension that is not known")
        name_part, nonce_part = bare.split(",")[:2]
        name = _name(_value("n", name_part))
        nonce = _value("r", nonce_part)
        if not name or not nonce or not nonce.isascii() or not nonce.isprintable():
            raise ValueError("expected a name and a nonce")
        if len(name.encode()) > MAX_NAME_BYTES:
            raise ValueError("the name is too long")
        if authorized_as and _name(_value("a", authorized_as)) != name:
            raise ValueError("an authorization identity other than the user is not supported")
        self._name = saslprep(name)
        account = self._find(self._name)
        if isinstance(account, Decision):
            return Finished(account, user=self._name)
        self._account = account
        self._binding = base64.b64encode(f"{flag},{authorized_as},".encode()).decode()
        self._bare, self._whole_nonce = bare, nonce + self._nonce()
        credential = account.credential
        salt = base64.b64encode(credential.salt).decode()
        self._server_first = f"r={self._whole_nonce},s={salt},i={credential.iterations}"
        return Continue(self._server_first.encode())

    def _final(self, account: Account, text: str) -> Finished:
        unproven, _, proof_text = text.rpartition(",p=")
        binding, nonce = unproven.split(",")[:2]
        if _value("c", binding) != self._binding or _value("r", nonce) != self._whole_nonce:
            raise ValueError("this answers something else")
        credential = account.credential
        said = f"{self._bare},{self._server_first},{unproven}".encode()
        proof = base64.b64decode(proof_text, validate=True)
        signature = hmac.digest(credential.stored_key, said, credential.digest)
        if len(proof) != len(signature):
            raise ValueError("the proof has a wrong length")
        client_key = bytes(left ^ right for left, right in zip(proof, signature, strict=True))
        if not hmac.compare_digest(
            hashlib.new(credential.digest, client_key).digest(), credential.stored_key
        ):
            return Finished(DENIED, user=self._name)
        verifier = base64.b64encode(hmac.digest(credential.server_key, said, credential.digest))
        return Finished(account.decision, b"v=" + verifier, self._name)


def _new_nonce() -> str:
    return base64.b64encode(secrets.token_bytes(_NONCE_BYTES)).decode()


def _value(name: str, part: str) -> str:
    if not part.startswith(f"{name}="):
        raise ValueError(f"{name}= is missing")
    return part[2:]


_ESCAPES: Mapping[str, str] = {"2C": ",", "3D": "="}


def _name(text: str) -> str:
    """A user name as it is meant: ``=2C`` is a comma, ``=3D`` an equals sign, and ``=`` stands for nothing else."""
    first, *pieces = text.split("=")
    if any(piece[:2] not in _ESCAPES for piece in pieces):
        raise ValueError("'=' in a name begins =2C or =3D")
    return first + "".join(_ESCAPES[piece[:2]] + piece[2:] for piece in pieces)
