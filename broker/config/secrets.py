"""Values that do not print."""

from __future__ import annotations

import hmac
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

MASK = "******"
# Type of pydantic's error for a secret that is not a string; its value must not be shown either.
NO_TEXT = "secret_no_text"
_USER: Final = re.compile(r"^(\w[\w+.-]*://)?.*@", re.DOTALL)


def without_user(url: str) -> str:
    """A URL for a message: stars in place of a user and a password, and no query."""
    return _USER.sub(rf"\1{MASK}@", url).partition("?")[0]


def shown_as_password() -> CoreSchema:
    """The JSON Schema of a secret: a string that forms do not show."""
    from pydantic_core import core_schema

    return core_schema.str_schema(metadata={"pydantic_js_updates": {"format": "password"}})


class Secret:
    """A string that shows as ``******`` wherever it is printed, logged, dumped or pickled into an error.

    As the type of a settings field it takes a string. Only ``reveal`` gives the text back.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself; for the one call that needs it."""
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        """Compares in constant time."""
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return f"Secret({MASK!r})"

    def __str__(self) -> str:
        return MASK

    def __deepcopy__(self, memo: Any) -> Secret:
        """Itself, as it does not change: a copy of a model's defaults has it."""
        return self

    def __reduce__(self) -> Any:
        raise TypeError("a secret is not pickled; hand on what needs it")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(
            cls._validated,
            serialization=core_schema.plain_serializer_function_ser_schema(lambda _: MASK),
            json_schema_input_schema=shown_as_password(),
        )

    @classmethod
    def _validated(cls, value: object) -> Secret:
        if isinstance(value, str):
            return cls(value)
        if not isinstance(value, Secret):
            from pydantic_core import PydanticCustomError

            raise PydanticCustomError(NO_TEXT, "expected a string")
        return value
