"""Connectors, actions and sources as they are sent and saved: what all types have in common, and the type's own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

from pydantic import Field, ValidationError, create_model

from bridges.resource.contract import ConnectorType, Positions
from bridges.resource.registry import Registry
from bridges.resource.settings.options import ActionOptions, ConnectorOptions, SourceOptions
from bridges.resource.settings.secret import has_unknown_stars
from bridges.resource.templates import why_no_template
from broker.config.model import Settings
from broker.config.names import ObjectName
from broker.config.secret_text import misplaced_references, reference_problems
from broker.config.spec_problems import spec_problems
from broker.config.units import Size
from broker.core.errors import Invalid, Problem
from broker.core.objects import Spec

_TYPE: Final = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)
# Members that are shown and not saved.
READ_ONLY: Final = (
    "cell",
    "id", "status", "status_reason", "since", "metrics", "last_error", "actions", "sources", "rules", "paused",
    "dead_letters_waiting", "attempts", "next_attempt_at",
)  # fmt: skip


class _Object(Settings):
    name: ObjectName
    type: str
    enable: bool = True
    description: str = Field(default="", max_length=2000)

    @property
    def id(self) -> str:
        """``<type>:<name>``."""
        return f"{self.type}:{self.name}"


class ConnectorSpec(_Object):
    """A connector, with the members of its type."""

    resource_opts: ConnectorOptions = ConnectorOptions()
    parameters: Any = None
    """The type's own settings."""


class ReferenceFallback(Settings):
    """Another action that takes discarded rows."""

    kind: Literal["reference"]
    type: str
    name: str


class RepublishFallback(Settings):
    """A message that is published for each discarded row; ``args`` as of the rule action ``republish``."""

    kind: Literal["republish"]
    args: dict[str, Any]


Fallback = Annotated[ReferenceFallback | RepublishFallback, Field(discriminator="kind")]


class DeadLetterOptions(Settings):
    """Causes for which discarded rows are kept, and limits."""

    causes: list[Literal["failed", "expired", "queue_full"]] = Field(
        default=["failed"],
        description="Reasons for which a discarded row becomes a dead letter; [] for none.",
    )
    max_records: int = Field(
        default=10_000,
        ge=1,
        le=10_000_000,
        description="Maximum dead letters; the oldest make room.",
    )
    max_bytes: Size = Field(
        default=64 * 1024 * 1024, ge=1024, description="Maximum size of all dead letters."
    )


class MemberSpec(_Object):
    """The members that actions and sources share."""

    kind: ClassVar[Literal["action", "source"]]
    connector: str
    parameters: Any = None

    @classmethod
    def own_model(cls, kind: ConnectorType) -> type[Settings] | None:
        """The model of ``parameters`` for a type of connectors; None where it has no such direction."""
        model: type[Settings] | None = getattr(kind, cls.kind)
        return model


class ActionSpec(MemberSpec):
    """An action: where rules hand rows to, as ``<type>:<name>``."""

    kind = "action"
    resource_opts: ActionOptions = ActionOptions()
    fallback_actions: list[Fallback] = Field(default_factory=list, max_length=16)
    dead_letters: DeadLetterOptions = DeadLetterOptions()


class SourceSpec(MemberSpec):
    """A source: what rules read with FROM "$bridges/<type>:<name>"."""

    kind = "source"
    resource_opts: SourceOptions = SourceOptions()


T = TypeVar("T", bound=MemberSpec)


def connector_models(registry: Registry) -> list[type[Settings]]:
    """The spec of a connector of each type: what all share, and the type's own members."""
    shared: dict[str, Any] = {
        name: (field.annotation, field)
        for name, field in ConnectorSpec.model_fields.items()
        if name != "parameters"
    }
    return [
        create_model(
            _title(kind, "Connector"),
            __base__=kind.connector,
            **shared | {"type": (Literal[kind.name], ...)},
        )
        for kind in map(registry.known, registry.names())
    ]


def member_models(spec: type[MemberSpec], registry: Registry) -> list[type[Settings]]:
    """The spec of an action or source of each type that has such."""
    models: list[type[Settings]] = []
    for kind in map(registry.known, registry.names()):
        if own := spec.own_model(kind):
            members: dict[str, Any] = {"type": (Literal[kind.name], ...), "parameters": (own, ...)}
            models.append(
                create_model(_title(kind, spec.kind.capitalize()), __base__=spec, **members)
            )
    return models


def _title(kind: ConnectorType, suffix: str) -> str:
    return "".join(part.capitalize() for part in kind.name.split("_")) + suffix


def checked_connector(spec: Spec, registry: Registry) -> ConnectorSpec:
    """A connector as it was understood. Raises ``Invalid`` with every problem."""
    members = {name: value for name, value in spec.items() if name not in READ_ONLY}
    kind = _kind("connector", members, registry)
    common = {
        name: members[name]
        for name in ConnectorSpec.model_fields
        if name in members and name != "parameters"
    }
    own = {name: value for name, value in members.items() if name not in common}
    problems: list[Problem] = []
    parameters = _checked(kind.connector, own, "", problems)
    checked = _checked(ConnectorSpec, common, "", problems)
    _refuse("connector", problems, parameters, "")
    connector_spec: ConnectorSpec = checked.model_copy(update={"parameters": parameters})
    return connector_spec


def checked_member(
    model: type[T],
    spec: Spec,
    registry: Registry,
    connectors: Mapping[str, ConnectorSpec] | None = None,
) -> T:
    """An action or source as it was understood; its connector must be one of ``connectors``, where given.

    Raises:
        Invalid: with every problem.
    """
    members = {name: value for name, value in spec.items() if name not in READ_ONLY}
    kind_name = model.kind
    kind = _kind(kind_name, members, registry)
    own = model.own_model(kind)
    if own is None:
        text = f"connectors of type {kind.name!r} have no {kind_name}s"
        raise Invalid(f"the {kind_name} cannot be saved", [Problem(text, "/type")])
    problems: list[Problem] = []
    parameters = _checked(own, members.pop("parameters", {}), "/parameters", problems)
    problems += _stray_placeholders(spec.get("parameters"), "/parameters")
    checked = _checked(model, members, "", problems)
    _refuse(kind_name, problems, parameters, "/parameters")
    member: T = checked.model_copy(update={"parameters": parameters})
    if isinstance(member, ActionSpec) and kind.positions is not None:
        _check_positions(kind.positions(parameters), member.resource_opts)
    if connectors is not None:
        _check_connector(member, connectors)
    return member


def _check_positions(wanted: Positions | None, options: ActionOptions) -> None:
    problems = []
    if wanted is not None and not options.is_on_disk:
        text = f"parameters.{wanted.asked_by} needs buffer_mode = disk"
        problems.append(Problem(text, "/resource_opts/buffer_mode"))
    if wanted is not None and wanted.in_order and options.dispatch_strategy == "random":
        text = (
            f"parameters.{wanted.asked_by} keeps one order, and dispatch_strategy random keeps none"
        )
        problems.append(Problem(text, "/resource_opts/dispatch_strategy"))
    _refuse("action", problems)


def _check_connector(spec: MemberSpec, connectors: Mapping[str, ConnectorSpec]) -> None:
    """The connector that an action or source names must exist and be of its type."""
    kind_name = spec.kind
    connector = connectors.get(spec.connector)
    if connector is None:
        names = ", ".join(map(repr, connectors)) or "none yet"
        text = f"there is no connector {spec.connector!r}"
        _refuse(kind_name, [Problem(text, "/connector", suggestion=f"there are {names}")])
    elif connector.type != spec.type:
        text = f"connector {spec.connector!r} is of type {connector.type!r}, and the {kind_name} of type {spec.type!r}"
        _refuse(kind_name, [Problem(text, "/connector")])


def _kind(kind_name: str, spec: Mapping[str, Any], registry: Registry) -> ConnectorType:
    type = spec.get("type")
    if not isinstance(type, str) or not _TYPE.fullmatch(type):
        hint = f"there are {', '.join(registry.names())}"
        raise Invalid(
            f"the {kind_name} cannot be saved",
            [Problem("type: expected a string", "/type", suggestion=hint)],
        )
    return registry.get(type)


def _checked(model: type[Any], value: Any, pointer: str, problems: list[Problem]) -> Any:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        problems += spec_problems(error, model, ("reference", "republish"), pointer)
        return None


def _stray_placeholders(value: Any, pointer: str) -> Iterator[Problem]:
    if isinstance(value, str):
        if problem := why_no_template(value):
            yield Problem(problem, pointer)
        return
    members: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        members = value.items()
    elif isinstance(value, list):
        members = enumerate(value)
    for name, member in members:
        yield from _stray_placeholders(member, f"{pointer}/{name}")


def _refuse(
    kind_name: str, problems: list[Problem], parameters: Any = None, pointer: str = ""
) -> None:
    """Raise ``Invalid`` where there is a problem, of the secrets in ``parameters`` among others."""
    if not problems and has_unknown_stars(parameters):
        text = "the stars stand for a secret that is not stored; send the secret itself"
        problems.append(Problem(text, pointer))
    problems += reference_problems(parameters, pointer)
    problems += misplaced_references(parameters, pointer)
    if problems:
        raise Invalid(f"the {kind_name} cannot be saved", problems)


def shown(spec: ConnectorSpec | ActionSpec | SourceSpec) -> Spec:
    """A spec for display: defaults filled in, secrets as stars."""
    members: Spec = spec.model_dump(mode="json", exclude={"parameters"})
    for value in members.values():
        if isinstance(value, dict):
            value.update({key: "infinity" for key, inner in value.items() if inner == float("inf")})
    own = {} if spec.parameters is None else spec.parameters.model_dump(mode="json")
    if isinstance(spec, ConnectorSpec):
        return {**members, **own}
    return {**members, "parameters": own}
