"""The verbs of listeners: list, show, add, change, remove, start, stop.

What is changed here is kept in the API's file. Files and the command line are stronger: what they set is theirs.
"""

from __future__ import annotations

import builtins
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, Final, Protocol

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from broker.auth.chain import ALIASES, native
from broker.config.assignments import KeyPath
from broker.config.model import Settings
from broker.config.root import Config
from broker.config.secret_text import check_moved, has_stars, reference_problems, with_stored
from broker.config.spec_problems import parsed
from broker.core.errors import AlreadyExists, Invalid, NotFound, Problem, ReadOnly
from broker.core.hosts import address_text
from broker.core.objects import Spec, Version, etag_of, merged
from broker.core.ordered import name_problem
from broker.core.times import rfc3339_of
from broker.net.listeners import Listeners, ListenerStatus
from broker.net.settings import (
    PROTOCOLS,
    ListenerSettings,
    NamedListener,
    SslListenerSettings,
    WsListenerSettings,
    WssListenerSettings,
)

_MODELS: Mapping[str, type[ListenerSettings]] = {
    model.kind: model
    for model in (ListenerSettings, SslListenerSettings, WsListenerSettings, WssListenerSettings)
}


class ListenerRow(TypedDict):
    """A listener as it is now. `address` is what it listens on, null unless it is open; times are RFC 3339."""

    id: str
    name: str
    protocol: str
    bind: str
    address: str | None
    state: str
    connections: int
    max_connections: int
    zone: str
    certificate_expires: str | None


class ListenerView(ListenerRow):
    """A listener with its settings, as in section `listeners` of the configuration. `fixed` are those that a file over
    the API's, the environment or the command line sets, by key, with the place: they can only be changed there."""

    settings: dict[str, Any]
    fixed: dict[str, str]


class ListenerAuthenticator(BaseModel):
    """An authenticator of a listener's own chain, with the settings of its mechanism as for `/authentication`."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(description="Its mechanism.")
    mechanism: str


class Reload(Protocol):
    """Applies a changed configuration (``broker.app.reload``)."""

    @property
    def config(self) -> Config: ...

    def saved(self, path: tuple[str, ...]) -> Any: ...

    async def change(
        self, root: str, edit: Callable[[Any], Any], *, check: Callable[[Config], None], drain: bool
    ) -> None:
        """Write listeners, and open and close listeners as they say; all or nothing."""
        ...


class NamedOf(Protocol):
    """The listeners of a configuration."""

    def __call__(self, config: Config, *, also_disabled: bool = False) -> list[NamedListener]: ...


class ListenerService:
    """Lists, shows, adds, changes, removes, starts and stops listeners.

    A listener is named by its kind and key: ``tcp:default``.
    """

    kind: Final = "listener"

    def __init__(self, listeners: Listeners, reload: Reload, named_of: NamedOf) -> None:
        self._listeners = listeners
        self._reload = reload
        self._named_of = named_of

    def list(self) -> Sequence[ListenerRow]:
        """All of them in the order in which they are opened, those too that are not enabled."""
        statuses = {status.id: status for status in self._listeners.statuses()}
        return [_shown(named, statuses.get(named.id)) for named in self._all(self._reload.config)]

    def get(self, id: str) -> ListenerView:
        """One of them with its settings; raises ``NotFound``."""
        named = self._find(self._reload.config, id)
        status = next(
            (candidate for candidate in self._listeners.statuses() if candidate.id == id), None
        )
        return {
            **_shown(named, status),
            "settings": named.settings.model_dump(mode="json"),
            "fixed": self._fixed(id, named.settings),
        }

    def saved(self, id: str) -> Spec:
        """The active settings with its ``id``, secrets masked; raises ``NotFound``."""
        settings = self._find(self._reload.config, id).settings
        return {"id": id, **settings.model_dump(mode="json")}

    def planned(self, id: str, spec: Spec) -> Spec:
        """The settings with its ``id`` as they would be active once ``spec`` is saved for it."""
        kind, _ = _parts(id)
        defaults = _MODELS[kind]().model_dump(mode="json")
        listener = next((named for named in self._all(self._reload.config) if named.id == id), None)
        active = defaults if listener is None else listener.settings.model_dump(mode="json")
        reset = {key: defaults[key] for key in self._held(id) if key in defaults}
        settings: Spec = merged({**active, **reset}, spec)
        return {**settings, "id": id}

    async def adopt(
        self, id: str | None, link: socket.socket, host: str | None, port: int | None
    ) -> None:
        """Serve a local socket as a connection of a listener; see ``Listeners.adopt``."""
        await self._listeners.adopt(id, link, host, port)

    def saved_version(self, id: str) -> Version:
        """The version of the settings of one; raises ``NotFound``."""
        settings = self._find(self._reload.config, id).settings
        return Version(etag_of({**settings.model_dump(mode="json"), **self._held(id)}))

    async def create(self, spec: Spec) -> ListenerView:
        """Add one, named by its ``id``, and open it.

        Raises:
            AlreadyExists: there is one.
            Invalid, ConfigError: with all problems; nothing was changed.
            Unavailable: its address is taken.
        """
        id = str(spec["id"])
        if any(named.id == id for named in self._all(self._reload.config)):
            raise AlreadyExists(self.kind, id)
        return await self._put(id, spec, drain=False)

    def patched(self, id: str, patch: Spec) -> Spec:
        """The settings with some changed (JSON Merge Patch; null restores the default); raises ``NotFound``."""
        self._find(self._reload.config, id)
        settings: Spec = merged(self._held(id), patch)
        return settings

    async def replace(self, id: str, spec: Spec, *, drain: bool = False) -> ListenerView:
        """Set the settings; raises as ``create``, and ``NotFound``. Open connections stay.

        Where a file or the command line fixes a setting, ``ReadOnly`` says which.
        """
        self._find(self._reload.config, id)
        return await self._put(id, spec, drain=drain)

    async def delete(self, id: str, *, drain: bool = False) -> None:
        """Close and forget one; its connections are closed, unless they are to drain.

        Raises:
            NotFound: there is none.
            ReadOnly: a file or the command line has it.
        """
        self._find(self._reload.config, id)
        kind, key = _parts(id)
        if (kind, key) == ("tcp", "default"):
            raise ReadOnly("listener 'tcp:default' is always there; set its 'enable' to false")

        def removed(listeners: Spec | None) -> Spec:
            rest = {
                name: value
                for name, value in (listeners or {}).get(kind, {}).items()
                if name != key
            }
            return {**(listeners or {}), kind: rest}

        def check(config: Config) -> None:
            if any(named.id == id for named in self._all(config)):
                origin = config.origin(f"listeners.{kind}.{key}")
                raise ReadOnly(f"listener {id!r} is fixed by {origin}; take it out there")

        await self._reload.change("listeners", removed, drain=drain, check=check)

    # -- authenticators of one --

    def authenticators(self, name: str) -> Sequence[Spec]:
        """Authenticators of a listener in their order, secrets masked; none where its clients have those of the section
        ``authentication``. Raises ``NotFound``."""
        chain = self._find(self._reload.config, name).settings.authentication or []
        shown = [item.model_dump(mode="json", exclude_none=True) for item in chain]
        return [{"name": item["mechanism"], **item} for item in shown]

    def authenticator(self, name: str, mechanism: str) -> Spec:
        """One of them; raises ``NotFound``."""
        return self.authenticators(name)[self._place(name, mechanism)]

    async def add_authenticator(self, name: str, spec: Spec) -> Spec:
        """Add one at the end.

        Raises:
            AlreadyExists: there is one of its mechanism.
            NotFound, Invalid, ReadOnly: nothing was changed.
        """
        added = _authenticator(spec)
        mechanism = str(added.get("mechanism"))
        if any(item["name"] == mechanism for item in self.authenticators(name)):
            raise AlreadyExists("authenticator", mechanism)
        return await self._put_chain(name, [*self._chain(name), added], mechanism)

    async def replace_authenticator(self, name: str, mechanism: str, spec: Spec) -> Spec:
        """Put another in its place; raises as ``add_authenticator``."""
        place = self._place(name, mechanism)
        mechanism = self.authenticators(name)[place]["name"]
        chain = self._chain(name)
        chain[place] = _authenticator({"mechanism": mechanism, **spec})
        if chain[place]["mechanism"] != mechanism:
            problem = Problem(f"it is {mechanism!r}", "/mechanism")
            raise Invalid("the authenticator keeps its mechanism", [problem])
        return await self._put_chain(name, chain, mechanism)

    async def delete_authenticator(self, name: str, mechanism: str) -> None:
        """Take one away. Without any the listener's clients have those of the section; raises as
        ``add_authenticator``."""
        place = self._place(name, mechanism)
        chain = self._chain(name)
        del chain[place]
        await self._put(name, self.patched(name, {"authentication": chain or None}), drain=False)

    def _place(self, name: str, mechanism: str) -> int:
        names = [item["name"] for item in self.authenticators(name)]
        try:
            return names.index(ALIASES.get(mechanism, mechanism))
        except ValueError:
            raise NotFound(f"authenticator of listener {name!r}", mechanism) from None

    def _chain(self, name: str) -> builtins.list[Spec]:
        """The authenticators as they were written through the API; raises ``ReadOnly`` where others wrote them."""
        chain = self._held(name).get("authentication")
        if chain is None and self.authenticators(name):
            kind, key = _parts(name)
            origin = self._reload.config.origin(f"listeners.{kind}.{key}.authentication")
            raise ReadOnly(
                f"authentication of listener {name!r} is fixed by {origin}; change it there"
            )
        return deepcopy(chain or [])

    async def _put_chain(self, name: str, chain: builtins.list[Spec], mechanism: str) -> Spec:
        await self._put(name, self.patched(name, {"authentication": chain}), drain=False)
        return self.authenticator(name, mechanism)

    async def start(self, id: str) -> ListenerView:
        """Open one that was stopped; raises ``NotFound`` and ``Unavailable``."""
        self._check_enabled(id)
        await self._listeners.start(id)
        return self.get(id)

    async def stop(self, id: str, *, drain: bool = False) -> ListenerView:
        """Close one until it is started again, or the broker is; raises ``NotFound``."""
        self._check_enabled(id)
        await self._listeners.stop(id, drain=drain)
        return self.get(id)

    async def restart(self, id: str, *, drain: bool = False) -> ListenerView:
        """Close one and open it again; raises ``NotFound`` and ``Unavailable``."""
        await self.stop(id, drain=drain)
        return await self.start(id)

    async def _put(self, id: str, spec: Spec, *, drain: bool) -> ListenerView:
        kind, key = _parts(id)
        stored = self._held(id)
        settings = with_stored(
            {name: value for name, value in spec.items() if name != "id"}, stored
        )
        subject = f"listener {id!r}"
        wanted = parsed(_MODELS[kind], settings, f"{subject} cannot be saved")
        if problems := reference_problems(wanted):
            raise Invalid(f"{subject} cannot be saved", problems)
        if has_stars(spec):
            check_moved(
                subject, spec, wanted, parsed(_MODELS[kind], stored, f"{subject} cannot be read")
            )

        def with_it(listeners: Spec | None) -> Spec:
            of_kind = (listeners or {}).get(kind, {})
            return {**(listeners or {}), kind: {**of_kind, key: deepcopy(settings)}}

        def check(config: Config) -> None:
            current = self._find(config, id).settings
            for name in type(wanted).model_fields:
                if name in settings and getattr(current, name) != getattr(wanted, name):
                    origin = config.origin(f"listeners.{kind}.{key}.{name}")
                    raise ReadOnly(
                        f"{name} of listener {id!r} is fixed by {origin}; change it there"
                    )

        await self._reload.change("listeners", with_it, drain=drain, check=check)
        return self.get(id)

    def _held(self, id: str) -> Spec:
        """The settings of a listener in the API's file."""
        kind, key = _parts(id)
        section: Spec = self._reload.saved(("listeners", kind, key)) or {}
        return section

    def _fixed(self, id: str, settings: ListenerSettings) -> dict[str, str]:
        """The places that set keys over the API's file."""
        kind, key = _parts(id)
        at = ("listeners", kind, key)
        return {
            ".".join(path): place
            for path in _keys(settings)
            if (place := self._reload.config.stronger((*at, *path))) is not None
        }

    def _check_enabled(self, id: str) -> None:
        if not self._find(self._reload.config, id).settings.enable:
            raise Invalid(f"listener {id!r} is not enabled; set its 'enable' to true")

    def _all(self, config: Config) -> Sequence[NamedListener]:
        return self._named_of(config, also_disabled=True)

    def _find(self, config: Config, id: str) -> NamedListener:
        listener = next((named for named in self._all(config) if named.id == id), None)
        if listener is None:
            raise NotFound(self.kind, id, "'sluice listeners ls' shows all")
        return listener


def _authenticator(spec: Spec) -> Spec:
    """The settings of an authenticator as sent, without the name that is shown with them."""
    return {key: value for key, value in native(spec).items() if key != "name"}


def _keys(settings: Settings) -> Iterator[KeyPath]:
    """The keys of settings, and of settings within them."""
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, Settings):
            yield from ((name, *path) for path in _keys(value))
        else:
            yield (name,)


def _parts(id: str) -> tuple[str, str]:
    kind, _, key = id.partition(":")
    if kind not in _MODELS:
        raise Invalid(
            f"{id!r} is not a listener",
            [Problem("write KIND:NAME, KIND one of tcp, ssl, ws, wss", "/id")],
        )
    if problem := name_problem(key):
        raise Invalid(f"{id!r} is not a listener", [Problem(problem, "/id")])
    return kind, key


def _shown(named: NamedListener, status: ListenerStatus | None) -> ListenerRow:
    settings = named.settings
    state = "disabled" if not settings.enable else "stopped" if status is None else status.state
    address = None if status is None else status.address
    expires = None if status is None else status.certificate_expires
    return {
        "id": named.id,
        "name": named.name,
        "protocol": PROTOCOLS[settings.kind],
        "bind": settings.bind,
        "address": None if address is None else address_text(*address),
        "state": state,
        "connections": 0 if status is None else status.connections,
        "max_connections": settings.max_connections,
        "zone": settings.zone,
        "certificate_expires": None if expires is None else rfc3339_of(expires),
    }
