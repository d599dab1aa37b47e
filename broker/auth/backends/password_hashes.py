"""Password hashes as other systems store them: bcrypt, PBKDF2, scrypt, and plain hashes with a salt.

Hashes that name their parameters are read with these: ``$2b$12$...``, ``$pbkdf2-sha256$ROUNDS$SALT$HASH`` and
``$scrypt$ln=15,r=8,p=1$SALT$HASH`` of passlib, ``pbkdf2_sha256$ROUNDS$SALT$HASH`` of Django, ``{SSHA256}...`` of LDAP.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal, Self

from pydantic import Field, model_validator

from broker.config.model import Settings
from broker.core.errors import SluiceError
from broker.core.lazy_module import LazyModule

if TYPE_CHECKING:
    import bcrypt
else:
    bcrypt = LazyModule("bcrypt", is_optional=True)

HashName = Literal["bcrypt", "pbkdf2", "scrypt", "sha512", "sha256", "sha", "md5", "plain"]
MacName = Literal["sha", "sha224", "sha256", "sha384", "sha512"]
_WEAK: Final = ("plain", "md5", "sha")
_DIGESTS: Final[Mapping[str, str]] = {"sha": "sha1"}
# bcrypt reads no more of a password.
_BCRYPT_BYTES: Final = 72
# Largest costs that are computed: seconds of a thread, and 256 MiB of memory.
_MAX_BCRYPT_COST: Final = 16
_MAX_ITERATIONS: Final = 10_000_000
_MAX_SCRYPT_BYTES: Final = 256 * 1024 * 1024
_BCRYPT: Final = re.compile(r"\$2[abxy]\$([0-9]{2})\$[./A-Za-z0-9]{53}")
_PASSLIB_PBKDF2: Final = re.compile(
    r"\$pbkdf2(?:-(sha1|sha224|sha256|sha384|sha512))?\$([0-9]+)\$([^$]*)\$([^$]+)"
)
_DJANGO_PBKDF2: Final = re.compile(r"pbkdf2_(sha1|sha256|sha512)\$([0-9]+)\$([^$]*)\$([^$]+)")
_SCRYPT: Final = re.compile(r"\$scrypt\$ln=([0-9]+),r=([0-9]+),p=([0-9]+)\$([^$]*)\$([^$]+)")
_LDAP: Final = re.compile(r"\{(S?)(SHA|SHA256|SHA384|SHA512|MD5)\}(.+)", re.IGNORECASE)
_CRYPT: Final = re.compile(r"\{CRYPT\}(.+)", re.IGNORECASE)


class HashUnusable(SluiceError):
    """A stored hash cannot be checked; says why, without the hash."""

    code = "hash_unusable"


class PasswordHashSettings(Settings):
    """Form of stored password hashes."""

    name: HashName = Field(
        default="bcrypt", description="Algorithm. `sha` is SHA-1; `plain`, `md5`, `sha` and hashes without a salt need "
        "`allow_weak`."
    )  # fmt: skip
    salt_position: Literal["prefix", "suffix", "disable"] = Field(
        default="prefix", description="Place of the salt in front of or behind the password, for `sha512`, `sha256`, "
        "`sha`, `md5`; `disable` for none."
    )  # fmt: skip
    mac_fun: MacName = Field(default="sha256", description="Hash function of `pbkdf2`.")
    iterations: int = Field(
        default=0,
        ge=0,
        le=_MAX_ITERATIONS,
        description="Rounds of `pbkdf2`; 0 for hashes that have theirs in them.",
    )
    dk_length: int = Field(
        default=0,
        ge=0,
        le=1024,
        description="Bytes of a `pbkdf2` hash; 0 is the length of the hash function.",
    )
    allow_weak: bool = Field(
        default=False,
        description="Whether weak hashes are accepted; a stolen table of them gives the passwords away.",
    )

    @model_validator(mode="after")
    def _is_strong(self) -> Self:
        is_weak = self.name in _WEAK or (
            self.name in ("sha256", "sha512") and self.salt_position == "disable"
        )
        if is_weak and not self.allow_weak:
            raise ValueError(
                f"expected a strong hash, got {self.name}. Try: bcrypt, or allow_weak = true while passwords are moved"
            )
        return self

    @property
    def is_slow(self) -> bool:
        """True if a check takes so long that the loop must not do it."""
        return self.name in ("bcrypt", "pbkdf2", "scrypt")


def matches(settings: PasswordHashSettings, password: bytes, stored: str, salt: str) -> bool:
    """True if the hash is that of the password.

    Raises:
        HashUnusable: the hash does not have the form of the settings.
    """
    check = {"bcrypt": _bcrypt, "scrypt": _scrypt}.get(settings.name)
    if check is not None:
        return check(password, stored)
    if settings.name == "pbkdf2":
        return _pbkdf2(settings, password, stored, salt)
    return _plain(settings, password, stored, salt)


def matches_ldap(password: bytes, stored: str, *, allow_weak: bool) -> bool:
    """True if the value of ``userPassword`` is that of the password; raises ``HashUnusable``."""
    if (crypt := _CRYPT.fullmatch(stored)) is not None:
        return _bcrypt(password, crypt[1])
    match = _LDAP.fullmatch(stored)
    if match is None:
        if stored.startswith("{") or not allow_weak:
            raise HashUnusable(
                "expected a salted hash of userPassword, such as {SSHA256}, got another form"
            )
        return hmac.compare_digest(stored.encode(), password)
    is_salted = bool(match[1])
    digest = {"sha": "sha1"}.get(match[2].lower(), match[2].lower())
    if (digest in ("sha1", "md5") or not is_salted) and not allow_weak:
        raise HashUnusable(
            f"the hash {{{match[1]}{match[2]}}} is weak. Try: {{SSHA256}}, or allow_weak = true"
        )
    value = _of_base64(match[3])
    size = hashlib.new(digest).digest_size
    if len(value) < size or (is_salted and len(value) == size):
        raise HashUnusable("the hash of userPassword is cut short")
    return hmac.compare_digest(hashlib.new(digest, password + value[size:]).digest(), value[:size])


def _bcrypt(password: bytes, stored: str) -> bool:
    match = _BCRYPT.fullmatch(stored)
    if match is None:
        raise HashUnusable("expected a bcrypt hash ($2b$...), got another form")
    if int(match[1]) > _MAX_BCRYPT_COST:
        raise HashUnusable(f"the cost of the bcrypt hash is above {_MAX_BCRYPT_COST}")
    try:
        check = bcrypt.checkpw
    except ModuleNotFoundError:
        raise HashUnusable("bcrypt is not installed. Try: pip install bcrypt") from None
    return b"\0" not in password and check(password[:_BCRYPT_BYTES], stored.encode())


def _scrypt(password: bytes, stored: str) -> bool:
    match = _SCRYPT.fullmatch(stored)
    if match is None:
        raise HashUnusable("expected a scrypt hash ($scrypt$ln=...), got another form")
    ln, r, p = int(match[1]), int(match[2]), int(match[3])
    if not 1 <= ln <= 24 or not r >= 1 or not 1 <= p <= 16 or 128 * r << ln > _MAX_SCRYPT_BYTES:
        raise HashUnusable("the cost of the scrypt hash is above 256 MiB of memory")
    expected = _of_base64(match[5])
    most = _MAX_SCRYPT_BYTES + 1024 * 1024 + 128 * r * p
    computed = hashlib.scrypt(
        password, salt=_of_base64(match[4]), n=1 << ln, r=r, p=p, maxmem=most, dklen=len(expected)
    )
    return hmac.compare_digest(computed, expected)


def _pbkdf2(settings: PasswordHashSettings, password: bytes, stored: str, salt: str) -> bool:
    digest = _DIGESTS.get(settings.mac_fun, settings.mac_fun)
    iterations = settings.iterations
    salt_bytes = salt.encode()
    if (passlib := _PASSLIB_PBKDF2.fullmatch(stored)) is not None:
        digest = passlib[1] or "sha1"
        iterations = int(passlib[2])
        salt_bytes = _of_base64(passlib[3])
        expected = _of_base64(passlib[4])
    elif (django := _DJANGO_PBKDF2.fullmatch(stored)) is not None:
        digest = django[1]
        iterations = int(django[2])
        salt_bytes = django[3].encode()
        expected = _of_base64(django[4])
    else:
        expected = _of_hex_or_base64(stored)
    if not 0 < iterations <= _MAX_ITERATIONS:
        raise HashUnusable("expected the rounds of pbkdf2 in the hash or in `iterations`")
    size = settings.dk_length or len(expected)
    return hmac.compare_digest(
        hashlib.pbkdf2_hmac(digest, password, salt_bytes, iterations, size), expected
    )


def _plain(settings: PasswordHashSettings, password: bytes, stored: str, salt: str) -> bool:
    if settings.name == "plain":
        return hmac.compare_digest(stored.encode(), password)
    salt_bytes = salt.encode()
    if settings.salt_position == "disable":
        salt_bytes = b""
    elif not salt_bytes and not settings.allow_weak:
        raise HashUnusable(
            f"the {settings.name} hash has no salt. Try: a column salt, or allow_weak = true"
        )
    text = password + salt_bytes if settings.salt_position == "suffix" else salt_bytes + password
    digest = hashlib.new(_DIGESTS.get(settings.name, settings.name), text).digest()
    return hmac.compare_digest(digest, _of_hex_or_base64(stored))


def _of_hex_or_base64(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return _of_base64(text)


def _of_base64(text: str) -> bytes:
    """Base64 with or without padding, also in the alphabet of passlib."""
    try:
        plain = text.strip().rstrip("=").replace(".", "+").replace("-", "+").replace("_", "/")
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise HashUnusable("the hash is neither hexadecimal nor Base64") from None
