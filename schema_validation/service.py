"""The verbs a person has for schemas."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NotRequired, cast

from typing_extensions import TypedDict

from broker.core.contributor import Change, Contributor, Uses
from broker.core.errors import AlreadyExists, InUse, Invalid, Problem
from broker.core.feature import Services
from broker.core.kinds import counted
from broker.core.objects import Listed, ObjectSection, Reference, Spec, is_deleted_too
from broker.core.ordered import OrderedObjects
from broker.core.schema import SchemaEffect
from broker.core.times import MILLISECONDS, rfc3339_or_none
from schema_validation.compatibility.verdict import MODES, ChangeView, FieldView, Mode
from schema_validation.external_http.spec import TYPE as EXTERNAL_HTTP
from schema_validation.modes import Modes
from schema_validation.recent import Recent
from schema_validation.references import Referred, SchemaReference
from schema_validation.registry import Ids, Registry
from schema_validation.serdes.base import SchemaFacts, SourceError
from schema_validation.serdes.external_http import ExternalHttpSerde
from schema_validation.trials import SchemaTrials
from schema_validation.versions import (
    Schema,
    SchemaVersion,
    next_schema,
    restored,
    without_versions,
)


class SchemaUsers(TypedDict):
    """The objects that name a schema: validations, transformations and rules, and versions of other schemas."""

    users: list[str]
    schemas: list[str]


class SchemaDifference(TypedDict):
    """Changes between two versions of a schema."""

    before: int
    after: int
    changes: list[ChangeView]


class SchemaVersionView(TypedDict):
    """A version of a schema, without its source."""

    version: int
    id: int
    description: str
    fingerprints: dict[str, str]
    created_at: str | None
    in_use: bool
    references: list[SchemaReference]
    deleted: NotRequired[Literal[True]]


class SchemaFile(TypedDict):
    """A file of a Protobuf schema; the ``root`` is the schema."""

    path: str
    contents: str
    root: NotRequired[bool]


class SchemaVersionSource(SchemaVersionView):
    """A version of a schema with its ``source``, its ``files``, or its ``parameters``, and its first 5,000 fields."""

    name: str
    type: str
    source: NotRequired[str]
    files: NotRequired[list[SchemaFile]]
    parameters: NotRequired[dict[str, Any]]
    fields: list[FieldView]


class NodeStatus(TypedDict):
    """Status of a schema's server, as a node sees it."""

    node: str
    status: str


class SchemaReadOnly(TypedDict):
    """The version in use with its source, or its files, what is known of it, and all versions.

    Of a schema that a server codes payloads for: how the calls go, and the last failure.
    """

    version: int
    id: int
    created_at: str | None
    fingerprints: dict[str, str]
    compatibility: str
    latest: int
    facts: SchemaFacts
    source: NotRequired[str]
    files: NotRequired[list[SchemaFile]]
    references: NotRequired[list[SchemaReference]]
    versions: list[SchemaVersionView]
    status: NotRequired[str]
    calls: NotRequired[int]
    failed: NotRequired[int]
    waiting: NotRequired[int]
    last_error: NotRequired[str | None]
    node_status: NotRequired[list[NodeStatus]]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A schema made off the event loop, valid as long as ``base`` is what is under its name."""

    base: Schema | None
    schema: Schema
    mode: Mode


class SchemaService(Contributor, SchemaTrials):
    """A ``broker.core.objects.ObjectService`` for schemas, and calls that try one without storing it."""

    kind = "schema"

    def __init__(
        self,
        services: Services,
        section: ObjectSection,
        modes: Modes,
        recent: Recent,
    ) -> None:
        self._objects: OrderedObjects[Schema] = OrderedObjects(self.kind, section, Schema.as_spec)
        super().__init__(services, Registry(self._objects.find, self._objects.names), recent)
        self.modes = modes
        self.ids = Ids()

    def load(self, specs: Sequence[Spec]) -> list[str]:
        """Take the schemas of the configuration, in whatever order they refer to each other.

        Gives a sentence for each that cannot be used.
        """
        problems = self.modes.load()
        waiting = {spec["name"]: spec for spec in specs}
        under_way: list[str] = []

        def resolve(local_name: str, name: str, number: int | None) -> Referred:
            if name in under_way and self.registry.find(name) is None:
                raise LookupError(
                    f"schemas refer to each other in a circle: {' → '.join((*under_way, name))}"
                )
            take(name)
            return self.registry.resolve_kept(local_name, name, number)

        def take(name: str) -> None:
            spec = waiting.pop(name, None)
            if spec is None:
                return
            under_way.append(name)
            try:
                schema = self.ids.given(restored(spec, resolve))
                deleted = self._objects.find(schema.name)
                if deleted is not None and not deleted.is_deleted:
                    raise AlreadyExists(self.kind, schema.name)
                self._objects.adopt(schema.name, schema)
                self.ids.change(deleted, schema)
            except (Invalid, ValueError) as error:
                problems.append(self._objects.refusal(spec, error))
            finally:
                under_way.pop()

        for name in list(waiting):
            take(name)
        return problems

    def list(self) -> Listed:
        return Listed([schema.name for schema in self._objects if not schema.is_deleted], self.get)

    def get(self, name: str) -> Spec:
        return self._shown(self.registry.schema(name))

    def prepare(self, spec: Spec, name: str | None = None) -> Callable[[], Prepared]:
        """Return the call that compiles and compares a schema; it blocks, so make it off the event loop.

        That raises ``Invalid`` as ``create`` and ``replace`` would, which take its result and do not wait.
        """
        if not isinstance(spec, Mapping):
            raise Invalid("the schema cannot be saved", [Problem("expected an object")])
        named = {**spec, "name": spec.get("name", name)}
        if name is not None and named["name"] != name:
            raise Invalid("a schema keeps its name", [Problem(f"expected {name!r}", "/name")])
        own_name = named["name"] if isinstance(named["name"], str) else None
        base = self._objects.find(own_name) if own_name is not None else None
        mode = self.mode_of(own_name)
        now_ms = self._services.node.clock.now_ns() // 1_000_000
        resolve = self.registry.resolve
        return lambda: Prepared(base, next_schema(base, named, resolve, mode, now_ms), mode)

    def create(self, spec: Spec, prepared: Prepared | None = None) -> Spec:
        """Make a schema. After one of that name was deleted, the numbers of its versions continue."""
        schema = self._made(spec, None, prepared)
        if self.registry.find(schema.name) is not None:
            raise AlreadyExists(self.kind, schema.name)
        return self._put(schema)

    def replace(
        self, name: str, spec: Spec, *, force: bool = False, prepared: Prepared | None = None
    ) -> Spec:
        """Add a version and use it. A source that is a version already makes none; that version is used.

        Raises:
            Incompatible: the compatibility mode forbids the change.
            InUse: it would break who uses the schema, and ``force`` was not given.
        """
        self.registry.schema(name)
        self._objects.check_changeable(name)
        schema = self._made(spec, name, prepared)
        if not force:
            self._refuse_to_break(schema)
        return self._put(schema)

    def use(self, name: str, version: int, *, force: bool = False) -> Spec:
        """Code payloads by another version of the schema, as to take a change back."""
        schema = self.registry.schema(name)
        self._objects.check_changeable(name)
        changed = replace(schema, in_use=schema.version(version).number)
        if not force:
            self._refuse_to_break(changed)
        return self._put(changed)

    def delete(self, name: str, *, force: bool = False, permanent: bool = False) -> None:
        """Delete a schema. Its versions are still found by their ids, unless it is deleted permanently.

        Raises:
            InUse: other objects name it, and ``force`` was not given; other schemas that refer to it keep it from being
                deleted permanently whatever was given.
        """
        schema = self._objects.find(name)
        if schema is None or (schema.is_deleted and not permanent):
            schema = self.registry.schema(name)
        self._objects.check_changeable(name)
        users = self.users_of(name) if not schema.is_deleted else []
        referring = self._referring(name)
        if (users and not force) or (referring and (permanent or not force)):
            raise InUse(self.kind, name, [*users, *referring])
        if permanent:
            self._remove(name)
            self.modes.put(name, None)
        else:
            self._put(without_versions(schema, [version.number for version in schema.versions]))

    def effects_of_deleting(self, name: str, number: int) -> Sequence[SchemaEffect]:
        """Objects that the deletion of a version would affect: users of the schema, if it is the version in use, and
        the schemas that refer to it."""
        schema = self._objects.get(name)
        schema.version(number, deleted=True)
        effects = [
            SchemaEffect(
                Reference(self.kind, user.name), False, f"version {version.number} refers to it"
            )
            for user, version in self._referrers(name, number)
        ]
        left = without_versions(schema, [number])
        if number == schema.in_use:
            effects += [
                SchemaEffect(user, left.is_deleted, "uses it") for user in self.users_of(name)
            ]
            effects += [] if left.is_deleted else self.impact_of(left)
        return effects

    def delete_version(
        self, name: str, number: int, *, force: bool = False, permanent: bool = False
    ) -> None:
        """Delete one version; the last that there is deletes the schema. ``permanent`` as in ``delete``.

        Raises:
            InUse: it is the version in use of a schema that others name, or another schema refers to it.
        """
        schema = self._objects.get(name)
        version = schema.version(number, deleted=permanent)
        self._objects.check_changeable(name)
        users = self.users_of(name) if number == schema.in_use and not version.is_deleted else []
        referring = self._referring(name, number)
        if (users and not force) or (referring and (permanent or not force)):
            raise InUse(f"version {number} of schema", name, [*users, *referring])
        left = without_versions(schema, [number])
        if permanent and len(schema.versions) == 1:
            self._remove(name)
        elif permanent:
            self._put(
                replace(
                    left, versions=tuple(kept for kept in left.versions if kept.number != number)
                )
            )
        else:
            self._put(left)

    def restore(self, name: str, members: Mapping[str, Any]) -> None:
        """Give a schema members that it had before, as ``recorded_versions`` gives them: versions that are deleted come
        back, further ones stay.

        Raises:
            Invalid: a version can no longer be compiled.
        """
        schema = self._objects.get(name)
        self._objects.check_changeable(name)
        saved = schema.as_spec()
        versions = {version["version"]: dict(version) for version in saved["versions"]}
        for number, version in members["versions"].items():
            kept = versions.setdefault(int(number), {"version": int(number), **version})
            if "deleted" not in version:
                kept.pop("deleted", None)
        others = {
            member: value
            for member, value in members.items()
            if member != "versions" and value is not None
        }
        own = {member: value for member, value in saved.items() if member not in members}
        restored_spec = {
            **own,
            **others,
            "versions": [versions[number] for number in sorted(versions)],
        }
        if restored_spec != saved:
            self._put(restored(restored_spec, self.registry.resolve_kept))

    def versions(self, name: str) -> Sequence[SchemaVersionView]:
        """The versions of a schema, oldest first, without their sources."""
        versions: Sequence[SchemaVersionView] = self.get(name)["versions"]
        return versions

    def version(self, name: str, number: str) -> SchemaVersionSource:
        """One version with its source; ``latest`` and ``current`` are the newest and the one in use."""
        from schema_validation.diff import fields_of

        schema = self.registry.schema(name)
        schema_version = _version_of(schema, number)
        shown = {
            "name": name,
            "type": schema.kind,
            **_shown_version(schema, schema_version),
            **schema_version.written(),
        }
        shown["fields"] = fields_of(schema.kind, schema_version.flat)
        return cast(SchemaVersionSource, shown)

    def difference(self, name: str, before: str, after: str) -> SchemaDifference:
        """Changes from one version to another."""
        from schema_validation.diff import difference

        schema = self.registry.schema(name)
        old = _version_of(schema, before)
        new = _version_of(schema, after)
        changes = difference(schema.kind, old.flat, new.flat)
        return {
            "before": old.number,
            "after": new.number,
            "changes": [change.view() for change in changes],
        }

    def bundle_files(self, archive: bytes, root: str) -> Sequence[dict[str, Any]]:
        """The files of a gzipped tar, as ``files`` of a protobuf schema; ``root`` is a name without a folder.

        Raises:
            Invalid: says why the archive cannot be used.
        """
        from schema_validation.serdes.proto_archive import files_of_archive

        try:
            return files_of_archive(archive, root)
        except SourceError as error:
            raise Invalid(
                "the bundle cannot be used", [Problem(error.message, "/bundle")]
            ) from None

    def bundle_with_root(self, name: str, root: str) -> Sequence[dict[str, Any]]:
        """The files of a schema's version in use, with another root. Raises ``Invalid`` where it has none."""
        source = self.registry.schema(name).current.source
        files = source if not isinstance(source, str) else []
        paths = [item["path"] for item in files if item["path"].rpartition("/")[2] == root]
        if len(paths) != 1:
            problem = Problem(
                f"the schema has {len(paths)} files {root!r}; expected one", "/root_proto_file"
            )
            raise Invalid("the bundle cannot be used", [problem])
        return [{**item, "root": item["path"] == paths[0]} for item in files]

    def users(self, name: str) -> SchemaUsers:
        """Users of the schema, and other schemas that refer to it."""
        self.registry.schema(name)
        return {
            "users": [str(user) for user in self.users_of(name)],
            "schemas": list(self._referring(name)),
        }

    def users_of(self, name: str) -> Sequence[Reference]:
        """Validations, transformations, rules, actions and sources that name a schema."""
        users = self._services.contributors.users_of(self.kind, name)
        return [user for user in users if user.kind != self.kind]

    def consequences(self, change: Change) -> Iterator[str]:
        """Effect of deleting a schema on its versions."""
        if change.target.kind == self.kind and change.before is not None and change.after is None:
            versions = counted(len(self._objects.get(change.target.name).live), "version")
            permanent = change.options.get("permanent", False)
            yield f"{versions}: {'deleted permanently' if permanent else 'still found by identifier'}."

    def uses(self) -> Uses:
        """The schemas that versions of others refer to."""
        for schema in self._objects:
            if not schema.is_deleted:
                used = {item.schema for version in schema.versions for item in version.references}
                yield from (
                    (Reference(self.kind, schema.name), Reference(self.kind, name)) for name in used
                )

    def mode_of(self, name: str | None) -> Mode:
        return (self.own_mode_of(name) if name is not None else None) or self.modes.overall

    def own_mode_of(self, name: str) -> Mode | None:
        """Mode in the schema's spec, or set for it at runtime."""
        schema = self.registry.find(name)
        return (schema.compatibility if schema is not None else None) or self.modes.of(name)

    def forget_mode(self, name: str | None) -> None:
        """Let the registry's mode count for a schema, or without a name the setting for the registry."""
        schema = self.registry.find(name) if name is not None else None
        if schema is not None and schema.compatibility is not None:
            self._objects.check_changeable(schema.name)
            self._put(replace(schema, compatibility=None))
        self.modes.put(name, None)

    def all_schemas(self) -> Sequence[Schema]:
        """Every schema that has a string, those included whose versions are all deleted."""
        return tuple(schema for schema in self._objects if schema.kind != EXTERNAL_HTTP)

    def set_mode(self, name: str | None, mode: str) -> Mode:
        """Set the compatibility mode of a schema, or without a name the registry's. Raises ``Invalid``."""
        if mode not in MODES:
            raise Invalid(
                "the compatibility cannot be set",
                [Problem(f"it is one of {', '.join(MODES)}", "/compatibility")],
            )
        schema = self.registry.find(name) if name is not None else None
        if schema is not None:
            self._objects.check_changeable(schema.name)
            self._put(replace(schema, compatibility=Mode(mode)))
        else:
            self.modes.put(name, Mode(mode))
        return Mode(mode)

    def _made(self, spec: Spec, name: str | None, prepared: Prepared | None) -> Schema:
        """The prepared schema, compiled again if something has changed since."""
        current = self.prepare(spec, name)
        if prepared is not None:
            base = self._objects.find(prepared.schema.name)
            if base is prepared.base and prepared.mode is self.mode_of(prepared.schema.name):
                return prepared.schema
        return current().schema

    def _refuse_to_break(self, schema: Schema) -> None:
        broken = [item for item in self.impact_of(schema) if item.breaks]
        if broken:
            raise InUse(
                self.kind,
                schema.name,
                [f"{item.user}, which it would break ({item.why})" for item in broken],
            )

    def _referring(self, name: str, number: int | None = None) -> Sequence[str]:
        """The versions of other schemas that refer to a schema, as texts."""
        referrers = self._referrers(name, number)
        return [f"schema '{schema.name}' version {version.number}" for schema, version in referrers]

    def _referrers(self, name: str, number: int | None) -> Iterator[tuple[Schema, SchemaVersion]]:
        return (
            (schema, version)
            for schema in self._objects
            if schema.name != name and not is_deleted_too(Reference(self.kind, schema.name))
            for version in schema.versions
            if version.references
            and any(
                item.schema == name and number in (None, item.version)
                for item in version.references
            )
        )

    def _put(self, schema: Schema) -> Spec:
        saved = self.ids.given(schema)
        before = self._objects.find(schema.name)
        self._objects.put(saved.name, saved)
        self._changed(before, saved)
        return {} if saved.is_deleted else self._shown(saved)

    def _remove(self, name: str) -> None:
        self._changed(self._objects.remove(name), None)

    def _changed(self, before: Schema | None, after: Schema | None) -> None:
        self.ids.change(before, after)
        self._services.messaging.plans.invalidate()

    def _shown(self, schema: Schema) -> Spec:
        current = schema.current
        return {
            **schema.as_spec(with_secrets=False),
            "created_at": rfc3339_or_none(current.created_ms, MILLISECONDS),
            "fingerprints": dict(current.fingerprints),
            "compatibility": self.mode_of(schema.name).value,
            "latest": schema.latest.number,
            "facts": current.serde.facts(),
            "versions": [_shown_version(schema, version) for version in schema.versions],
            **self._status(schema),
        }

    def _status(self, schema: Schema) -> Spec:
        """Status of the calls to the server of a schema, if it has one."""
        serde = schema.current.serde
        if not isinstance(serde, ExternalHttpSerde):
            return {}
        status = serde.status()
        return {
            **status,
            "node_status": [{"node": self._services.node.name, "status": status["status"]}],
        }


def _version_of(schema: Schema, number: str) -> SchemaVersion:
    """A version by its number, ``latest`` or ``current``. Raises ``NotFound``."""
    words = {"latest": schema.latest, "current": schema.current}
    return words.get(number) or schema.version(
        int(number) if number.isascii() and number.isdecimal() else 0
    )


def _shown_version(schema: Schema, version: SchemaVersion) -> SchemaVersionView:
    shown: SchemaVersionView = {
        "version": version.number,
        "id": version.id,
        "description": version.description,
        "fingerprints": dict(version.fingerprints),
        "created_at": rfc3339_or_none(version.created_ms, MILLISECONDS),
        "in_use": version.number == schema.in_use,
        "references": [reference.as_spec() for reference in version.references],
    }
    return {**shown, "deleted": True} if version.is_deleted else shown
