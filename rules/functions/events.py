"""Functions that look at the event the rule runs on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from rules.functions.registry import Items, StrictText, Text, at_least, failure, function
from rules.functions.spark_form import SparkForm
from rules.sql.paths import dotted
from rules.sql.values import UNDEFINED, check_items, joined, text_of, type_name
from rules.sql.work import spend, spend_any
from transforms.variform import functions_text

_AS_IT_IS = (SparkForm(("string",), "{0}", "string", takes_undefined=True),)
_LEVEL = "get(split({0}, '/'), CAST(least({1}, 100000) AS INT) - 1)"
_TOPIC = (
    *_AS_IT_IS,
    SparkForm(("string", "long"), _LEVEL, "string", unless=f"{{1}} < 1 OR {_LEVEL} IS NULL"),
)
_KINDS = ("string", "long", "float", "number", "boolean")
_COALESCE = tuple(
    SparkForm((kind,) * 2, "coalesce({0}, {1})", kind, takes_undefined=True) for kind in _KINDS
)


def _presence(test: str) -> tuple[SparkForm, ...]:
    return tuple(SparkForm((kind,), test, "boolean", takes_undefined=True) for kind in _KINDS)


@function(name="topic", returns="string", column="topic", spark=_TOPIC)
def topic_(topic: Any, level: Annotated[int, at_least(1)] | None = None) -> Any:
    """The topic, or its n-th level, counted from 1."""
    if level is None:
        return topic
    levels = topic.split("/") if type(topic) is str else []
    if level > len(levels):
        raise failure("topic", f"there is no level {level} in a topic of {len(levels)} levels")
    return levels[level - 1]


@function(returns="string", column="clientid", spark=_AS_IT_IS)
def clientid(value: Any) -> Any:
    """The client identifier of the publisher."""
    return value


@function(returns="string", column="username", spark=_AS_IT_IS)
def username(value: Any) -> Any:
    """The user name of the publisher."""
    return value


@function(
    returns="long",
    column="qos",
    name="qos",
    spark=(SparkForm(("long",), "{0}", "long", takes_undefined=True),),
)
def qos_(value: Any) -> Any:
    """The QoS the message was published with."""
    return value


@function(returns="string", column="id")
def msgid(value: Any) -> Any:
    """The identifier of the message."""
    return value


@function(returns="string", column="peerhost", aliases=("clientip",))
def peerhost(value: Any) -> Any:
    """The address of the publisher."""
    return value


@function(returns="map", column="flags", name="flags")
def flags_(value: Any) -> Any:
    """The flags of the message: retain, dup."""
    return {} if value is UNDEFINED else value


@function(returns="boolean", column="flags")
def flag(flags: Any, name: Text) -> Any:
    """One flag by name."""
    return flags.get(name, UNDEFINED) if type(flags) is dict else UNDEFINED


@function(column="payload", name="payload")
def payload_(payload: Any, path: StrictText | None = None) -> Any:
    """The payload as it came, or what is in its JSON at a dotted path."""
    return payload if path is None else dotted(payload, path)


@function(name="null", returns="null")
def null_() -> Any:
    """Undefined."""
    return UNDEFINED


@function(arity=(1, None), usage="(a, b, ...)", spark=_COALESCE)
def coalesce(*values: Any) -> Any:
    """The first value that is not undefined; takes values or one list of them."""
    return next(
        (value for value in _listed("coalesce", values) if value is not UNDEFINED), UNDEFINED
    )


@function(arity=(1, None), usage="(a, b, ...)")
def coalesce_ne(*values: Any) -> Any:
    """The first value that is neither undefined nor the empty string."""
    return next(
        (
            v
            for v in _listed("coalesce_ne", values)
            if v is not UNDEFINED and not (type(v) is str and not v)
        ),
        UNDEFINED,
    )


def _listed(name: str, values: tuple[Any, ...]) -> Sequence[Any]:
    if len(values) > 1:
        return values
    if type(values[0]) is list:
        return values[0]
    raise failure(name, f"takes several values or one array, not {type_name(values[0])}")


@function(returns="boolean", spark=_presence("({0} IS NULL)"))
def is_null(x: Any) -> bool:
    """True if the value is undefined."""
    return x is UNDEFINED


@function(returns="boolean", spark=_presence("({0} IS NOT NULL)"))
def is_not_null(x: Any) -> bool:
    """True if the value is defined."""
    return x is not UNDEFINED


@function(returns="boolean")
def is_null_var(x: Any) -> bool:
    """True if the value is undefined or JSON null."""
    return x is UNDEFINED or x is None


@function(returns="boolean")
def is_not_null_var(x: Any) -> bool:
    """True if the value is neither undefined nor JSON null."""
    return x is not UNDEFINED and x is not None


# Functions on topics and filters.


@function(returns="boolean")
def topic_match(topic: Any, topic_filter: Any) -> bool:
    """True if a topic matches a filter, by the rules of MQTT; false when either is undefined. Also written ``=~``."""
    if topic is UNDEFINED or topic_filter is UNDEFINED:
        return False
    if type(topic) is not str or type(topic_filter) is not str:
        raise failure(
            "=~", "a topic on the left and a topic filter on the right are needed, both strings"
        )
    spend(len(topic) + len(topic_filter), 20)
    return functions_text.topic_match(topic, topic_filter)


@function(returns="array")
def topic_split(topic: Text) -> list[str]:
    """The levels of a topic or filter, empty ones kept."""
    check_items(topic.count("/"))
    return topic.split("/")


@function(returns="string", arity=(1, 2), usage="(levels) or (parent, word)")
def topic_join(*arguments: Any) -> Any:
    """The levels of an array with / between them, or a parent and a word; a parent's final / is not doubled."""
    if len(arguments) == 1:
        levels = arguments[0]
        if type(levels) is not list:
            raise failure(
                "topic_join", f"one argument must be an array of levels, not {type_name(levels)}"
            )
        spend(len(levels), 500)
        return joined(*[part for level in levels for part in ("/", text_of(level))][1:])
    parent, word = map(text_of, arguments)
    if not parent:
        raise failure("topic_join", "the parent is empty")
    return joined(parent, "" if parent[-1:] in ("/", b"/") else "/", word)


@function(returns="boolean")
def contains_topic(filters: Items, topic: Text, qos: Any = UNDEFINED) -> bool:
    """True if a list of ``{topic, qos}`` holds that very topic, and that QoS where given."""
    spend(len(filters), 200)
    return _any(filters, qos, lambda text: text == topic)


@function(returns="boolean")
def contains_topic_match(filters: Items, topic: Text, qos: Any = UNDEFINED) -> bool:
    """True if a filter in a list of ``{topic, qos}`` matches the topic, with that QoS where given."""
    spend_any(len(filters), 1000 * len(filters))
    return _any(filters, qos, lambda text: functions_text.topic_match(topic, text))


def _any(filters: list[Any], qos: Any, fits: Callable[[str], bool]) -> bool:
    for entry in filters:
        if (
            type(entry) is dict
            and type(entry.get("topic")) is str
            and fits(entry["topic"])
            and (qos is UNDEFINED or entry.get("qos") == qos)
        ):
            return True
    return False
