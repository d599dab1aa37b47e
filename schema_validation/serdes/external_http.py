"""A schema whose payloads another process codes. Bytes in, bytes out; what waits for the answer is not done here."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

from broker.core.errors import Unavailable
from broker.core.schema import FieldType, SchemaError
from broker.core.waiting import MAX_QUESTIONS, answer_to
from schema_validation.external_http.caller import Caller, Verb
from schema_validation.external_http.spec import TYPE, Parameters
from schema_validation.serdes.base import SchemaFacts, SchemaSerde, short


@dataclass(frozen=True, slots=True)
class _Call:
    """A ``broker.core.waiting.Question``."""

    caller: Caller
    verb: Verb
    data: bytes
    most: ClassVar[int] = MAX_QUESTIONS

    @property
    def about(self) -> Hashable:
        return id(self.caller), self.verb

    async def ask(self) -> bytes:
        return await self.caller.call(self.verb, self.data)


class ExternalHttpSerde(SchemaSerde):
    """Its calls need a caller that can wait (``broker.core.waiting``)."""

    kind = TYPE

    def __init__(self, name: str, parameters: Parameters, label: str = "") -> None:
        self.label = label
        self.parameters = parameters
        self.caller = Caller(name, parameters)

    def decode(self, data: bytes, message_type: str | None = None) -> bytes:
        return self._asked("decode", data)

    def encode(self, value: Any, message_type: str | None = None) -> bytes:
        if isinstance(value, str):
            value = value.encode("utf-8", "surrogatepass")
        if not isinstance(value, bytes):
            raise self._refused(f"expected text or bytes, got {short(value)}; encode it before")
        return self._asked("encode", value)

    def field_type(self, message_type: str | None = None) -> FieldType:
        return FieldType("binary")

    def facts(self) -> SchemaFacts:
        """The server that codes payloads."""
        return {"server": self.caller.server}

    def status(self) -> dict[str, Any]:
        """Status of the calls, for display."""
        caller = self.caller
        counts = {"calls": caller.calls, "failed": caller.failed, "waiting": caller.waiting}
        return {"status": caller.state, **counts, "last_error": caller.last_error}

    def _asked(self, verb: Verb, data: bytes) -> bytes:
        try:
            result: bytes = answer_to(_Call(self.caller, verb, data))
        except (SchemaError, Unavailable) as error:
            raise self._refused(str(error)) from error
        return result
