"""The filters of lists as query parameters: of any kind, of validations and transformations, and of rules, named as
EMQX names them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from time import perf_counter
from typing import Annotated, Any, ClassVar, Final, Literal

from fastapi import Query
from pydantic import BeforeValidator, ConfigDict

from broker.core.objects import Listed, Spec
from broker.core.topic import levels_match

# Seconds that a search may hold the event loop before it yields.
STEP_S: Final = 0.01
Texts = Annotated[
    list[str] | None, BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
]


def state_of(shown: Mapping[str, Any]) -> str | None:
    """The state of an object by any of the names that kinds have for it; None where its kind has none."""
    if shown.get("enable") is False:
        return "disabled"
    state = shown.get("state", shown.get("status"))
    return None if state is None else str(state)


@dataclass(frozen=True, slots=True)
class ListFilter:
    """The filters of every kind as parameters of an operation; all that are given must hold."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    like_name: Annotated[str | None, Query(description="Part of the name, in any case.")] = None
    state: Annotated[
        str | None, Query(description="The state; `disabled` where it is switched off.")
    ] = None

    def search(self, objects: Listed) -> Iterator[Listed]:
        """The objects that pass, in their order: what is found so far, every ``STEP_S``, and at last all of them."""
        names = objects.names
        if self.like_name is not None:
            part = self.like_name.casefold()
            names = [name for name in names if part in name.casefold()]
        if all(
            getattr(self, field.name) is None for field in fields(self) if field.name != "like_name"
        ):
            yield objects.only(names)
            return
        matching: list[str] = []
        until_s = perf_counter() + STEP_S
        for at, name in enumerate(names):
            matching += [name for spec in objects.only([name]) if self.takes(spec)]
            if perf_counter() > until_s and at + 1 < len(names):
                yield objects.only(matching[:])
                until_s = perf_counter() + STEP_S
        yield objects.only(matching)

    def takes(self, shown: Mapping[str, Any]) -> bool:
        """Return whether an object passes, its name aside."""
        return self.state is None or state_of(shown) == self.state


@dataclass(frozen=True, slots=True)
class GateFilter(ListFilter):
    """The filters of validations and transformations."""

    topic: Annotated[
        str | None, Query(description="A topic that is matched, or a filter that matches one.")
    ] = None
    schema_name: Annotated[
        str | None, Query(description="A schema that a check, decoder or encoder names.")
    ] = None
    schema_type: Annotated[
        Literal["sql", "json", "avro", "protobuf", "external_http", "none"] | None,
        Query(
            description="The type of a check, decoder or encoder; with schema_name, of the one that names it."
        ),
    ] = None
    enable: Annotated[
        bool | None, Query(description="Those switched on, or those switched off.")
    ] = None
    mode: Annotated[
        Literal["enforce", "shadow"] | None, Query(description="enforce, or shadow.")
    ] = None

    def takes(self, shown: Mapping[str, Any]) -> bool:
        """Return whether an object passes, its name aside."""
        return (
            ListFilter.takes(self, shown)
            and (self.topic is None or any(_match(self.topic, own) for own in shown["topics"]))
            and (
                (self.schema_name is None and self.schema_type is None)
                or any(map(self._named, _codings(shown)))
            )
            and (self.enable is None or shown["enable"] == self.enable)
            and (self.mode is None or shown["mode"] == self.mode)
        )

    def _named(self, coding: Spec) -> bool:
        return (self.schema_name is None or coding.get("schema") == self.schema_name) and (
            self.schema_type is None or coding.get("type") == self.schema_type
        )


def _codings(shown: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The checks of a validation; decoder and encoder of a transformation."""
    yield from shown.get("checks", ())
    yield from (
        shown[member] for member in ("payload_decoder", "payload_encoder") if member in shown
    )


@dataclass(frozen=True, slots=True)
class RuleFilter(ListFilter):
    """The filters of rules. Of those that may be repeated, one must hold."""

    enable: Annotated[bool | None, Query(description="Enabled rules, or disabled ones.")] = None
    sources: Annotated[Texts, Query(alias="from", description="A source as FROM has it.")] = None
    like_id: Annotated[str | None, Query(description="Part of the name.")] = None
    like_from: Annotated[str | None, Query(title="FROM has", description="Part of a source.")] = (
        None
    )
    match_from: Annotated[
        str | None,
        Query(
            title="Reads topic",
            description="A topic that FROM matches, or a filter that matches FROM.",
        ),
    ] = None
    like_description: Annotated[
        str | None, Query(title="Description has", description="Part of the description.")
    ] = None
    action: Annotated[
        Texts, Query(description="An action: `republish`, `stream:hot`, `kafka:x`.")
    ] = None
    source: Annotated[Texts, Query(description="An ingress connector of FROM: `mqtt:plant`.")] = (
        None
    )

    def takes(self, rule: Mapping[str, Any]) -> bool:
        """Return whether a rule passes, its name aside."""
        sources: list[str] = rule.get("from", [])
        return (
            ListFilter.takes(self, rule)
            and (self.enable is None or rule.get("enable") == self.enable)
            and _holds(self.like_id, rule["name"])
            and _holds(self.like_description, rule.get("description", ""))
            and (not self.sources or any(source in sources for source in self.sources))
            and (self.like_from is None or any(self.like_from in source for source in sources))
            and (
                self.match_from is None
                or any(_match(self.match_from, source) for source in sources)
            )
            and (
                not self.action
                or any(action in self.action for action in _actions(rule.get("actions", [])))
            )
            and (
                not self.source
                or any(
                    source.partition("/")[2] in self.source
                    for source in sources
                    if source[0] == "$"
                )
            )
        )


@dataclass(frozen=True, slots=True)
class SettingFilter(ListFilter):
    """The filters of settings."""

    group: Annotated[
        str | None, Query(description="The first part of the key, such as `mqtt`.")
    ] = None
    text: Annotated[
        str | None, Query(description="Words that the key or the description has, in any case.")
    ] = None
    changed: Annotated[
        bool | None,
        Query(
            title="Not the default",
            description="Settings that are not the default, or those that are.",
        ),
    ] = None

    def takes(self, shown: Mapping[str, Any]) -> bool:
        """Return whether a setting passes, its name aside."""
        text = f"{shown['key']} {shown['description']}".casefold()
        is_changed = shown["set_by"] != "default" or "in_files" in shown
        return (
            (self.group is None or shown["group"] == self.group)
            and (self.changed is None or self.changed == is_changed)
            and all(word in text for word in (self.text or "").casefold().split())
        )


def _holds(part: str | None, text: str) -> bool:
    return part is None or part in text


def _actions(actions: Sequence[Any]) -> Iterable[str]:
    """Filter terms of actions: type, target, and both."""
    for action in actions:
        kind = action.get("type")
        target = action.get("stream") or action.get("bridge")
        yield from (name for name in (kind, target, f"{kind}:{target}") if name)


def _match(text: str, own: str) -> bool:
    return levels_match(tuple(own.split("/")), text) or levels_match(tuple(text.split("/")), own)


# Filters of kinds that have more than ``ListFilter``, by the path of the kind.
FILTERS: Final[Mapping[str, type[ListFilter]]] = {
    "validations": GateFilter,
    "transforms": GateFilter,
    "rules": RuleFilter,
    "config": SettingFilter,
}
