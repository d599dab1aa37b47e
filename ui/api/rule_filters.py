"""Which rules a list is to hold: the filters of ``GET /rules``, by the names that EMQX's have."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Query

from broker.core.objects import Spec
from broker.core.topic import levels_match


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


def _match(given: str, source: str) -> bool:
    return levels_match(tuple(source.split("/")), given) or levels_match(tuple(given.split("/")), source)


def _actions(actions: Sequence[Any]) -> Iterable[str]:
    """What actions can be asked for by: type, target, and both."""
    for action in actions:
        kind, target = action.get("type"), action.get("stream") or action.get("bridge")
        yield from (name for name in (kind, target, f"{kind}:{target}") if name)
