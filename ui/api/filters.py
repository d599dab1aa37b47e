"""The filters of lists as query parameters: of validations and transformations, and of rules, named as EMQX names
them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import Query

from broker.core.objects import Spec
from broker.core.topic import levels_match


@dataclass(frozen=True, slots=True)
class GateFilter:
    """The filters as parameters of an operation; all that are given must hold."""

    topic: Annotated[str | None, Query(description="A topic that is matched, or a filter that matches one.")] = None
    schema_name: Annotated[str | None, Query(description="A schema that a check, decoder or encoder names.")] = None
    schema_type: Annotated[
        Literal["sql", "json", "avro", "protobuf", "external_http", "none"] | None,
        Query(description="The type of a check, decoder or encoder; with schema_name, of the one that names it."),
    ] = None
    enable: Annotated[bool | None, Query(description="Those switched on, or those switched off.")] = None
    mode: Annotated[Literal["enforce", "shadow"] | None, Query(description="enforce, or shadow.")] = None

    def select(self, objects: Iterable[Spec]) -> Sequence[Spec]:
        """The objects that pass, in their order."""
        return [one for one in objects if self._takes(one)]

    def _takes(self, one: Spec) -> bool:
        return (
            (self.topic is None or any(_match(self.topic, own) for own in one["topics"]))
            and ((self.schema_name is None and self.schema_type is None) or any(map(self._named, _codings(one))))
            and (self.enable is None or one["enable"] == self.enable)
            and (self.mode is None or one["mode"] == self.mode)
        )

    def _named(self, coding: Spec) -> bool:
        return (self.schema_name is None or coding.get("schema") == self.schema_name) and (
            self.schema_type is None or coding.get("type") == self.schema_type
        )


def _codings(one: Spec) -> Iterator[dict[str, Any]]:
    """The checks of a validation; decoder and encoder of a transformation."""
    yield from one.get("checks", ())
    yield from (one[member] for member in ("payload_decoder", "payload_encoder") if member in one)


@dataclass(frozen=True, slots=True)
class RuleFilter:
    """The filters as parameters of an operation. All that are given must hold; of those that may be repeated, one."""

    enable: Annotated[bool | None, Query(description="Enabled rules, or disabled ones.")] = None
    sources: Annotated[list[str] | None, Query(alias="from", description="A source as FROM has it.")] = None
    like_id: Annotated[str | None, Query(description="Part of the name.")] = None
    like_from: Annotated[str | None, Query(description="Part of a source.")] = None
    match_from: Annotated[
        str | None, Query(description="A topic that FROM matches, or a filter that matches FROM.")
    ] = None
    like_description: Annotated[str | None, Query(description="Part of the description.")] = None
    action: Annotated[list[str] | None, Query(description="An action: `republish`, `stream:hot`, `kafka:x`.")] = None
    source: Annotated[list[str] | None, Query(description="An ingress connector of FROM: `mqtt:plant`.")] = None

    def select(self, rules: Iterable[Spec]) -> Sequence[Spec]:
        """The rules that pass, in their order."""
        return [rule for rule in rules if self._takes(rule)]

    def _takes(self, rule: Spec) -> bool:
        sources: list[str] = rule.get("from", [])
        return (
            (self.enable is None or rule.get("enable") == self.enable)
            and _holds(self.like_id, rule["name"])
            and _holds(self.like_description, rule.get("description", ""))
            and (not self.sources or any(one in sources for one in self.sources))
            and (self.like_from is None or any(self.like_from in one for one in sources))
            and (self.match_from is None or any(_match(self.match_from, one) for one in sources))
            and (not self.action or any(one in self.action for one in _actions(rule.get("actions", []))))
            and (not self.source or any(one.partition("/")[2] in self.source for one in sources if one[0] == "$"))
        )


def _holds(part: str | None, text: str) -> bool:
    return part is None or part in text


def _actions(actions: Sequence[Any]) -> Iterable[str]:
    """What actions can be filtered by: type, target, and both."""
    for action in actions:
        kind, target = action.get("type"), action.get("stream") or action.get("bridge")
        yield from (name for name in (kind, target, f"{kind}:{target}") if name)


def _match(given: str, own: str) -> bool:
    return levels_match(tuple(own.split("/")), given) or levels_match(tuple(given.split("/")), own)
