"""Actions as they are sent and saved, and the forms of other products that are taken as they were pasted."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import (
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
)

from broker.config.model import Bounded
from broker.core.placeholders import NAMED_SECRET, PATH_PLACEHOLDER, why_misplaced
from rules.actions.text import UndefinedVars

# The MQTT properties that are integers.
LARGEST_PROPERTIES: Final = {"Payload-Format-Indicator": 1, "Message-Expiry-Interval": 0xFFFFFFFF}
# The MQTT properties that templates may set.
_PROPERTIES: Final = frozenset(
    {*LARGEST_PROPERTIES, "Content-Type", "Response-Topic", "Correlation-Data"}
)
_SINK: Final = re.compile(r"[a-z][a-z0-9_]*:[0-9A-Za-z][-0-9A-Za-z_.]*", re.ASCII)


class _Model(Bounded):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class _Fallible(_Model):
    """An action that may fail, and what is done then."""

    fallback_actions: list[FallbackAction] = Field(default_factory=list)

    @field_validator("fallback_actions", mode="before")
    @classmethod
    def _in_our_form(cls, value: Any) -> Any:
        return [in_our_form(item) for item in value] if isinstance(value, list) else value

    @model_serializer(mode="wrap")
    def _without_empty(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = write(self)
        if not self.fallback_actions:
            written.pop("fallback_actions", None)
        return written


class StreamAction(_Fallible):
    """Append rows to a stream."""

    type: Literal["stream"]
    stream: str = Field(min_length=1)


class ConsoleAction(_Fallible):
    """Log rows."""

    type: Literal["console"]


class BridgeAction(_Fallible):
    """Hand rows to a bridge, ``<type>:<name>``, which need not be there yet."""

    type: Literal["bridge"]
    bridge: str

    @field_validator("bridge")
    @classmethod
    def _name(cls, value: str) -> str:
        if _SINK.fullmatch(value):
            return value
        raise ValueError("must be the type and the name of a bridge, as kafka:orders")


class RepublishAction(_Fallible):
    """Publish a message per row."""

    # qos, retain and direct_dispatch are values or one placeholder; the other strings are templates.
    type: Literal["republish"]
    topic: str = Field(min_length=1)
    payload: str = "${payload}"
    qos: int | str = "${qos}"
    retain: bool | str = "${retain}"
    user_properties: str | dict[str, str] = "${user_properties}"
    mqtt_properties: dict[str, str] = Field(default_factory=dict)
    direct_dispatch: bool | str = False
    undefined_vars: UndefinedVars = "text"

    @field_validator("qos")
    @classmethod
    def _qos(cls, value: int | str) -> int | str:
        if value in (0, 1, 2) or _is_placeholder(value):
            return value
        raise ValueError("must be 0, 1, 2 or one placeholder such as ${qos}")

    @field_validator("retain", "direct_dispatch")
    @classmethod
    def _truth(cls, value: bool | str) -> bool | str:
        if isinstance(value, bool) or _is_placeholder(value):
            return value
        raise ValueError("must be true, false or one placeholder such as ${flags.retain}")

    @field_validator("topic", "payload", "user_properties", "mqtt_properties")
    @classmethod
    def _names_no_secret(cls, value: str | dict[str, str]) -> str | dict[str, str]:
        for text in value.values() if isinstance(value, Mapping) else [value]:
            if (reference := NAMED_SECRET.search(text)) is not None:
                raise ValueError(why_misplaced(reference[0]))
        return value

    @field_validator("mqtt_properties", mode="before")
    @classmethod
    def _numbers_as_text(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {name: str(item) if type(item) is int else item for name, item in value.items()}

    @field_validator("mqtt_properties")
    @classmethod
    def _properties(cls, value: dict[str, str]) -> dict[str, str]:
        unknown = sorted(set(value) - _PROPERTIES)
        if unknown:
            raise ValueError(f"{unknown[0]} cannot be set; {', '.join(sorted(_PROPERTIES))} can")
        return value


class DropAction(_Model):
    """Stop the message that the rule runs on."""

    type: Literal["drop"]


class DisconnectAction(_Model):
    """Drop the message, and close the connection of its publisher."""

    type: Literal["disconnect"]


FallbackAction = Annotated[
    StreamAction | ConsoleAction | RepublishAction | BridgeAction, Field(discriminator="type")
]
AnyAction = Annotated[
    StreamAction | ConsoleAction | RepublishAction | BridgeAction | DropAction | DisconnectAction,
    Field(discriminator="type"),
]
# Actions that decide the fate of the message.
Effect = DropAction | DisconnectAction
TYPES: Final = ("stream", "console", "republish", "bridge", "drop", "disconnect")

for _model in (StreamAction, ConsoleAction, RepublishAction, BridgeAction):
    _model.model_rebuild()


def all_actions(actions: Sequence[AnyAction]) -> Iterator[AnyAction]:
    """The actions in order, each followed by its fallbacks."""
    for action in actions:
        yield action
        yield from getattr(action, "fallback_actions", ())


def in_our_form(action: Any) -> Any:
    """An action in EMQX's form as one of ours: ``"kafka:orders"``, ``{"function": "republish", "args": {...}}``.

    Raises:
        ValueError: a function of the user's own.
    """
    if isinstance(action, str):
        return {"type": "bridge", "bridge": action}
    if not isinstance(action, Mapping) or "function" not in action or "type" in action:
        return action
    function = action["function"]
    arguments = action.get("args") or {}
    if function not in ("console", "republish") or not isinstance(arguments, Mapping):
        raise ValueError(f"there is no function {function!r}; console and republish are functions")
    others = {name: value for name, value in action.items() if name not in ("function", "args")}
    return {"type": function, **(arguments if function == "republish" else {}), **others}


def _is_placeholder(value: object) -> bool:
    return isinstance(value, str) and PATH_PLACEHOLDER.fullmatch(value) is not None
