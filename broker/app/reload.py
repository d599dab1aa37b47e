"""Reads the configuration again while the broker runs, and applies the changes.

Everything is read, validated and, where objects have changed, tried in a process of its own first; when something is
wrong nothing changes. What can only be had by a restart is named in the answer.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from hashlib import sha256
from typing import Any, Final, NamedTuple

from broker.admin.access import USERS
from broker.admin.audit_log import AuditRecord, change_of
from broker.admin.named_secrets import SECRETS
from broker.app.build import Node, named_of, section_models
from broker.config.assignments import KeyPath
from broker.config.model import Settings
from broker.config.options import ServeOptions
from broker.config.root import (
    ChangedListeners,
    ChangedObject,
    Config,
    PlannedReload,
    ReloadedConfig,
    differing,
    load_config,
)
from broker.config.sections import Change, FileSection
from broker.connection.settings import FIXED_SETTINGS
from broker.core import jsontext
from broker.core.errors import ConfigError, Conflict, SluiceError
from broker.core.kinds import Kind, kind_at, kinds
from broker.core.objects import Spec
from broker.net.listeners import ListenerChanges
from broker.observe.log import get_logger, setup

_log = get_logger(__name__)

Apply = Callable[[Any], None]
# Sections that may differ between the machines of a cluster.
_OF_MACHINE: Final = frozenset(
    ("allowed", "api", "cluster", "lake", "listeners", "log", "node", "overload", "range_server", "store", "telemetry")
)  # fmt: skip


def _digest(config: Config, objects: Mapping[str, Sequence[Spec]]) -> str:
    """Digest of settings and objects, one after the other: each is encoded while no other thread runs."""
    digest = sha256()
    for name, settings in config.effective().items():
        if name not in _OF_MACHINE:
            digest.update(jsontext.encode([name, settings]))
    for name, specs in objects.items():
        for spec in specs:
            digest.update(jsontext.encode([name, spec]))
    return digest.hexdigest()


class _ChangedSection(NamedTuple):
    """Settings that changed: the keys of those that need no restart, and of those that do. ``settings`` are those that
    become active, None where they stay."""

    name: str
    settings: Settings | None
    done: Sequence[str]
    waiting: Sequence[str]


class ConfigReload:
    """Reads the configuration again and applies what changed.

    Used on the event loop; one call at a time, the others wait.
    """

    def __init__(self, node: Node, options: ServeOptions, environ: Mapping[str, str]) -> None:
        self._node = node
        self._options = options
        self._environ = environ
        self._in_force = dict(node.config.sections)
        self._at_start = node.config
        self._one_at_a_time = asyncio.Lock()
        self._digested: tuple[Config | None, int, str] = None, 0, ""
        self.fetch: Callable[[], Awaitable[None]] | None = None
        """Brings the files of the first cell here, in a cell of another machine."""
        hub = node.server.hub
        self._live: Mapping[str, tuple[Apply, frozenset[str]]] = {
            "mqtt": (node.server.use_settings, FIXED_SETTINGS),
            "zones": (lambda settings: hub.zones.use(hub.context.settings, settings), frozenset()),
            "delayed": (lambda settings: setattr(hub.delayed, "settings", settings), frozenset()),
            "sys_topics": (
                lambda settings: setattr(hub.sys_topics, "settings", settings),
                frozenset(),
            ),
            "authentication": (node.access.settings["authentication"].adopt, frozenset()),
            "authorization": (node.access.settings["authorization"].adopt, frozenset()),
            "flapping_detect": (
                lambda settings: setattr(hub.access.flapping, "settings", settings),
                frozenset(),
            ),
            "login_limits": (
                lambda settings: setattr(node.access.limits, "settings", settings),
                frozenset(),
            ),
            "telemetry": (node.tracing.use, frozenset()),
            "log": (
                lambda settings: setup(
                    settings.level, settings.format, file=settings.rotating_file()
                ),
                frozenset(("file", "rotation_size", "rotation_count")),
            ),
        }

    async def reload(self, *, drain: bool = False) -> ReloadedConfig:
        """Read all files again; what has changed, by kind, and ``needs_restart``.

        Args:
            drain: whether connections of listeners that go may stay.

        Raises:
            ConfigError: a sentence for everything that is wrong; nothing was changed.
            Unavailable: the address of a listener is taken; nothing was changed.
        """
        async with self._one_at_a_time:
            config = await self._checked()
            planned = self._planned(config, drain=drain)
            listeners = await self._change_listeners(config, drain=drain)
            self._node.server.listeners.reload_certificates()
            settings, waiting = self._change_settings(config)
            objects, failed, also_waiting = self._change_objects(config)
            self._node.config = config
            if settings or any(listeners.values()):
                self._node.history.mark("configuration", "", "reloaded")
            answer: ReloadedConfig = {
                "files": config.files,
                "settings": settings,
                "listeners": listeners,
                "objects": objects,
                "failed": failed,
                "needs_restart": [*waiting, *also_waiting],
            }
            self._node.audit_log.record(_record_of(planned, [*failed, *answer["needs_restart"]]))
            _log.info("config.reloaded", needs_restart=answer["needs_restart"], failed=failed)
            return answer

    @property
    def files_digest(self) -> str:
        """Digest of the files as they were read last, the API's aside."""
        return self._node.config.files_digest()

    async def adopt(self, files: str = "") -> None:
        """Take over what the API's file holds now, which another cell has written. ``files`` is the digest of the
        others as that cell has read them: where they changed since this one did, it reads them too.

        Raises:
            ConfigError: it cannot be used; nothing was changed.
            Conflict: other files have changed since they were read, or some objects cannot be taken over.
        """
        if self.fetch is not None:
            await self.fetch()
            files = ""  # each machine has its own
        config = await asyncio.to_thread(self._read, None)
        if self._node.config.other_layers(config) and config.files_digest() == files:
            await self.reload()
        async with self._one_at_a_time:
            config = await asyncio.to_thread(self._read, None)
            self._check_other_files(config)
            await self._change_listeners(config, drain=False)
            self._change_settings(config)
            before = self._node.sections.section(USERS).load()
            _, failed, _ = self._change_objects(config)
            self._take_over_users(before)
            failed += self._reordered()
            self._node.streams.follow()
            self._node.config = config
            if failed:
                raise Conflict("; ".join(failed))

    async def digest(self) -> str:
        """Digest of the active settings and objects, but for those that each machine has of its own, and secrets
        that are settings. Cells that have taken over the same configuration have the same."""
        config = self._node.config
        sections = self._node.sections
        if (config, sections.changes) != self._digested[:2]:
            changes = sections.changes
            objects = {
                name: specs
                for name, specs in sections.all().items()
                if name.partition(".")[0] not in _OF_MACHINE
            }
            digest = await asyncio.to_thread(_digest, config, objects)
            self._digested = config, changes, digest
        return self._digested[2]

    async def committed(self) -> None:
        """Wait until all that changed here is committed. Raises ``Unavailable``."""
        await self._node.writer.committed()

    async def follow(self, changes: Mapping[str, Mapping[str, Change]] | None, files: str) -> None:
        """Take over changes of objects that another cell has written, by section and name, and else as ``adopt``."""
        if not changes or not changes.keys() <= _reloaded_sections().keys() | {USERS}:
            return await self.adopt(files)
        if self.fetch is not None:
            await self.fetch()  # the next start reads these files, and a first secret needs its key
        async with self._one_at_a_time:
            is_taken = self._node.sections.follow(changes)
            if is_taken:
                self._follow_objects(changes)
        if not is_taken:
            await self.adopt(files)
        return None

    def _follow_objects(self, changes: Mapping[str, Mapping[str, Change]]) -> None:
        sections = _reloaded_sections()
        before: dict[str, list[Spec]] = {name: [] for name in sections}
        after: dict[str, list[Spec]] = {name: [] for name in sections}
        for path, objects in changes.items():
            if path == USERS:
                self._node.access.users.take_over({name: now for name, (_, now) in objects.items()})
                continue
            before[path] = [was for was, _ in objects.values() if was is not None]
            after[path] = [now for _, now in objects.values() if now is not None]
        _, failed = self._attempted(before, after)
        if failed:
            raise Conflict("; ".join(failed))

    def _take_over_users(self, before: Sequence[Spec]) -> None:
        then = {spec["name"]: spec for spec in before}
        now = {spec["name"]: spec for spec in self._node.sections.section(USERS).load()}
        changed = [name for name in then.keys() | now.keys() if then.get(name) != now.get(name)]
        self._node.access.users.take_over({name: now.get(name) for name in changed})

    def _reordered(self) -> list[str]:
        """Bring objects into the order of the file; a sentence for each kind where that fails."""
        node = self._node
        failed = list[str]()
        with node.sections.unlocked():
            for section, kind in _reloaded_sections().items():
                service: Any = node.object_services.get(kind.path)
                if not kind.abilities.can_reorder or service is None:
                    continue
                names = [spec["name"] for spec in node.sections.section(section).load()]
                if names == [spec[kind.key] for spec in service.list()]:
                    continue
                try:
                    service.reorder(names)
                except SluiceError as error:
                    failed.append(f"order of {kind.many}: {error}")
        return failed

    def _check_other_files(self, config: Config) -> None:
        if changed := self._node.config.other_layers(config):
            advice = "Try: sluice config reload, which reads them"
            raise Conflict(
                f"{', '.join(changed)} changed after the broker read it, so nothing was saved. {advice}"
            )

    async def plan(self, *, drain: bool = False) -> PlannedReload:
        """Return what ``reload`` would change. Raises as it does, but for addresses that are taken."""
        async with self._one_at_a_time:
            config = await self._checked()
            self._node.server.check_listeners(named_of(config))
            return self._planned(config, drain=drain)

    def _planned(self, config: Config, *, drain: bool) -> PlannedReload:
        """The changes that a configuration would make."""
        before = self.in_force.leaves()
        after = config.leaves()
        changed: list[str] = []
        waiting: list[str] = []
        for change in self._changed_sections(config):
            changed += change.done
            waiting += change.waiting
        sections = _reloaded_sections()
        now = {name: self._node.sections.section(name).load() for name in sections}
        then = {
            name: FileSection(tuple(name.split(".")), config.objects[name], None).load()
            for name in sections
        }
        return PlannedReload(
            before={key: before.get(key) for key in changed},
            after={key: after.get(key) for key in changed},
            objects=[
                *_changed_listeners(
                    self._node.server.listeners.changes(named_of(config)), drain=drain
                ),
                *_changed_objects(now, then),
            ],
            needs_restart=[*waiting, *self._waiting_sections(config)],
        )

    async def change(
        self,
        root: str,
        edit: Callable[[Any], Any],
        *,
        check: Callable[[Config], None],
        drain: bool = False,
        name: str = "",
    ) -> None:
        """Write a root of the settings to the API's file, and apply it: all or nothing.

        Args:
            root: the first part of a key: ``mqtt``, ``listeners``.
            edit: gets a copy of the value that the API has saved, or None; returns it changed.
            check: raises when the configuration that results is not what was meant.
            drain: whether connections of listeners that go may stay.
            name: the key that changed, for the history of metrics.

        Raises:
            ConfigError: with every problem; nothing was changed, nor written.
            Conflict: the files have changed since they were read.
            Unavailable: the address of a listener is taken, or the file cannot be written.
        """
        async with self._one_at_a_time:
            node = self._node
            file = node.sections.file
            assert file is not None  # a running broker has a data directory
            before = deepcopy(file.values.get(root))
            after = edit(deepcopy(before)) or None
            others = {key: value for key, value in file.values.items() if key != root}
            config = await asyncio.to_thread(
                self._read, others if after is None else {**others, root: after}
            )
            self._check_other_files(config)
            check(config)
            node.server.check_listeners(named_of(config))
            file.set(root, after)
            try:
                await self._change_listeners(config, drain=drain)
                self._change_settings(config)
            except SluiceError:
                file.set(root, before)
                raise
            node.config = config
            if name:
                node.history.mark("setting", name, "changed")

    async def read_files(self) -> tuple[Config, list[str]]:
        """The configuration in the files, else the one that was read last, with the problems of the files."""
        try:
            return await asyncio.to_thread(self._read, None), []
        except ConfigError as error:
            return self._node.config, list(error.problems)

    @property
    def in_force(self) -> Config:
        """The configuration that was read last, with the values that are active."""
        own = {
            name: self._active(name) for name in self._in_force if not name.startswith("listeners.")
        }
        return self._node.config.with_sections(own)

    def origin(self, path: KeyPath) -> str:
        """The source of the active value of a key."""
        late = self.in_force.differences(self._node.config)
        is_late = any(path[: len(other)] == other for other in late)
        return (self._at_start if is_late else self._node.config).origin_of(path)

    def needs_restart(self, path: KeyPath) -> bool:
        """True if a change of the key waits for a restart."""
        if path[0] == "listeners":
            return False
        live = self._live.get(path[0])
        return live is None or not live[1].isdisjoint(path[1:2])

    def saved(self, path: KeyPath) -> Any:
        """The value at a path in the API's file; None if it has none."""
        file = self._node.sections.file
        value: Any = {} if file is None else file.values
        for part in path:
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def last_change(self, key: str) -> Mapping[str, str] | None:
        """The person or program that changed a setting last through the API, and when."""
        return self._node.audit_log.setting_change(key)

    @property
    def config(self) -> Config:
        """Configuration that was read last."""
        return self._node.config

    def _read(self, api_values: Mapping[str, Any] | None) -> Config:
        return load_config(
            section_models(),
            data_dir=self._options.data_dir,
            config_files=self._options.config_files,
            environ=self._environ,
            overrides=overrides_of(self._options),
            api_values=api_values,
        )

    async def _change_listeners(self, config: Config, *, drain: bool) -> ChangedListeners:
        return _listed(await self._node.server.change_listeners(named_of(config), drain=drain))

    async def _checked(self) -> Config:
        """The configuration in the files; raises ``ConfigError`` with all problems."""
        config = await asyncio.to_thread(self._read, None)
        if self._has_other_objects(config) and (problems := await self._tried()):
            raise ConfigError(problems)
        return config

    def _change_settings(self, config: Config) -> tuple[list[str], list[str]]:
        """Keys that are active now, and keys that wait for a restart."""
        done: list[str] = []
        waiting: list[str] = []
        for change in self._changed_sections(config):
            if change.settings is not None:
                apply, _ = self._live[change.name]
                apply(change.settings)
                self._in_force[change.name] = change.settings
            done += change.done
            waiting += change.waiting
        return done, waiting

    def _changed_sections(self, config: Config) -> Iterator[_ChangedSection]:
        """Sections whose settings differ from the active ones."""
        for name, new in config.sections.items():
            old = self._active(name)
            if name.startswith("listeners.") or old == new:
                continue
            keys = [".".join(path) for path in differing(tuple(name.split(".")), old, new)]
            if name not in self._live:
                yield _ChangedSection(name, None, (), keys)
                continue
            _, fixed = self._live[name]
            wanted: Settings = _with_kept(old, new, fixed)
            late = [key for key in keys if key.split(".")[1] in fixed]
            done = [key for key in keys if key not in late]
            yield _ChangedSection(name, None if wanted == old else wanted, done, late)

    def _active(self, section: str) -> Settings:
        """The active settings of a section; some are changed through the API as lists of their own."""
        stored = self._node.access.settings.get(section)
        return self._in_force[section] if stored is None else stored.settings

    # -- objects --

    def _has_other_objects(self, config: Config) -> bool:
        return any(
            _specs(config, name) != _specs(self._node.config, name) for name in config.objects
        )

    async def _tried(self) -> list[str]:
        """Problems that a broker would report at a start with the configuration."""
        asked = {
            "data_dir": str(self._options.data_dir),
            "config_files": [str(file) for file in self._options.config_files],
            "overrides": overrides_of(self._options),
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "broker.app.check",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **self._environ},
        )
        output, _ = await process.communicate(json.dumps(asked).encode())
        if process.returncode:
            return ["the configuration could not be tried; see the log"]
        problems: list[str] = json.loads(output)
        return problems

    def _change_objects(self, config: Config) -> tuple[list[str], list[str], list[str]]:
        """Changes, failures (a sentence each), and sections that wait for a restart."""
        node = self._node
        sections = _reloaded_sections()
        before = {name: node.sections.section(name).load() for name in sections}
        waiting = self._waiting_sections(config)
        node.sections.reload(config)
        after = {name: node.sections.section(name).load() for name in sections}
        return *self._attempted(before, after), waiting

    def _attempted(
        self, before: Mapping[str, list[Spec]], after: Mapping[str, list[Spec]]
    ) -> tuple[list[str], list[str]]:
        """Change objects; what was changed, and what failed, a sentence each."""
        node = self._node
        done = list[str]()
        failed = list[str]()

        def attempt(kind: str, key: str, what: str, change: Callable[[], object]) -> None:
            text = f"{kind} {key!r} {what}"
            try:
                change()
            except SluiceError as error:
                failed.append(f"{text}: {error}")
            else:
                done.append(text)
                node.history.mark(kind, key, what)

        with node.sections.unlocked():
            for change in _changed_objects(before, after):
                service = node.object_services.get(change.kind.path)
                if service is None:  # of the first cell only
                    continue
                act: Callable[[], object]
                if change.after is None:
                    act = partial(service.delete, change.name)
                elif change.before is None:
                    act = partial(service.create, change.after)
                else:
                    act = partial(service.replace, change.name, change.after)
                attempt(service.kind, change.name, change.what, act)
        return done, failed

    def _waiting_sections(self, config: Config) -> list[str]:
        """The sections of objects that have changed and need a restart."""
        reloaded = _reloaded_sections()
        return [
            name for name in config.objects
            if name not in reloaded and _specs(config, name) != _specs(self._node.config, name)
        ]  # fmt: skip


def _record_of(planned: PlannedReload, remarks: Sequence[str]) -> AuditRecord:
    """The entry of a reload in the audit log. ``remarks`` are what failed, and what needs a restart."""
    changes = [
        change_of("setting", key, {"value": planned.before[key]}, {"value": planned.after[key]})
        for key in planned.after
    ]
    for changed in planned.objects:
        before = None if changed.before is None else changed.kind.as_spec(changed.before)
        after = None if changed.after is None else changed.kind.as_spec(changed.after)
        changes.append(change_of(changed.kind.name, changed.name, before, after))
    return AuditRecord(
        actor="broker",
        origin="files",
        operation="reload",
        detail="; ".join(remarks),
        changes=[change for change in changes if change is not None],
    )


def _listed(changes: ListenerChanges) -> ChangedListeners:
    return {
        "added": list(changes.added),
        "removed": list(changes.removed),
        "changed": list(changes.changed),
    }


def _changed_listeners(changes: ListenerChanges, *, drain: bool) -> Iterator[ChangedObject]:
    kind = kind_at("listeners")
    options = {"drain": drain}
    for id in changes.added:
        yield ChangedObject(kind, id, None, {}, options)
    for id in changes.removed:
        yield ChangedObject(kind, id, {}, None, options)
    for id in changes.changed:
        yield ChangedObject(kind, id, {}, {}, options)


def overrides_of(options: ServeOptions) -> dict[str, str]:
    """Settings of the command line by key, addresses among them."""
    addresses = {"listeners.tcp.default.bind": options.mqtt, "api.bind": options.api}
    return {
        **options.overrides,
        **{key: address for key, address in addresses.items() if address is not None},
    }


def _specs(config: Config, section: str) -> list[Spec]:
    """Objects that files fix; those of the API are active already."""
    return [
        spec
        for section_objects in config.objects.get(section, ())
        if section_objects.layer.file != config.api_file
        for spec in section_objects.objects
    ]


def _reloaded_sections() -> Mapping[str, Kind]:
    """The kinds whose objects a reload takes from files, by the path of their section, in their order: secrets first,
    since objects of any kind refer to them."""
    sections = {kind.section: kind for kind in kinds() if kind.section is not None and kind.reloads}
    return {SECRETS: sections[SECRETS], **sections}


def _changed_objects(
    before: Mapping[str, list[Spec]], after: Mapping[str, list[Spec]]
) -> Sequence[ChangedObject]:
    """The objects of sections that differ, in the order in which they change: users of others are removed first."""
    changed: list[ChangedObject] = []
    removed: list[ChangedObject] = []
    for name, kind in _reloaded_sections().items():
        old = {spec["name"]: spec for spec in before[name]}
        new = {spec["name"]: spec for spec in after[name]}
        changed += [
            ChangedObject(kind, key, old.get(key), spec)
            for key, spec in new.items()
            if spec != old.get(key)
        ]
        removed[:0] = [
            ChangedObject(kind, key, spec, None) for key, spec in old.items() if key not in new
        ]
    return [*changed, *removed]


def _with_kept(old: Settings, new: Settings, kept: Iterable[str]) -> Settings:
    """The new settings, but for some keys that keep their old values; keys are those of the section itself."""
    return new.model_copy(update={key: getattr(old, key) for key in kept})
