"""Who may, for tests: users whose passwords cost little, an authenticator over them, rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from broker.auth.access import Access
from broker.auth.authorize import AuthorizationSettings
from broker.auth.chain import AuthenticationSettings, AuthenticatorChain, UserAccess
from broker.auth.flapping import FlappingSettings
from broker.auth.hashing import HashPool, PasswordHashingSettings
from broker.auth.users import Users
from broker.core.clock import Clock
from broker.core.objects import MemorySection, Spec
from broker.observe.metrics import Metrics
from broker.storage.writer import Writer

MakeAccess = Callable[[Writer, Metrics, Clock], Access]
BUILTIN: list[Spec] = [{"mechanism": "builtin"}]
USERS: list[Spec] = [
    {"name": "ann", "password": "pencil"},
    {"name": "root", "password": "paper", "is_superuser": True},
    {"name": "dev", "password": "ruler", "clientid": "dev-1"},
]


def access(
    chain: Sequence[Spec] = (),
    *,
    users: Sequence[Spec] = USERS,
    rules: Sequence[Spec] = (),
    flapping: Spec | None = None,
    trusts_anonymous: bool = False,
    hashing: Spec | None = None,
    **authorization: Any,
) -> MakeAccess:
    """What makes the access of a server from settings as files have them."""

    def make(writer: Writer, metrics: Metrics, clock: Clock) -> Access:
        hash_settings = PasswordHashingSettings.model_validate({"iterations": 4096, "threads": 1} | (hashing or {}))
        pool = HashPool(hash_settings, metrics)
        store = Users(MemorySection(users), hash_settings, pool, clock)
        store.start()
        settings = AuthenticationSettings.model_validate(list(chain))
        users_of = UserAccess(store, pool)
        made = AuthenticatorChain(settings, metrics, users_of, trusts_anonymous=trusts_anonymous, clock=clock)
        sources = [{"type": "file", "rules": list(rules)}, {"type": "built_in"}] if rules else [{"type": "built_in"}]
        return Access.of(
            made,
            writer,
            metrics,
            clock,
            authorization=AuthorizationSettings.model_validate({"sources": sources, **authorization}),
            flapping=FlappingSettings.model_validate(flapping or {}),
        )

    return make
