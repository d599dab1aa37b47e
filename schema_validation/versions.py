"""A schema with its versions: how the next one is made, kept, and taken away. Nothing here touches the registry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from broker.core.errors import Invalid, NotFound, Problem
from broker.core.objects import Spec
from schema_validation.compatibility.verdict import Mode, Verdict
from schema_validation.external_http.spec import TYPE as EXTERNAL_HTTP
from schema_validation.external_http.spec import parse_parameters, with_stored_secrets
from schema_validation.fingerprints import Source, fingerprints_of, identity_of
from schema_validation.references import Reference, Resolve, read_references, standing_alone
from schema_validation.schemas import check_body, check_members, compile_source, source_of
from schema_validation.serdes.base import SchemaSerde
from schema_validation.serdes.external_http import ExternalHttpSerde


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """One version of a schema, compiled. Numbers count from 1 and are never used again.

    ``flat`` is the source with its references inlined; ``id`` is unique in the registry and the same for the same
    ``identity``, 0 before it is saved. A deleted version codes nothing by name, and is still found by its id.
    """

    number: int
    source: Source
    flat: Source
    references: tuple[Reference, ...]
    description: str
    identity: str
    serde: SchemaSerde
    fingerprints: Mapping[str, str]
    id: int = 0
    created_ms: int = 0
    is_deleted: bool = False

    def written(self, *, with_secrets: bool = False) -> Spec:
        """The member written by users: ``source``, ``files``, or ``parameters``."""
        if isinstance(self.serde, ExternalHttpSerde):
            parameters = self.serde.parameters
            return {"parameters": parameters.saved() if with_secrets else parameters.shown()}
        return {"source" if isinstance(self.source, str) else "files": self.source}

    def as_spec(self, *, with_secrets: bool = True) -> Spec:
        """The version as it is saved."""
        spec: Spec = {
            "version": self.number,
            "id": self.id,
            **self.written(with_secrets=with_secrets),
            "description": self.description,
            "created_at": self.created_ms,
        }
        if self.references:
            spec["references"] = [reference.as_spec() for reference in self.references]
        return {**spec, "deleted": True} if self.is_deleted else spec


# Members of a version that hold what payloads are made of.
_SOURCES = ("source", "files", "parameters")


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema by name with all its versions; ``in_use`` is the number of the one that codes payloads.

    ``compatibility`` is its own mode, None where the registry's counts.
    """

    name: str
    kind: str
    versions: tuple[SchemaVersion, ...]
    in_use: int
    compatibility: Mode | None = None
    tags: tuple[str, ...] = ()
    metadata: tuple[tuple[str, str], ...] = ()

    @property
    def live(self) -> tuple[SchemaVersion, ...]:
        """The versions that are not deleted."""
        return tuple(version for version in self.versions if not version.is_deleted)

    @property
    def is_deleted(self) -> bool:
        """All versions are deleted; the name is free, and the numbers continue."""
        return self.versions[-1].is_deleted and not self.live

    @property
    def current(self) -> SchemaVersion:
        """The version in use."""
        return self.version(self.in_use)

    @property
    def latest(self) -> SchemaVersion:
        """The last version that is not deleted."""
        return self.live[-1]

    def version(self, number: int, *, deleted: bool = False) -> SchemaVersion:
        """A version by its number. Raises ``NotFound``; a deleted one is found when asked for."""
        for version in self.versions:
            if version.number == number and (deleted or not version.is_deleted):
                return version
        there_are = ", ".join(str(version.number) for version in self.live)
        raise NotFound(
            f"version of schema {self.name!r}", str(number), f"there are {there_are or 'none'}"
        )

    def as_spec(self, *, with_secrets: bool = True) -> Spec:
        """The schema as it is saved: its own members, those of the version in use, and every version."""
        shown = self.current if not self.is_deleted else self.versions[-1]
        return {
            "name": self.name,
            "type": self.kind,
            **shown.as_spec(with_secrets=with_secrets),
            "version": self.in_use,
            **self._own_members(),
            "versions": [version.as_spec(with_secrets=with_secrets) for version in self.versions],
        }

    def _own_members(self) -> Spec:
        members: Spec = {}
        if self.compatibility is not None:
            members["compatibility"] = self.compatibility.value
        if self.tags:
            members["tags"] = list(self.tags)
        if self.metadata:
            members["metadata"] = dict(self.metadata)
        return members


def recorded_versions(saved: Mapping[str, Any], then: Mapping[str, Any] | None) -> Spec | None:
    """The versions of a saved schema for the audit log, with their sources those that it no longer has ``then``; and
    the members that a request keeps where it leaves them out. None where all versions are deleted."""
    if saved.get("versions") and all(version.get("deleted") for version in saved["versions"]):
        return None
    kept = None if then is None else {version["version"] for version in then.get("versions", ())}
    versions: dict[str, Any] = {}
    for version in saved.get("versions", ()):
        recorded = {
            name: value
            for name, value in version.items()
            if name not in _SOURCES and name != "version"
        }
        if kept is not None and version["version"] not in kept:
            recorded |= {name: version[name] for name in _SOURCES if name in version}
            if "parameters" in version:
                recorded["parameters"] = parse_parameters(version["parameters"], "").shown()
        versions[str(version["version"])] = recorded
    return {
        "versions": versions,
        **{member: saved.get(member) for member in ("compatibility", "tags", "metadata")},
    }


class Incompatible(Invalid):
    """A new version that the schema's compatibility mode does not allow; ``verdict`` says why."""

    code = "incompatible"

    def __init__(self, name: str, verdict: Verdict) -> None:
        self.verdict = verdict
        problems = [
            Problem(
                f"{finding.reader} cannot read data of {finding.writer}: {finding.reason}",
                "/source",
            )
            for finding in verdict.problems[:50]
        ]
        headline = (
            f"schema {name!r} has compatibility {verdict.mode.value}, which this change breaks"
        )
        super().__init__(headline, problems)


def next_schema(
    base: Schema | None, spec: Mapping[str, Any], resolve: Resolve, mode: Mode, now_ms: int
) -> Schema:
    """A schema with the request body as its newest version, in use at once; ``mode`` is the registry's.

    The same source again makes no version: the one there is is used. Blocks for as long as compiling and comparing
    take; ``resolve`` must not depend on anything that may change in that time.

    Raises:
        Invalid: with every problem; also when the type is another one.
        Incompatible: the mode forbids the change.
    """
    check_members(spec)
    if base is None:
        return _with_members(
            Schema(spec["name"], spec["type"], (_made(spec, 1, resolve, now_ms),), 1), spec
        )
    if spec["type"] != base.kind:
        text = f"the type of {base.name!r} is {base.kind}"
        if base.is_deleted:
            text = f"{base.name!r} was of type {base.kind}; delete it with ?permanent=true to use the name"
        raise Invalid("a schema keeps its type", [Problem(text, "/type")])
    changed = _with_members(base, spec)
    spec = _with_secrets_of(base, spec)
    same = _known_version(base, spec, resolve)
    if same is not None:
        described = replace(same, description=spec.get("description", same.description))
        if base.kind == EXTERNAL_HTTP:  # what is not shown may differ
            described = replace(described, serde=_made(spec, same.number, resolve, now_ms).serde)
        versions = tuple(
            described if version.number == same.number else version for version in base.versions
        )
        return replace(changed, versions=versions, in_use=same.number)
    version = _made(spec, base.versions[-1].number + 1, resolve, now_ms)
    if base.live:
        verdict = verdict_on(changed, version, mode)
        if not verdict.is_compatible:
            raise Incompatible(base.name, verdict)
    return replace(changed, versions=(*base.versions, version), in_use=version.number)


def verdict_on(schema: Schema, candidate: SchemaVersion, mode: Mode) -> Verdict:
    """Verdict on a candidate after the live versions, under the schema's own mode or else the registry's."""
    from schema_validation.compatibility.check import compare

    mode = schema.compatibility or mode
    held_to = schema.live if mode.is_transitive else schema.live[-1:]
    label = f"version {candidate.number}" if candidate.number else "the new version"
    return compare(
        mode,
        schema.kind,
        label,
        candidate.flat,
        {version.number: version.flat for version in held_to},
    )


def candidate_of(
    spec: Mapping[str, Any], resolve: Resolve, number: int = 0, pointer: str = ""
) -> SchemaVersion:
    """The version that a spec would become. Raises ``Invalid``."""
    check_body(spec, pointer)
    return _made(spec, number, resolve, 0, pointer)


def without_versions(schema: Schema, numbers: Sequence[int]) -> Schema:
    """The schema with versions deleted, to be found by their ids only; another is used when the one in use goes."""
    versions = tuple(
        replace(version, is_deleted=True) if version.number in numbers else version
        for version in schema.versions
    )
    changed = replace(schema, versions=versions)
    if changed.live and schema.in_use in numbers:
        return replace(changed, in_use=changed.latest.number)
    return changed


def restored(spec: Mapping[str, Any], resolve: Resolve) -> Schema:
    """A schema as the configuration holds it: with its versions, or with one source written by hand.

    Raises:
        Invalid: with every problem.
    """
    versions = spec.get("versions")
    if not isinstance(versions, list) or not _hold_sources(versions):
        return next_schema(None, spec, resolve, Mode.NONE, 0)
    check_members(spec)
    restored_versions = tuple(
        _restored(spec, version, index, resolve) for index, version in enumerate(versions)
    )
    schema = _with_members(
        Schema(
            spec["name"],
            spec["type"],
            restored_versions,
            spec.get("version", restored_versions[-1].number),
        ),
        spec,
    )
    if schema.in_use not in [version.number for version in restored_versions]:
        raise Invalid(
            "the schema cannot be used",
            [Problem(f"there is no version {schema.in_use!r}", "/version")],
        )
    if schema.live and schema.in_use not in [version.number for version in schema.live]:
        return replace(schema, in_use=schema.latest.number)
    return schema


def _with_secrets_of(base: Schema, spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """The request body with the secrets of the version in use in place of stars."""
    serde = base.versions[-1].serde if base.is_deleted else base.current.serde
    if not isinstance(serde, ExternalHttpSerde) or "parameters" not in spec:
        return spec
    return {**spec, "parameters": with_stored_secrets(spec["parameters"], serde.parameters)}


def _hold_sources(versions: Sequence[Any]) -> bool:
    """Versions as they are saved; as they are shown they have no sources."""
    with_sources = [
        isinstance(item, Mapping) and any(name in item for name in _SOURCES) for item in versions
    ]
    return bool(with_sources) and all(with_sources)


def _restored(
    spec: Mapping[str, Any], version: Mapping[str, Any], index: int, resolve: Resolve
) -> SchemaVersion:
    pointer = f"/versions/{index}"
    number = version.get("version")
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise Invalid(
            "the schema cannot be used", [Problem("expected a version number from 1", pointer)]
        )
    whole = {**version, "name": spec["name"], "type": spec["type"]}
    check_body(whole, pointer)
    restored_version = _made(
        whole, number, resolve, _whole_number(version.get("created_at")), pointer
    )
    return replace(
        restored_version,
        id=_whole_number(version.get("id")),
        is_deleted=version.get("deleted") is True,
    )


def _whole_number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _made(
    spec: Mapping[str, Any], number: int, resolve: Resolve, created_ms: int, pointer: str = ""
) -> SchemaVersion:
    referred = read_references(spec, resolve, pointer)
    kind = spec["type"]
    source = source_of(spec)
    try:
        flat = standing_alone(kind, source, referred)
    except ValueError as error:
        raise Invalid(
            f"not a usable {kind} schema", [Problem(str(error), f"{pointer}/references")]
        ) from None
    name = spec.get("name")
    label = f"schema '{name}' version {number}" if name and number else ""
    if kind == EXTERNAL_HTTP:
        serde: SchemaSerde = ExternalHttpSerde(
            name or "", parse_parameters(spec["parameters"], pointer), label
        )
    else:
        serde = compile_source(kind, flat, label, pointer)
    references = tuple(item.reference for item in referred)
    named = [(reference.name, reference.schema, reference.version) for reference in references]
    identity = identity_of(kind, source, named)
    description = spec.get("description", "")
    known_as = fingerprints_of(kind, flat, identity)
    return SchemaVersion(
        number, source, flat, references, description, identity, serde, known_as, 0, created_ms
    )


def _known_version(base: Schema, spec: Mapping[str, Any], resolve: Resolve) -> SchemaVersion | None:
    """The live version that has this very source already: the one in use first, then the latest."""
    try:
        named = [
            (item.reference.name, item.reference.schema, item.reference.version)
            for item in read_references(spec, resolve)
        ]
        identity = identity_of(base.kind, source_of(spec), named)
    except ValueError:  # not even JSON; compiling says it better
        return None
    same = [version for version in base.live if version.identity == identity]
    return next(
        (version for version in same if version.number == base.in_use), same[-1] if same else None
    )


def _with_members(schema: Schema, spec: Mapping[str, Any]) -> Schema:
    """The schema with the other members of the request body; absent ones stay."""
    mode = spec.get("compatibility")
    return replace(
        schema,
        compatibility=Mode(mode) if mode is not None else schema.compatibility,
        tags=tuple(spec["tags"]) if "tags" in spec else schema.tags,
        metadata=tuple(spec["metadata"].items()) if "metadata" in spec else schema.metadata,
    )
