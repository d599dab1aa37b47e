"""The management API, and what it is given of the node.

Importing it and putting it together takes as long as the rest of a start. So its address is opened with the rest, and
it is made in a thread once the broker is ready, or takes long to be: requests until then wait for half a second.
"""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from broker.admin.access import BanService
from broker.admin.alarms import AlarmService
from broker.admin.cells import CellService
from broker.admin.groups import GroupService
from broker.admin.listeners import ListenerService
from broker.admin.settings import SettingService
from broker.admin.stream_records import StreamRecords
from broker.admin.traffic import Traffic
from broker.app import features
from broker.app.build import Node, named_of
from broker.app.reload import ConfigReload
from broker.app.status import NodeStatus
from broker.app.version import product_version
from broker.auth.login_limits import LoginLimits, network_of
from broker.cluster.directories import cells_directory, origin_file
from broker.cluster.front_relay import FrontRelay
from broker.cluster.service import ClusterService
from broker.config.file_names import API_FILE
from broker.config.ssrf import AddressGuard
from broker.config.vault import KEY_FILE
from broker.core import lazy_module
from broker.core.cells import Place
from broker.core.errors import SluiceError
from broker.core.kinds import load
from broker.core.relayed import FRONT_SOCKET
from broker.observe.log import get_logger
from broker.observe.prometheus import exposition
from broker.streams.epochs import FILE as EPOCHS_FILE

_log = get_logger(__name__)

# File of the data directory with the administrator's token.
TOKEN_FILE: Final = "api.token"
# Seconds after which the first cell is asked again for its saved files.
_AGAIN_S: Final = 1.0


def saved_files(data_dir: Path) -> dict[str, Path]:
    """The files of the first cell that other machines have copies of, by their content."""
    return {
        "objects": data_dir / API_FILE,
        "streams": cells_directory(data_dir) / EPOCHS_FILE,
        "origin": origin_file(data_dir),
        "token": data_dir / TOKEN_FILE,
        "secrets_key": data_dir / KEY_FILE,
    }


def files_of_front(place: Place, data_dir: Path) -> Any:
    """The way to those files (``ui.api.cell_files.FilesOfFront``)."""
    make = features.load(features.API_FILES_OF_FRONT)
    return make(place, saved_files(data_dir), cells_directory(data_dir))


class Api:
    """The API's address, and in time the API. In a broker of several cells (``place``) it is also on a socket for the
    others, and the first cell answers for all of them.

    Raises:
        broker.core.errors.ConfigError: the address cannot be bound.
    """

    def __init__(self, node: Node, reload: ConfigReload, place: Place | None = None) -> None:
        self._node = node
        self._place = place if place is not None and place.count > 1 else None
        self._reload = reload
        host, port = node.api_settings.address
        bind = features.load(features.API_LISTENER)
        settings = node.api_settings
        has_address = self._place is None or self._place.index == 0
        self._certificate: Any = None
        if settings.has_tls and has_address:
            self._certificate = features.load(features.API_CERTIFICATE)(
                settings.certfile, settings.keyfile
            )
        self._listener: socket.socket | None = bind(host, port) if has_address else None
        self.address = _address_of(self._listener)
        # at the address of the settings another cell of this machine, or its keeper, answers
        is_guest_front = not has_address and place is not None and place.number == 0
        has_local = is_guest_front or (settings.has_tls and has_address)
        self._local: socket.socket | None = bind("127.0.0.1", 0) if has_local else None
        self.local_address = _address_of(self._local or self._listener)
        """Address without TLS, on loopback where the other has it or is another cell's, for processes and commands of
        this machine."""
        self._inner: list[socket.socket] = []
        """Listeners for other cells, and in the first cell of several machines for the others."""
        self._faces: Any = None
        self._files: Any = None
        """``ui.api.cell_files.FilesOfFront`` in a cell of another machine than the first cell's."""
        self._following: asyncio.Task[None] | None = None
        self._making: asyncio.Task[tuple[Any, Any]] | None = None

    def begin(self) -> asyncio.Task[tuple[Any, Any]]:
        """Make the API in a thread, then answer requests. May be called twice."""
        if self._making is None:
            self._making = asyncio.create_task(self._make(), name="management API start")
        return self._making

    async def sign_in_link(self) -> str:
        """A link that signs in to the dashboard, once the API is there. After ``begin``."""
        assert self._making is not None
        _, context = await asyncio.shield(self._making)
        link: str = context.new_sign_in_link()
        return link

    async def stop(self) -> None:
        """Finish the requests that run, and close the address."""
        if self._making is not None:
            self._node.server.hub.plans.tails.close_all()
            servers, context = await self._making
            await context.jobs.stop()
            for server in servers:
                await server.stop()
        if self._faces is not None:
            await self._faces.stop()
        if self._following is not None:
            self._following.cancel()
        if self._files is not None:
            await self._files.stop()
        for listener in (self._listener, self._local, *self._inner):
            if listener is not None:
                listener.close()

    async def _make(self) -> tuple[Any, Any]:
        servers, context = await asyncio.to_thread(self._put_together)
        self._node.server.set_aside()
        if self._faces is not None:
            self._faces.start()
        if self._files is not None:
            self._files.start()
            self._following = asyncio.create_task(self._follow_front(), name="files of cell 0")
        context.jobs.start_again()  # a request that is answered finds them
        for server in servers:
            await server.start()
        await asyncio.to_thread(lazy_module.import_all)
        self._node.server.set_aside()
        _log.info("node.complete")
        return servers, context

    async def _follow_front(self) -> None:
        """Take over what was saved while this cell was away."""
        while True:
            try:
                await self._reload.adopt()
            except SluiceError as error:
                _log.info("cells.configuration_awaited", reason=str(error))
                await asyncio.sleep(_AGAIN_S)
            else:
                return

    def _put_together(self) -> tuple[Any, Any]:
        context = context_of(
            self._node, self._reload, 0 if self._place is None else self._place.number
        )
        if self._place is not None:
            self._inner = [features.load(features.API_CELL_LISTENER)(self._place)]
            if self._place.number == 0:
                self._faces = features.load(features.API_FACES)(
                    self._place,
                    self._node.sections.file,
                    self._reload,
                    context.streams,
                    context.backups,
                    self._alarm_of_configuration,
                    context.version,
                )
                context.faces = self._faces
                context.cluster.rows = partial(self._faces.rows_of, context.cells.rows)
                context.saved_files = saved_files(self._node.data_dir)
                context.machine = self._place.here
            elif 0 not in self._place.near:
                self._files = files_of_front(self._place, self._node.data_dir)
                self._reload.fetch = self._files.fetch
        app = features.load(features.API_APPLICATION)(context)
        return self._servers(app), context

    def _alarm_of_configuration(self, cell: int, is_raised: bool, reason: str) -> None:
        self._node.alarms.set(
            f"configuration_differs:{cell}",
            is_raised,
            f"cell {cell} has another configuration than cell 0: {reason}",
            cell=cell,
        )

    def _servers(self, app: Any) -> list[Any]:
        make = features.load(features.API_SERVER)
        place = self._place
        of_clients = [(self._local, None), (self._listener, self._certificate)]
        shown = [(listener, certificate) for listener, certificate in of_clients if listener]
        servers = [make(app, "", 0, listener, way="cells") for listener in self._inner]
        if place is not None and 0 not in place.near:
            most = self._node.api_settings.max_connections
            health = self._node.health
            return servers + [FrontRelay(place, health, most, *pair) for pair in shown]
        if place is not None and place.machines and place.number == 0:
            of_machines = features.load(features.API_CELL_LISTENER)(place, FRONT_SOCKET)
            self._inner.append(of_machines)
            servers.append(make(app, "", 0, of_machines, way="machines"))
        return servers + [
            make(app, *_address_of(listener), listener, certificate)
            for listener, certificate in shown
        ]


def _address_of(listener: socket.socket | None) -> tuple[str, int]:
    """The address of a socket; that of a cell behind the front has none."""
    if listener is None or listener.family == socket.AF_UNIX:
        return "", 0
    host, port = listener.getsockname()[:2]
    return host, port


def context_of(node: Node, reload: ConfigReload, number: int = 0) -> Any:
    """Context of the API: a ``ui.api.context.ApiContext``. ``number`` is that of the cell."""
    status = NodeStatus(node)
    return features.load(features.API_CONTEXT)(
        token=node.token,
        services={
            **node.object_services,
            "users": node.access.users,
            "bans": BanService(node.access.bans, node.writer),
            "groups": GroupService(node.server.hub.share_groups),
            "listeners": ListenerService(node.server.listeners, reload, named_of),
            "config": SettingService(reload),
        },
        section=node.sections.section,
        together=node.sections.together,
        put_objects=node.sections.put,
        saved_objects=None if node.sections.file is None else node.sections.file.on_change,
        values=node.services.storage.values,
        contributors=node.services.contributors,
        publisher=node.server.publisher,
        status=status.read,
        cells=CellService(
            number,
            status.read,
            node.metrics,
            node.copies_of_cell,
            lambda: node.arrival,
            node.health.has_started,
        ),
        cluster=ClusterService(
            None if node.steering is None else node.steering.place,
            lambda cell: node.links is not None and node.links.has(cell),
            node.clock,
        ),
        metrics_text=lambda: exposition(node.metrics),
        streams=StreamRecords(node.streams, node.tails, node.ranges),
        lake=node.lake.jobs,
        lake_tables=node.lake.tables,
        lake_reads=node.lake.reads,
        lake_states=node.lake.states,
        replays=node.replays,
        imports=node.imports,
        quarantine=node.quarantine,
        refused=node.refused,
        access=node.access,
        accounts=node.accounts,
        oidc=_oidc(node),
        tokens=node.tokens,
        logins=ApiLogins(node.access.limits),
        delayed=node.delayed,
        traffic=Traffic(node.server.hub, node.tails, node.pipeline.stages),
        tails=node.tails,
        receivers=node.services.endpoints.receivers,
        reload=reload,
        alarms=AlarmService(node.alarms, node.clock),
        audit_log=node.audit_log,
        saturation=node.saturation,
        applied=node.applied,
        backups=node.backups,
        captures=node.captures,
        history=node.history,
        not_ready=node.health.not_ready,
        ready_remark=node.health.remark,
        defers_work=node.health.defers_work,
        pipeline=node.pipeline,
        events=node.rules.events,
        functions=lambda: [
            *(function.as_dict() for function in node.rules.functions),
            *node.transforms.functions(),
        ],
        plugins=lambda: [plugin.as_dict() for plugin in node.rules.plugins],
        clock=node.clock,
        api_settings=node.api_settings,
        metrics=node.metrics,
        version=product_version(),
    )


def _oidc(node: Node) -> Any:
    settings = node.api_settings.oidc
    guard = AddressGuard(node.config.get("rule_engine").ssrf)
    return (
        None
        if settings is None
        else load("broker.admin.oidc:OidcSignIn")(settings, guard, node.clock)
    )


_ADMINISTRATOR: Final = "administrator of the API"
_MAX_ADDRESSES: Final = 10_000


class ApiLogins:
    """Limits failed logins to the API like those of MQTT clients: by the address that sent a token or code. An address
    whose token was right before may continue to use it whatever else comes from there. The same wrong token again is
    not another guess: a script with an outdated token locks out no other client of its address."""

    def __init__(self, limits: LoginLimits) -> None:
        self._limits = limits
        self._wrong: dict[str, bytes] = {}

    def refuses(self, host: str | None, shown: str, is_right: bool) -> bool:
        """True if an attempt is refused because too many from this address failed; counts the attempt otherwise."""
        place = f"api {network_of(host)}"
        if is_right and self._limits.knows(place, _ADMINISTRATOR):
            return False
        digest = sha256(shown.encode(errors="surrogateescape")).digest()
        if not is_right and self._wrong.get(place) == digest:
            return False
        if self._limits.refuses(place, _ADMINISTRATOR):
            return True
        if is_right:
            self._limits.succeeded(place, _ADMINISTRATOR)
        else:
            self._limits.failed(place, _ADMINISTRATOR)
            self._wrong[place] = digest
            if len(self._wrong) > _MAX_ADDRESSES:
                del self._wrong[next(iter(self._wrong))]
            _log.warning("api.login_failed", address=host)
        return False

    def refuses_account(self, host: str | None, account: str) -> bool:
        """True if an attempt with the password of an account is refused, before the password is checked."""
        return self._limits.refuses(f"api {network_of(host)}", f"account {account}")

    def attempted(self, host: str | None, account: str, is_right: bool) -> None:
        """Count the result of an attempt with a password."""
        count = self._limits.succeeded if is_right else self._limits.failed
        count(f"api {network_of(host)}", f"account {account}")
        if not is_right:
            _log.warning("api.login_failed", address=host)

    def retry_after_s(self) -> int:
        """Seconds until the next attempt is accepted."""
        settings = self._limits.settings
        return max(1, round(settings.window / settings.max_failures_per_user))
