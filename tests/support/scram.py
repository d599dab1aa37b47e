"""The client's side of SCRAM, RFC 5802, as tests log in by it."""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass, field


@dataclass
class ScramClient:
    """``first`` goes into CONNECT; ``answer`` takes the challenge; ``is_server`` checks what came with the success."""

    name: str
    password: str
    method: str = "SCRAM-SHA-256"
    nonce: str = "rOprNGfwEbeRWgbNEkqO"
    header: str = "n,,"
    _bare: str = field(default="", init=False)
    _said: bytes = field(default=b"", init=False)
    _salted: bytes = field(default=b"", init=False)

    @property
    def _digest(self) -> str:
        return "sha" + self.method.rpartition("-")[2]

    def first(self) -> bytes:
        self._bare = f"n={self.name.replace('=', '=3D').replace(',', '=2C')},r={self.nonce}"
        return (self.header + self._bare).encode()

    def answer(self, challenge: bytes) -> bytes:
        parts = dict(part.split("=", 1) for part in challenge.decode().split(","))
        assert parts["r"].startswith(self.nonce)
        salt, rounds = base64.b64decode(parts["s"]), int(parts["i"])
        self._salted = hashlib.pbkdf2_hmac(self._digest, self.password.encode(), salt, rounds)
        unproven = f"c={base64.b64encode(self.header.encode()).decode()},r={parts['r']}"
        self._said = f"{self._bare},{challenge.decode()},{unproven}".encode()
        client_key = hmac.digest(self._salted, b"Client Key", self._digest)
        signature = hmac.digest(
            hashlib.new(self._digest, client_key).digest(), self._said, self._digest
        )
        proof = bytes(left ^ right for left, right in zip(client_key, signature, strict=True))
        return f"{unproven},p={base64.b64encode(proof).decode()}".encode()

    def is_server(self, final: bytes) -> bool:
        server_key = hmac.digest(self._salted, b"Server Key", self._digest)
        return final == b"v=" + base64.b64encode(hmac.digest(server_key, self._said, self._digest))
