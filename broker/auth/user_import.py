"""Users that come from elsewhere, with the hashes of their passwords that other brokers kept.

Each has a ``name`` (or ``user_id``), ``password_hash`` in hexadecimal, ``salt`` and ``algorithm``: ``sha256`` and
``sha512`` (the salt in front, or behind with ``salt_position = suffix``) or ``pbkdf2_sha256``, ``..384`` and ``..512``
with ``iterations``. ``salt_encoding`` says how the salt is written: ``utf8``, ``hex`` or ``base64``. Members that are
the same for all may be next to ``users``. ``md5`` and ``sha1`` need ``password_hashing.allow_weak_imports``. A hash of
PBKDF2 lets its user log in by SCRAM as well.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import Field

from broker.auth import passwords
from broker.auth.hashing import HashPool
from broker.auth.passwords import Credential
from broker.auth.users import User
from broker.config.model import Settings
from broker.core.errors import Invalid, Problem

MAX_IMPORT: Final = 100_000
_MOST_PROBLEMS: Final = 100
_REFUSED: Final = ("plain", "md4")
_HASHED: Final = frozenset(("sha256", "sha512", *passwords.DEFAULT_ITERATIONS))
# Names that others have for an algorithm.
_OTHER_NAMES: Final = {"sha": "sha1"}


class UserImport(Settings, strict=True):
    """Users with hashes of their passwords. Members that are the same for all may be next to the list."""

    users: list[dict[str, Any]] = Field(max_length=MAX_IMPORT, description="The users.")
    algorithm: Literal[
        "sha256", "sha512", "pbkdf2_sha256", "pbkdf2_sha384", "pbkdf2_sha512", "sha1", "sha", "md5"
    ] = "sha256"
    iterations: int | None = None
    salt_position: Literal["prefix", "suffix"] = "prefix"
    salt_encoding: Literal["utf8", "hex", "base64"] = Field(
        default="utf8", description="How the salts are written."
    )


async def imported_users(
    body: UserImport, pool: HashPool, *, allow_weak: bool = False
) -> list[User]:
    """The users of an import, ready to be adopted; with ``allow_weak`` also those with weak hashes.

    Raises:
        Invalid: with a problem for each that cannot be imported.
    """
    shared = body.model_dump(exclude={"users"}, exclude_unset=True)
    return await pool.run(lambda: _all(body.users, shared, allow_weak))


def _all(members: list[Any], shared: Mapping[str, Any], allow_weak: bool) -> list[User]:
    problems = []
    users = {}
    for number, entry in enumerate(members):
        try:
            user = _one({**shared, **entry} if isinstance(entry, Mapping) else {}, allow_weak)
            users[user.name] = user
        except ValueError as error:
            problems.append(Problem(str(error), f"/users/{number}"))
        if len(problems) >= _MOST_PROBLEMS:
            break
    if problems:
        raise Invalid("no users were imported", problems)
    return list(users.values())


def _one(spec: Mapping[str, Any], allow_weak: bool) -> User:
    name = spec.get("name", spec.get("user_id", spec.get("username")))
    if not isinstance(name, str) or not name or not name.isprintable():
        raise ValueError("needs a name, a string")
    algorithm: Any = spec.get("algorithm", spec.get("password_hash_algorithm", "sha256"))
    if isinstance(algorithm, str):
        algorithm = _OTHER_NAMES.get(algorithm, algorithm)
    if algorithm in _REFUSED or (algorithm in passwords.WEAK and not allow_weak):
        raise ValueError(
            f"passwords hashed by {algorithm} are not kept; give them a new password"
            + (
                ""
                if algorithm in _REFUSED
                else ", or set password_hashing.allow_weak_imports = true"
            )
        )
    if algorithm not in _HASHED and algorithm not in passwords.WEAK:
        raise ValueError(
            f"there is no algorithm {algorithm!r}; there are {', '.join(sorted(_HASHED))}"
        )
    return User(
        name,
        (_credential(spec, algorithm),),
        is_superuser=_is_true(spec.get("is_superuser", False)),
    )


def _credential(spec: Mapping[str, Any], algorithm: passwords.Algorithm) -> Credential:
    kept = spec.get("password_hash")
    salt = spec.get("salt", "")
    if not isinstance(kept, str) or not isinstance(salt, str):
        raise ValueError("needs password_hash and salt, strings")
    salt = _salt(salt, spec.get("salt_encoding", "utf8"))
    digest = algorithm.removeprefix("pbkdf2_")
    try:
        data = bytes.fromhex(kept)
    except ValueError:
        raise ValueError("its password_hash is not hexadecimal") from None
    if len(data) != hashlib.new(digest).digest_size:
        raise ValueError(f"its password_hash is not one of {algorithm}: {len(data)} bytes")
    if algorithm in passwords.DEFAULT_ITERATIONS:
        iterations = spec.get("iterations")
        if (
            not isinstance(iterations, int)
            or isinstance(iterations, bool)
            or not 0 < iterations <= 10_000_000
        ):
            raise ValueError(f"{algorithm} needs iterations, a number")
        return passwords.from_salted(algorithm, salt, iterations, data)
    return Credential(
        algorithm, salt, 0, data, is_salt_last=spec.get("salt_position", "prefix") == "suffix"
    )


def _salt(text: str, encoding: object) -> bytes:
    try:
        match encoding:
            case "utf8":
                return text.encode()
            case "hex":
                return bytes.fromhex(text)
            case "base64":
                return base64.b64decode(text, validate=True)
    except ValueError:
        raise ValueError(f"salt: expected {encoding}, got {text[:60]!r}") from None
    raise ValueError(f"salt_encoding: expected utf8, hex or base64, got {encoding!r}")


def _is_true(value: object) -> bool:
    return value is True or value == "true"
