"""Users: what is kept of them, what is told, and that nobody learns whether a name exists."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest

from broker.auth.attempt import ConnectAttempt
from broker.auth.authenticators.builtin import (
    BuiltinAuthenticator,
    BuiltinSettings,
    RememberedLogins,
)
from broker.auth.decision import Decision
from broker.auth.hashing import HashPool, PasswordHashingSettings
from broker.auth.login_limits import LoginLimits, LoginLimitSettings
from broker.auth.passwords import hashed
from broker.auth.user_import import UserImport, imported_users
from broker.auth.users import Users
from broker.config.spec_problems import parsed
from broker.core.clock import SystemClock
from broker.core.errors import AlreadyExists, ConfigError, Invalid, NotFound
from broker.core.objects import MemorySection, Spec
from broker.observe.metrics import Metrics
from tests.support.mqtt_server import on_loop


class Store:
    """Users over a section in memory, with cheap hashes."""

    def __init__(self, *specs: Spec, **settings: Any) -> None:
        self.section = MemorySection(specs)
        self.settings = PasswordHashingSettings.model_validate(
            {"iterations": 4096, "threads": 1, **settings}
        )
        self.metrics = Metrics()
        self.pool = HashPool(self.settings, self.metrics)
        self.users = Users(self.section, self.settings, self.pool, SystemClock())
        self.users.start()
        self.authenticator = BuiltinAuthenticator(
            BuiltinSettings(mechanism="builtin"),
            self.users,
            self.pool,
            RememberedLogins(10),
            LoginLimits(LoginLimitSettings(), SystemClock(), self.metrics),
        )

    async def decide(self, name: str | None, password: bytes | None) -> str:
        """The verdict over a login."""
        found = self.authenticator.decide(ConnectAttempt("c", name, password))
        decision = found if isinstance(found, Decision) else await found
        return decision.verdict


@pytest.mark.parametrize(
    ("algorithm", "rounds"),
    [("pbkdf2_sha256", 600_000), ("pbkdf2_sha384", 600_000), ("pbkdf2_sha512", 220_000)],
)
def test_rounds_are_what_is_recommended_unless_set(algorithm: Any, rounds: int) -> None:
    assert PasswordHashingSettings(algorithm=algorithm).rounds(algorithm) == rounds
    assert PasswordHashingSettings(algorithm=algorithm, iterations=5000).rounds(algorithm) == 5000


@on_loop
async def test_each_user_keeps_the_algorithm_it_was_made_with() -> None:
    first = Store()
    await first.users.create({"name": "old", "password": "p"})
    second = Store(*first.section.load(), algorithm="pbkdf2_sha512", iterations=4097, scram=False)
    await second.users.create({"name": "new", "password": "p"})
    assert [await second.decide(name, b"p") for name in ("old", "new")] == ["allow", "allow"]
    shown = {spec["name"]: (spec["algorithm"], spec["methods"]) for spec in second.users.list()}
    assert shown == {
        "old": ("pbkdf2_sha256", ["SCRAM-SHA-256", "SCRAM-SHA-512"]),
        "new": ("pbkdf2_sha512", ["SCRAM-SHA-512"]),
    }


@on_loop
async def test_a_password_may_be_any_text_and_is_the_same_however_it_is_written() -> None:
    store = Store()
    await store.users.create({"name": "é", "password": "käse 🧀"})
    assert await store.decide("é", "ka\u0308se 🧀".encode()) == "allow"
    assert await store.decide("é", "kase 🧀".encode()) == "deny"
    assert await store.decide("é", b"\xff") == "deny"


@on_loop
async def test_a_name_that_is_not_there_costs_what_others_cost_and_is_left_to_the_next() -> None:
    store = Store({"name": "ann", "credentials": [hashed(b"p", "pbkdf2_sha256", 4096).as_spec()]})
    found = store.authenticator.decide(ConnectAttempt("c", "nobody", b"p"))
    assert not isinstance(found, Decision)  # it is hashed, too
    assert (await found).verdict == "ignore"
    assert await store.decide("ann", b"x") == "deny"
    assert await store.decide(None, b"p") == "ignore"
    assert await store.decide("ann", None) == "ignore"


def test_what_stands_in_for_nobody_is_the_same_after_a_restart_and_like_others() -> None:
    spec = {"name": "ann", "credentials": [hashed(b"p", "pbkdf2_sha256", 5555).as_spec()]}
    stores = [Store(spec), Store(spec)]
    for store in stores:
        store.users.know(b"secret")
    decoys = [store.users.decoy("nobody") for store in stores]
    assert decoys[0] == decoys[1]
    assert decoys[0].credentials[0].iterations == 5555
    assert decoys[0].credentials[0].salt != stores[0].users.decoy("somebody").credentials[0].salt
    assert Store().users.decoy("nobody").credentials[0].iterations == 4096


@on_loop
async def test_a_login_that_was_right_is_remembered_until_the_password_changes() -> None:
    store = Store(scram=False)
    await store.users.create({"name": "ann", "password": "p"})
    assert await store.decide("ann", b"p") == "allow"
    assert isinstance(store.authenticator.decide(ConnectAttempt("c", "ann", b"p")), Decision)
    await store.users.replace("ann", {"password": "q"})
    assert await store.decide("ann", b"p") == "deny"
    assert await store.decide("ann", b"q") == "allow"


@on_loop
async def test_two_that_make_a_user_at_once_make_one() -> None:
    store = Store()
    spec = {"name": "ann", "password": "p"}
    results = await asyncio.gather(
        store.users.create(spec), store.users.create(spec), return_exceptions=True
    )
    assert [type(result) for result in results] == [dict, AlreadyExists]


@on_loop
async def test_a_user_that_goes_while_its_password_is_hashed_stays_gone() -> None:
    store = Store()
    await store.users.create({"name": "ann", "password": "p"})
    changing = asyncio.create_task(store.users.replace("ann", {"password": "q"}))
    await asyncio.sleep(0)
    store.users.delete("ann")
    with pytest.raises(NotFound):
        await changing
    assert store.section.load() == []


@pytest.mark.parametrize(
    ("spec", "place"),
    [
        ({}, "/name"),
        ({"name": ""}, "/name"),
        ({"name": "a\x00"}, "/name"),
        ({"name": "x" * 2000}, "/name"),
        ({"name": "a", "password": ""}, "/password"),
        ({"name": "a", "password": 7}, "/password"),
        ({"name": "a", "is_superuser": "yes"}, "/is_superuser"),
        ({"name": "a", "credentials": []}, "/credentials"),
        ({"name": "a", "password": "p", "generate": True}, "/generate"),
    ],
)
@on_loop
async def test_a_user_that_makes_no_sense_is_refused(spec: Spec, place: str) -> None:
    with pytest.raises(Invalid) as raised:
        await Store().users.create(spec)
    assert [problem.pointer for problem in raised.value.problems] == [place]


@pytest.mark.parametrize(
    "kept", [None, [], [{}], [{"algorithm": "md5", "salt": "", "stored_key": "eA=="}], ["x"]]
)
def test_a_user_of_a_file_that_cannot_be_used_is_named(kept: Any) -> None:
    with pytest.raises(ConfigError, match="user 'ann' cannot be used"):
        Store({"name": "ann", "credentials": kept})


@pytest.mark.parametrize(
    ("text", "encoding"), [("salt", "utf8"), ("73616c74", "hex"), ("c2FsdA==", "base64")]
)
@on_loop
async def test_a_salt_is_imported_as_it_is_written(text: str, encoding: str) -> None:
    one = {"name": "a", "password_hash": "00" * 32, "salt": text, "salt_encoding": encoding}
    [user] = await imported_users(UserImport(users=[one]), Store().pool)
    assert [credential.salt for credential in user.credentials] == [b"salt"]


@pytest.mark.parametrize(
    ("user", "says"),
    [
        ({"password_hash": "00", "salt": "s"}, "a name"),
        ({"name": "a", "password_hash": "00", "salt": "s"}, "1 bytes"),
        ({"name": "a", "password_hash": "zz", "salt": "s"}, "hexadecimal"),
        ({"name": "a", "salt": "s"}, "password_hash"),
        (
            {"name": "a", "password_hash": "00" * 32, "salt": "?", "salt_encoding": "base64"},
            "expected base64",
        ),
        (
            {"name": "a", "password_hash": "00" * 32, "salt": "s", "salt_encoding": "utf16"},
            "utf8, hex or base64",
        ),
        ({"name": "a", "password_hash": "00", "algorithm": "plain"}, "not kept"),
        ({"name": "a", "password_hash": "00", "algorithm": "argon"}, "no algorithm"),
        (
            {"name": "a", "password_hash": "00" * 32, "salt": "s", "algorithm": "pbkdf2_sha256"},
            "iterations",
        ),
        ("ann", "expected an object"),
    ],
)
@on_loop
async def test_an_import_says_what_is_wrong_with_whom(user: Any, says: str) -> None:
    store = Store()
    good = {"name": "b", "password_hash": "00" * 32, "salt": "s"}
    with pytest.raises(Invalid, match=says) as raised:
        await imported_users(
            parsed(UserImport, {"users": [good, user]}, "no users were imported"), store.pool
        )
    assert raised.value.problems[0].pointer == "/users/1"


@on_loop
@pytest.mark.parametrize("algorithm", ["md5", "sha", "sha1"])
async def test_weak_hashes_are_imported_only_where_that_is_allowed(algorithm: str) -> None:
    digest = hashlib.new({"sha": "sha1"}.get(algorithm, algorithm), b"saltpencil")
    entry = {
        "name": "old",
        "password_hash": digest.hexdigest(),
        "salt": "salt",
        "algorithm": algorithm,
    }
    body = UserImport(users=[entry])
    store = Store()
    with pytest.raises(Invalid) as raised:
        await imported_users(body, store.pool)
    assert "allow_weak_imports" in str(raised.value.problems[0])
    store.users.adopt(await imported_users(body, store.pool, allow_weak=True))
    again = Store(*store.section.load())
    for place in (store, again):
        assert await place.decide("old", b"pencil") == "allow"
        assert await place.decide("old", b"wrong") == "deny"
