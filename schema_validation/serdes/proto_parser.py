"""Tokens of a ``.proto`` file to a ``FileDescriptorProto``, since the protobuf package cannot read the text.

proto2 (also without a ``syntax`` line) and proto3. Names of types are left as written: the descriptor pool resolves
them by scope. Services, extensions and options that do not change the coding are read over; editions are refused (their
compiled form is understood, see ``proto_descriptors``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

from schema_validation.serdes.base import SourceError
from schema_validation.serdes.proto_lexer import Token, tokenize

_MAX_DIGITS = 20
"""Longest integer that is read; any field or enum number is shorter."""
MAX_NUMBER = 536_870_911
"""Highest number of a field."""
MAX_NESTING = 32
"""Deepest nesting of messages in messages."""

_SCALARS = {
    name: getattr(FieldDescriptorProto, f"TYPE_{name.upper()}")
    for name in (
        "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "bytes", "uint32",
        "sfixed32", "sfixed64", "sint32", "sint64",
    )
}  # fmt: skip
_MAP_KEYS = frozenset(_SCALARS) - {"double", "float", "bytes"}
_LABELS = {
    "optional": FieldDescriptorProto.LABEL_OPTIONAL,
    "required": FieldDescriptorProto.LABEL_REQUIRED,
    "repeated": FieldDescriptorProto.LABEL_REPEATED,
}


def parse_file(source: str, name: str) -> Any:
    """The descriptor of one file.

    Raises:
        SourceError: with line and column.
    """
    return _Parser(source, name).file()


class _Parser:
    def __init__(self, source: str, name: str) -> None:
        self._tokens = tokenize(source)
        self._next = 0
        self._file = FileDescriptorProto(name=name, syntax="proto2")

    @property
    def _is_proto3(self) -> bool:
        return bool(self._file.syntax == "proto3")

    def file(self) -> Any:
        if self._peek().text in ("syntax", "edition"):
            self._syntax()
        while self._peek().kind != "end":
            self._top_level()
        if not self._is_proto3:
            self._file.ClearField("syntax")
        return self._file

    def _syntax(self) -> None:
        word = self._take()
        self._expect("=")
        value = self._string()
        self._expect(";")
        if word.text == "edition" or value not in ("proto2", "proto3"):
            self._fail(word, "the syntax must be proto2 or proto3")
        self._file.syntax = value

    def _top_level(self) -> None:
        token = self._take()
        if token.text == ";":
            return
        readers: dict[str, Callable[[], None]] = {
            "package": self._package,
            "import": self._import,
            "option": self._option,
            "message": lambda: self._message(self._file.message_type.add(), 1),
            "enum": lambda: self._enum(self._file.enum_type.add()),
            "service": self._skip_block,
            "extend": self._skip_block,
        }
        if token.kind != "name" or token.text not in readers:
            self._fail(token, f"expected package, import, option, message or enum, found {_shown(token)}")
        readers[token.text]()

    def _package(self) -> None:
        self._file.package = self._full_name()
        self._expect(";")

    def _import(self) -> None:
        if self._peek().text in ("public", "weak") and self._take().text == "public":
            self._file.public_dependency.append(len(self._file.dependency))
        self._file.dependency.append(self._string())
        self._expect(";")

    def _option(self) -> None:
        """``option name = value;``: read over."""
        while self._peek().text not in (";", "{"):
            self._take_or_fail(";")
        if self._peek().text == "{":
            self._skip_block()
        self._expect(";")

    def _message(self, message: Any, depth: int) -> None:
        name = self._take()
        message.name = self._checked_name(name)
        self._body(message, depth, name)

    def _body(self, message: Any, depth: int, name: Token) -> None:
        if depth > MAX_NESTING:
            self._fail(name, f"messages nest at most {MAX_NESTING} levels")
        self._expect("{")
        optional: list[Any] = []
        while self._peek().text != "}":
            self._member(message, optional, depth)
        self._take()
        for field in optional:  # proto3: each 'optional' is in a oneof of its own, after the others
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")

    def _member(self, message: Any, optional: list[Any], depth: int) -> None:
        token = self._peek()
        following = self._tokens[min(self._next + 1, len(self._tokens) - 1)]
        is_keyword = following.kind in ("name", "integer", "string") or following.text in ("(", "<")
        if token.text == ";":
            self._take()
        elif token.text == "message" and following.kind == "name" and self._after(2).text == "{":
            self._take()
            self._message(message.nested_type.add(), depth + 1)
        elif token.text == "enum" and following.kind == "name" and self._after(2).text == "{":
            self._take()
            self._enum(message.enum_type.add())
        elif token.text == "oneof" and following.kind == "name" and self._after(2).text == "{":
            self._take()
            self._oneof(message)
        elif token.text == "map" and following.text == "<":
            self._take()
            self._map(message)
        elif token.text == "reserved" and following.kind in ("integer", "string"):
            self._reserved(message)
        elif token.text == "extensions" and following.kind == "integer":
            self._skip_to_semicolon()
        elif token.text == "option" and is_keyword:
            self._take()
            self._option()
        elif token.text == "extend" and is_keyword:
            self._take()
            self._skip_block()
        else:
            self._labelled_field(message, optional, depth)

    def _reserved(self, message: Any) -> None:
        """``reserved 2, 9 to 11, 40 to max;``: ranges of numbers; names are not kept."""
        self._take()
        while True:
            token = self._take()
            if token.kind == "integer":
                start = end = self._integer(token)
                if self._peek().text == "to":
                    self._take()
                    last = self._take()
                    end = MAX_NUMBER if last.text == "max" else self._integer(last)
                if not 1 <= start <= end <= MAX_NUMBER:
                    self._fail(token, f"the numbers {start} to {end} cannot be reserved")
                message.reserved_range.add(start=start, end=end + 1)
            elif token.kind != "string":
                self._fail(token, f"expected a number or a name in quotes, found {_shown(token)}")
            if self._peek().text != ",":
                return self._expect(";")
            self._take()

    def _labelled_field(self, message: Any, optional: list[Any], depth: int) -> None:
        token = self._peek()
        label = None
        if token.text in _LABELS and self._after(1).text != "=":
            label = self._take().text
        if label is None and not self._is_proto3:
            self._fail(token, f"expected optional, required or repeated, found {_shown(token)}")
        if label == "required" and self._is_proto3:
            self._fail(token, "proto3 has no required fields")
        field = message.field.add(label=_LABELS[label or "optional"])
        if self._peek().text == "group" and not self._is_proto3:
            self._group(message, field, depth)
            return
        self._field(field)
        if label == "optional" and self._is_proto3:
            field.proto3_optional = True
            optional.append(field)

    def _field(self, field: Any) -> None:
        self._type_into(field)
        field.name = self._checked_name(self._take())
        self._number_into(field)
        self._field_options(field)
        self._expect(";")

    def _group(self, message: Any, field: Any, depth: int) -> None:
        """``group Result = 1 { ... }``: a message of this name, and a field of the name in small letters."""
        self._take()
        token = self._peek()
        name = self._checked_name(self._take())
        if not name[0].isupper():
            self._fail(token, f"the name of a group begins with a capital letter, not {_shown(token)}")
        self._number_into(field)
        self._field_options(field)
        field.name, field.type, field.type_name = name.lower(), FieldDescriptorProto.TYPE_GROUP, name
        self._body(message.nested_type.add(name=name), depth + 1, token)

    def _type_into(self, field: Any) -> None:
        token = self._peek()
        if token.text == "group":
            self._fail(token, "groups exist in proto2 only, outside a oneof; use a message")
        name = self._full_name()
        if name in _SCALARS:
            field.type = _SCALARS[name]
        else:
            field.type_name = name

    def _number_into(self, field: Any) -> None:
        self._expect("=")
        token = self._take()
        if token.kind != "integer":
            self._fail(token, f"expected a field number, found {_shown(token)}")
        number = self._integer(token)
        if not 1 <= number <= MAX_NUMBER or 19_000 <= number <= 19_999:
            self._fail(token, f"field number {number} is not allowed")
        field.number = number

    def _integer(self, token: Token) -> int:
        if len(token.text) > _MAX_DIGITS:
            self._fail(token, f"the number {_shown(token)} has {len(token.text)} digits")
        return int(token.text) if token.text.isdigit() else int(token.text, 0)

    def _field_options(self, field: Any) -> None:
        """``[packed = true, default = 1]``: ``packed`` counts, defaults are for readers that fill them in."""
        if self._peek().text != "[":
            return
        self._take()
        while True:
            name = self._take()
            if name.text == "packed" and self._peek().text == "=":
                self._take()
                field.options.packed = self._take().text == "true"
            while self._peek().text not in (",", "]"):
                if self._peek().text == "{":
                    self._skip_block()
                else:
                    self._take_or_fail("]")
            if self._take().text == "]":
                return

    def _oneof(self, message: Any) -> None:
        index = len(message.oneof_decl)
        message.oneof_decl.add(name=self._checked_name(self._take()))
        self._expect("{")
        while self._peek().text != "}":
            if self._peek().text == "option":
                self._take()
                self._option()
            elif self._peek().text == ";":
                self._take()
            else:
                self._field(message.field.add(label=_LABELS["optional"], oneof_index=index))
        self._take()

    def _map(self, message: Any) -> None:
        self._expect("<")
        key = self._take()
        if key.text not in _MAP_KEYS:
            self._fail(key, f"a map's key is an integer, a bool or a string, not {_shown(key)}")
        self._expect(",")
        entry = DescriptorProto()
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=_LABELS["optional"], type=_SCALARS[key.text])
        value = entry.field.add(name="value", number=2, label=_LABELS["optional"])
        self._type_into(value)
        self._expect(">")
        name = self._checked_name(self._take())
        entry.name = "".join(part[:1].upper() + part[1:] for part in name.split("_")) + "Entry"
        field = message.field.add(name=name, label=_LABELS["repeated"], type_name=entry.name)
        self._number_into(field)
        self._field_options(field)
        self._expect(";")
        message.nested_type.add().CopyFrom(entry)

    def _enum(self, enum: EnumDescriptorProto) -> None:
        enum.name = self._checked_name(self._take())
        self._expect("{")
        while self._peek().text != "}":
            if self._peek().text == "option" and self._after(1).text != "=":
                self._enum_option(enum)
            elif self._peek().text == "reserved" and self._after(1).text != "=":
                self._skip_to_semicolon()
            elif self._peek().text == ";":
                self._take()
            else:
                self._enum_value(enum)
        self._take()

    def _enum_option(self, enum: EnumDescriptorProto) -> None:
        self._take()
        if self._peek().text == "allow_alias" and self._after(2).text == "true":
            enum.options.allow_alias = True
        self._option()

    def _enum_value(self, enum: EnumDescriptorProto) -> None:
        value = enum.value.add(name=self._checked_name(self._take()))
        self._expect("=")
        sign = -1 if self._peek().text == "-" else 1
        if sign < 0:
            self._take()
        token = self._take()
        if token.kind != "integer":
            self._fail(token, f"expected a number, found {_shown(token)}")
        number = sign * self._integer(token)
        if not -(2**31) <= number < 2**31:
            self._fail(token, "an enum's number has 32 bits")
        value.number = number
        while self._peek().text != ";":
            self._take_or_fail(";")
        self._take()

    def _full_name(self) -> str:
        parts = ["." if self._peek().text == "." and self._take() else ""]
        parts.append(self._checked_name(self._take()))
        while self._peek().text == ".":
            self._take()
            parts += [".", self._checked_name(self._take())]
        return "".join(parts)

    def _checked_name(self, token: Token) -> str:
        if token.kind != "name":
            self._fail(token, f"expected a name, found {_shown(token)}")
        return token.text

    def _string(self) -> str:
        token = self._take()
        if token.kind != "string":
            self._fail(token, f"expected a string in quotes, found {_shown(token)}")
        return token.text[1:-1]

    def _skip_to_semicolon(self) -> None:
        while self._peek().text != ";":
            self._take_or_fail(";")
        self._take()

    def _skip_block(self) -> None:
        while self._peek().text != "{":
            self._take_or_fail("{")
        self._take()
        depth = 1
        while depth:
            token = self._take_or_fail("}")
            depth += {"{": 1, "}": -1}.get(token.text, 0) if token.kind == "mark" else 0

    def _expect(self, mark: str) -> None:
        token = self._take()
        if token.text != mark or token.kind != "mark":
            self._fail(token, f"expected '{mark}', found {_shown(token)}")

    def _take_or_fail(self, wanted: str) -> Token:
        token = self._take()
        if token.kind == "end":
            self._fail(token, f"expected '{wanted}', found the end")
        return token

    def _peek(self) -> Token:
        return self._tokens[self._next]

    def _after(self, count: int) -> Token:
        return self._tokens[min(self._next + count, len(self._tokens) - 1)]

    def _take(self) -> Token:
        token = self._tokens[self._next]
        if token.kind != "end":
            self._next += 1
        return token

    def _fail(self, token: Token, message: str) -> NoReturn:
        raise SourceError(f"{self._file.name}: {message}", token.line, token.column)


def _shown(token: Token) -> str:
    return "the end" if token.kind == "end" else repr(token.text[:40])
