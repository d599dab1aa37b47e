"""Which validations or transformations a list is to hold."""

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
    like_name: Annotated[str | None, Query(description="Part of the name.")] = None

    def select(self, objects: Iterable[Spec]) -> Sequence[Spec]:
        """The objects that pass, in their order."""
        return [one for one in objects if self._takes(one)]

    def _takes(self, one: Spec) -> bool:
        return (
            (self.topic is None or any(_match(self.topic, own) for own in one["topics"]))
            and ((self.schema_name is None and self.schema_type is None) or any(map(self._named, _codings(one))))
            and (self.enable is None or one["enable"] == self.enable)
            and (self.mode is None or one["mode"] == self.mode)
            and (self.like_name is None or self.like_name in one["name"])
        )

    def _named(self, coding: Spec) -> bool:
        return (self.schema_name is None or coding.get("schema") == self.schema_name) and (
            self.schema_type is None or coding.get("type") == self.schema_type
        )


def _match(given: str, own: str) -> bool:
    return levels_match(tuple(own.split("/")), given) or levels_match(tuple(given.split("/")), own)


def _codings(one: Spec) -> Iterator[dict[str, Any]]:
    """The checks of a validation; decoder and encoder of a transformation."""
    yield from one.get("checks", ())
    yield from (one[member] for member in ("payload_decoder", "payload_encoder") if member in one)
