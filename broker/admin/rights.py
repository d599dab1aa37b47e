"""Rights of those who use the API: the one place that decides whether an actor may carry out an operation.

A right is a resource and what is done with it: ``read``, ``change``, ``try`` or ``job``, as each operation declares
(``broker.core.resources.Verb``). A role has rights by the area of the resource. A scope narrows them to some resources,
and to the topics of some filters.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Annotated, Final, Literal, NamedTuple, get_args

from pydantic import AfterValidator, Field, StringConstraints

from broker.core.errors import PeerError
from broker.core.kinds import Area, Topics, kinds, plural
from broker.core.resources import Does, resources
from broker.core.topic import TopicFilter, covers

Role = Literal["viewer", "editor", "operator", "administrator"]
ROLES: Final[Sequence[Role]] = get_args(Role)

_ALL: Final = frozenset[Does](get_args(Does))
_READ: Final = frozenset[Does](("read",))
_RIGHTS: Final[Mapping[Role, Mapping[Area, frozenset[Does]]]] = {
    "viewer": {"authoring": _READ, "operations": _READ, "administration": _READ},
    "editor": {
        "authoring": _READ | {"change", "try"},
        "operations": _READ | {"try"},
        "administration": _READ | {"try"},
    },
    "operator": {
        "authoring": _READ | {"try", "job"},
        "operations": _ALL,
        "administration": _READ | {"try"},
    },
    "administrator": dict.fromkeys(get_args(Area), _ALL),
}
# Areas of resources that no declaration has, by name.
_OTHERS: Final[Mapping[str, Area]] = {"catalogue": "authoring", "backup": "identities"}
# The resource that every actor has all rights on: its session, and the list of its rights.
OWN: Final = "own session"
# The right to read the state of the node, which every page shows, whatever the scope.
_HEALTH: Final = ("nodes", "read")
# Operations that a token for streams permits.
READS_STREAMS: Final = frozenset(("getStream", "getStreamPositions", "readStreamRecords"))
_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class Actor:
    """A user of the API: the administrator's token, an account, or a token.

    ``kinds`` and ``topics`` are its scope, None where nothing narrows it. A token for ``streams`` has no role: it reads
    their records, and nothing else. ``until_s`` is when its rights end, in Unix time.
    """

    name: str
    role: Role | None = "administrator"
    kinds: frozenset[str] | None = None
    topics: tuple[str, ...] | None = None
    streams: Sequence[str] = ()
    until_s: float = inf

    def may(self, resource: str, does: Does) -> bool:
        """True if the actor has this right on a resource, topics aside."""
        return self.refusal(Need(resource, does)) is None

    def rights(self) -> dict[str, list[Does]]:
        """Rights of the actor by resource, without resources that it has no right on."""
        every = {
            resource: [does for does in get_args(Does) if self.may(resource, does)]
            for resource in areas()
        }
        return {resource: rights for resource, rights in every.items() if rights}

    def refusal(self, need: Need) -> str | None:
        """The missing right in words, or None where the actor has it."""
        if self.role is None:
            if need.operation in READS_STREAMS and need.name in self.streams:
                return None
            return f"{self.name} only reads records of {_listed(self.streams)}"
        if need.resource == OWN or (need.resource, need.does) == _HEALTH:
            return None
        wanted = f"needs {need.does!r} on {need.resource!r}"
        if self.kinds is not None and need.resource not in self.kinds:
            return f"{wanted}; your scope is {_listed(sorted(self.kinds))}"
        area = areas().get(need.resource, "administration")
        rights = _RIGHTS[self.role].get(area, frozenset())
        if (
            area == "identities"
            and need.does != "read"
            and (self.kinds, self.topics) != (None, None)
        ):
            return f"{wanted} without a scope: it could give itself more rights"
        if need.does not in rights:
            existing = (
                " and ".join(repr(does) for does in get_args(Does) if does in rights)
                or "no right on it"
            )
            return f"{wanted}; your role {self.role!r} has {existing}"
        return None

    def topic_refusal(self, topics: Collection[str], *, is_required: bool = False) -> str | None:
        """The first of these topics and filters that is outside the scope, in words, or that there is none where one
        ``is_required``; None where all are within it."""
        if self.topics is None:
            return None
        if not topics and is_required:
            return f"needs a topic or filter within your scope {_listed(self.topics)}; the request names none"
        for topic in topics:
            if not any(_covers(wide, topic) for wide in self.topics):
                return f"needs the topic {topic!r}; your scope is {_listed(self.topics)}"
        return None


class Need(NamedTuple):
    """The right that an operation needs. ``name`` is the object that the path names, ``topics`` how scopes of topics
    apply."""

    resource: str
    does: Does
    operation: str = ""
    name: str = ""
    topics: Topics = "none"


@cache
def areas() -> Mapping[str, Area]:
    """The area of every resource, by its word."""
    by_word: dict[str, Area] = {word_of(name): area for name, area in _OTHERS.items()}
    for resource in resources():
        word = word_of(resource.name)
        if by_word.get(word, "administration") == "administration":
            by_word[word] = resource.area
    return by_word | {word_of(kind.name): kind.area for kind in kinds()}


@cache
def word_of(name: str) -> str:
    """The word for a kind or another resource in rights and scopes: ``access-rules``, ``tables``."""
    short = next((kind.short for kind in kinds() if kind.name == name), name)
    return OWN if name == OWN else plural(short).replace(" ", "-")


def _covers(wide: str, narrow: str) -> bool:
    try:
        return covers(TopicFilter.parse(wide).levels, TopicFilter.parse(narrow).levels)
    except PeerError:
        return False


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more


def _check_kind(word: str) -> str:
    if word not in areas():
        raise ValueError(f"expected one of {', '.join(sorted(areas()))}")
    return word


def _check_filter(text: str) -> str:
    try:
        return TopicFilter.parse(text).text
    except PeerError as error:
        raise ValueError(str(error)) from None


# Members of a scope, for settings of tokens and accounts, and their descriptions.
KINDS_TEXT: Final = (
    "Only these resources, as `rules` or `clients`. Default: all that the role permits."
)
TOPICS_TEXT: Final = (
    "Only topics within these filters, where an operation names topics. Default: all."
)
KindScope = Annotated[
    list[Annotated[str, AfterValidator(_check_kind)]],
    Field(min_length=1, max_length=100),
]
TopicScope = Annotated[
    list[
        Annotated[
            str, StringConstraints(min_length=1, max_length=1000), AfterValidator(_check_filter)
        ]
    ],
    Field(min_length=1, max_length=100),
]
