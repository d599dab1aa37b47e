"""Interface through which features describe their objects to each other: references, effects of a change, stages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NotRequired

from typing_extensions import TypedDict

from broker.core.action import Row
from broker.core.column_text import column_text
from broker.core.errors import InUse, NotFound
from broker.core.json_values import ProblemEntry
from broker.core.message import Message
from broker.core.objects import Reference, Spec, is_deleted_too
from broker.core.schema import FieldType, SchemaEffect, SchemaLookup


class TopicStage(TypedDict):
    """One stage for messages on a topic: a validation, transformation, rule or stream, or the subscribers.

    ``topics`` are those of its filters that match, ``does`` says in a line what it does. ``mode`` and ``on_failure``
    are those of validations and transformations, ``actions`` the types of a rule's actions, ``count`` the number of
    subscriptions.
    """

    stage: str
    name: str
    enabled: bool
    topics: list[str]
    does: str
    mode: NotRequired[str]
    on_failure: NotRequired[str]
    actions: NotRequired[list[str]]
    count: NotRequired[int]


class WrittenValue(TypedDict):
    """Value that an operation of a transformation wrote: ``value`` under ``key``."""

    key: str
    value: Any


class TransformFailure(TypedDict):
    """A transformation that failed: the ``kind`` of failure, the number of the operation from 0, and the action."""

    name: str
    kind: str
    operation: int | None
    reason: str
    action: str
    details: NotRequired[dict[str, Any]]


class TrialStep(TypedDict):
    """Result of a stage: it ``passed`` or ``changed`` the message, made ``rows`` or ``no_result`` of it, stopped it
    by its action (``drop``, ``disconnect``), or had an ``error``.

    Of a validation: whether the message ``passed``, and of the first check that failed its number, ``type`` and
    ``schema``, the ``path`` in the payload, and the ``reason``. Of a transformation: what it ``wrote``, or its
    ``failure``. Of a rule: its rows or its error, and the types of its ``actions``, which do not run.
    """

    stage: str
    name: str
    outcome: str
    passed: NotRequired[bool]
    check: NotRequired[int]
    type: NotRequired[str]
    schema: NotRequired[str | None]
    path: NotRequired[str]
    reason: NotRequired[str]
    action: NotRequired[str]
    wrote: NotRequired[list[WrittenValue]]
    failure: NotRequired[TransformFailure | None]
    rows: NotRequired[list[dict[str, Any]]]
    error: NotRequired[ProblemEntry]
    actions: NotRequired[list[str]]


@dataclass(frozen=True, slots=True)
class Trial:
    """Result of a stage for a trial message, which no client published.

    ``steps`` has one for each object that matched. ``message`` is what continues, None when the stage stopped it.
    """

    steps: Sequence[TrialStep]
    message: Message | None


# Gives rows, each with its JSON; none where the rule does not read the topic or WHERE does not hold. Raises what the
# rule raises.
RowsOf = Callable[[Message], Sequence[tuple[Row, bytes]]]
# Objects that need not be saved, by their kind in the plural.
Drafts = Mapping[str, Sequence[Spec]]
# Edges of the graph: an object, and one that it uses.
Uses = Iterable[tuple[Reference, Reference]]


@dataclass(frozen=True, slots=True)
class Change:
    """A change of an object: what is saved of it before and after, None where it is created or deleted.

    ``verb`` is the one that changes it without saving anything, such as ``stop``, and ``options`` are those of the
    request, such as ``drain``.
    """

    target: Reference
    before: Spec | None
    after: Spec | None
    verb: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


class Contributor:
    """A service's description of its objects for the rest of the node. Each method has a default.

    The calls count nothing and store nothing.
    """

    def uses(self) -> Uses:
        """References from each object to the objects it uses."""
        return ()

    def consequences(self, change: Change) -> Iterable[str | None]:
        """Effects of a change on clients, messages, rows and files, with counts; each is a sentence. None where
        the count of many takes a pause."""
        return ()

    def effects_of_schema(self, schema: str, schemas: SchemaLookup) -> Sequence[SchemaEffect]:
        """Effects on the objects of a change of a schema, if schemas were as in ``schemas``."""
        return ()

    def payload_type_after(self, topic_filter: str, before: FieldType) -> FieldType | None:
        """The type of the payloads on a filter's topics after this stage; None when it is not known."""
        return before

    def columns_of_sink(self, sink: str) -> Mapping[str, FieldType]:
        """The columns of the rows written to an action; ``unknown`` where objects disagree."""
        return {}

    def columns_of_stream(self, stream: str) -> Mapping[str, FieldType]:
        """The columns of the rows written to a stream; ``unknown`` where objects disagree."""
        return {}

    def unread_of(self, stream: str) -> Mapping[int, int]:
        """The first offset of each shard of a stream that an object still has to read, where it asks to have records
        kept until then; shards that it asks nothing of are left out."""
        return {}

    def rule_for_spark(self, name: str) -> Spec | None:
        """Parts that Spark needs to run a rule: ``name``, ``sql``, ``node`` and ``columns``; None from other
        services."""
        return None

    def rows_of(self, rule: str | None) -> RowsOf | None:
        """Function from a message to the rows of a rule, without its actions; None from other services. Without a rule
        the row that ``SELECT *`` gives.

        Raises:
            NotFound: there is no such rule.
            Invalid: it runs on no messages, or not at once.
        """
        return None

    def on_topic(self, topic: str) -> Sequence[TopicStage]:
        """Stages for messages published on a topic, in order."""
        return ()

    def try_on(self, message: Message, drafts: Drafts) -> Trial:
        """Trial of a message, with drafts in place of the saved objects."""
        return Trial((), message)


class Contributors(list[Contributor]):
    """The services of a node, in the order in which a message meets their stages."""

    def users_of(self, kind: str, name: str) -> list[Reference]:
        """The objects that use an object, without those that are deleted with it."""
        used = Reference(kind, name)
        users = dict.fromkeys(
            user for contributor in self for user, other in contributor.uses() if other == used
        )
        return [user for user in users if not is_deleted_too(user)]

    def check_unused(self, kind: str, name: str) -> None:
        """Raise ``InUse`` where objects use an object."""
        if users := self.users_of(kind, name):
            raise InUse(kind, name, [str(user) for user in users])

    def all_users_of(self, used: Reference) -> dict[Reference, Reference]:
        """The objects that use an object, and those that use these, each with the object that it uses. Objects come
        before those that they use, so that they can be deleted in this order."""
        users: defaultdict[Reference, list[Reference]] = defaultdict(list)
        for user, other in dict.fromkeys(
            edge for contributor in self for edge in contributor.uses()
        ):
            users[other].append(user)
        users_first = dict[Reference, Reference]()
        reasons = dict.fromkeys(users[used], used)
        seen = {used}
        path = [(used, iter(users[used]))]
        while path:
            target, rest = path[-1]
            following = next((user for user in rest if user not in seen), None)
            if following is not None:
                seen.add(following)
                reasons.setdefault(following, target)
                path.append((following, iter(users[following])))
                continue
            path.pop()
            if path:
                users_first[target] = reasons[target]
        return users_first

    def consequences(self, change: Change) -> Iterator[str | None]:
        """Effects of a change on clients, messages, rows and files, as the services report them."""
        return (sentence for contributor in self for sentence in contributor.consequences(change))

    def rows_of(self, rule: str | None) -> RowsOf:
        """Function from a message to the rows of a rule. Raises as ``Contributor.rows_of``."""
        rows_of_rule = next(
            (rows for contributor in self if (rows := contributor.rows_of(rule)) is not None), None
        )
        if rows_of_rule is None:
            raise NotFound("rule", rule or "SELECT *", "this node runs no rules")
        return rows_of_rule

    def columns_of_stream(self, stream: str) -> list[dict[str, str]]:
        """Name and type of the columns of a stream's rows, those inside included: ``struct<lat: double>``."""
        columns: dict[str, FieldType] = {}
        for contributor in reversed(self):
            columns |= contributor.columns_of_stream(stream)
        return [{"name": name, "type": column_text(kind)} for name, kind in columns.items()]

    def unread_of(self, stream: str) -> Mapping[int, int]:
        """The first offset of each shard of a stream that some object still has to read."""
        unread: dict[int, int] = {}
        for shard, offset in (
            entry for contributor in self for entry in contributor.unread_of(stream).items()
        ):
            unread[shard] = min(offset, unread.get(shard, offset))
        return unread

    def rule_for_spark(self, name: str) -> Spec:
        """Parts that Spark needs to run a rule. Raises ``NotFound``."""
        for contributor in self:
            if (parts := contributor.rule_for_spark(name)) is not None:
                return parts
        raise NotFound("rule", name)
