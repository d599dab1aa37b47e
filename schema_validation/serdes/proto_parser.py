"""Tokens of a ``.proto`` file to a ``FileDescriptorProto``, since the protobuf package cannot read the text.

proto2 (also without a ``syntax`` line) and proto3. Names of types are left as written: the descriptor pool resolves
them by scope. Services, extensions and options that do not change the coding are read over; editions are refused (their
compiled form is understood, see ``proto_bundle``).
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

# Longest integer that is read; any field or enum number is shorter.
_MAX_DIGITS = 20
# Highest number of a field.
MAX_NUMBER = 536_870_911
# Deepest nesting of messages in messages.
MAX_NESTING = 32

_SCALARS = {
    name.removeprefix("TYPE_").lower(): number
    for name, number in FieldDescriptorProto.Type.items()
    if name not in ("TYPE_MESSAGE", "TYPE_GROUP", "TYPE_ENUM")
}
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
            self._fail(
                token, f"expected package, import, option, message or enum, found {_shown(token)}"
            )
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
        token = self._peek()
        message.name = self._name()
        self._body(message, depth, token)

    def _body(self, message: Any, depth: int, name: Token) -> None:
        if depth > MAX_NESTING:
            self._fail(name, f"messages nest at most {MAX_NESTING} levels")
        self._expect("{")
        optional: list[Any] = []
        while not self._accept("}"):
            self._member(message, optional, depth)
        for field in optional:  # proto3: each 'optional' is in a oneof of its own, after the others
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")

    def _member(self, message: Any, optional: list[Any], depth: int) -> None:
        """Parse a member; a word is a keyword only by the token after it, since fields may have types of the same
        names."""
        word = self._peek().text
        following = self._peek(1)
        blocks: dict[str, Callable[[], None]] = {
            "message": lambda: self._message(message.nested_type.add(), depth + 1),
            "enum": lambda: self._enum(message.enum_type.add()),
            "oneof": lambda: self._oneof(message),
        }
        is_option = following.kind in ("name", "integer", "string") or following.text in ("(", "<")
        if word in blocks and following.kind == "name" and self._peek(2).text == "{":
            self._take()
            blocks[word]()
        elif word == "map" and following.text == "<":
            self._map(message)
        elif word == "reserved" and following.kind in ("integer", "string"):
            self._reserved(message)
        elif word == "extensions" and following.kind == "integer":
            self._skip_to_semicolon()
        elif word == "option" and is_option:
            self._option()
        elif word == "extend" and is_option:
            self._skip_block()
        elif not self._accept(";"):
            self._labelled_field(message, optional, depth)

    def _reserved(self, message: Any) -> None:
        """``reserved 2, 9 to 11, 40 to max;``: ranges of numbers; names are not kept."""
        self._take()
        while True:
            token = self._take()
            if token.kind == "integer":
                start = end = self._integer(token)
                if self._accept("to"):
                    last = self._take()
                    end = MAX_NUMBER if last.text == "max" else self._integer(last)
                if not 1 <= start <= end <= MAX_NUMBER:
                    self._fail(token, f"the numbers {start} to {end} cannot be reserved")
                message.reserved_range.add(start=start, end=end + 1)
            elif token.kind != "string":
                self._fail(token, f"expected a number or a name in quotes, found {_shown(token)}")
            if not self._accept(","):
                return self._expect(";")

    def _labelled_field(self, message: Any, optional: list[Any], depth: int) -> None:
        token = self._peek()
        label = self._take().text if token.text in _LABELS and self._peek(1).text != "=" else None
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
        field.name = self._name()
        self._number_into(field)
        self._expect(";")

    def _group(self, message: Any, field: Any, depth: int) -> None:
        """``group Result = 1 { ... }``: a message of this name, and a field of the name in small letters."""
        self._take()
        token = self._peek()
        name = self._name()
        if not name[0].isupper():
            self._fail(
                token, f"the name of a group begins with a capital letter, not {_shown(token)}"
            )
        self._number_into(field)
        field.name = name.lower()
        field.type = FieldDescriptorProto.TYPE_GROUP
        field.type_name = name
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
        """The number, and the options behind it."""
        self._expect("=")
        token = self._take()
        if token.kind != "integer":
            self._fail(token, f"expected a field number, found {_shown(token)}")
        number = self._integer(token)
        if not 1 <= number <= MAX_NUMBER or 19_000 <= number <= 19_999:
            self._fail(token, f"field number {number} is not allowed")
        field.number = number
        if self._accept("["):
            self._field_options(field)

    def _integer(self, token: Token) -> int:
        if len(token.text) > _MAX_DIGITS:
            self._fail(token, f"the number {_shown(token)} has {len(token.text)} digits")
        return int(token.text) if token.text.isdigit() else int(token.text, 0)

    def _field_options(self, field: Any) -> None:
        """``packed = true, default = 1]``: ``packed`` counts, defaults are for readers that fill them in."""
        while True:
            if self._take().text == "packed" and self._accept("="):
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
        message.oneof_decl.add(name=self._name())
        self._expect("{")
        while not self._accept("}"):
            if self._accept("option"):
                self._option()
            elif not self._accept(";"):
                self._field(message.field.add(label=_LABELS["optional"], oneof_index=index))

    def _map(self, message: Any) -> None:
        self._take()
        self._expect("<")
        key = self._take()
        if key.text not in _MAP_KEYS:
            self._fail(key, f"a map's key is an integer, a bool or a string, not {_shown(key)}")
        self._expect(",")
        entry = DescriptorProto()
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=_LABELS["optional"], type=_SCALARS[key.text])
        self._type_into(entry.field.add(name="value", number=2, label=_LABELS["optional"]))
        self._expect(">")
        name = self._name()
        entry.name = "".join(part[:1].upper() + part[1:] for part in name.split("_")) + "Entry"
        self._number_into(
            message.field.add(name=name, label=_LABELS["repeated"], type_name=entry.name)
        )
        self._expect(";")
        message.nested_type.add().CopyFrom(entry)

    def _enum(self, enum: EnumDescriptorProto) -> None:
        enum.name = self._name()
        self._expect("{")
        while not self._accept("}"):
            word = self._peek().text
            is_value = self._peek(1).text == "="
            if word == "option" and not is_value:
                self._enum_option(enum)
            elif word == "reserved" and not is_value:
                self._skip_to_semicolon()
            elif not self._accept(";"):
                self._enum_value(enum)

    def _enum_option(self, enum: EnumDescriptorProto) -> None:
        if self._peek(1).text == "allow_alias" and self._peek(3).text == "true":
            enum.options.allow_alias = True
        self._option()

    def _enum_value(self, enum: EnumDescriptorProto) -> None:
        value = enum.value.add(name=self._name())
        self._expect("=")
        sign = -1 if self._accept("-") else 1
        token = self._take()
        if token.kind != "integer":
            self._fail(token, f"expected a number, found {_shown(token)}")
        number = sign * self._integer(token)
        if not -(2**31) <= number < 2**31:
            self._fail(token, "an enum's number has 32 bits")
        value.number = number
        self._skip_to_semicolon()

    def _full_name(self) -> str:
        name = ("." if self._accept(".") else "") + self._name()
        while self._accept("."):
            name += f".{self._name()}"
        return name

    def _name(self) -> str:
        token = self._take()
        if token.kind != "name":
            self._fail(token, f"expected a name, found {_shown(token)}")
        return token.text

    def _string(self) -> str:
        token = self._take()
        if token.kind != "string":
            self._fail(token, f"expected a string in quotes, found {_shown(token)}")
        return token.text[1:-1]

    def _skip_to_semicolon(self) -> None:
        while not self._accept(";"):
            self._take_or_fail(";")

    def _skip_block(self) -> None:
        while not self._accept("{"):
            self._take_or_fail("{")
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

    def _peek(self, count: int = 0) -> Token:
        return self._tokens[min(self._next + count, len(self._tokens) - 1)]

    def _take(self) -> Token:
        token = self._peek()
        if token.kind != "end":
            self._next += 1
        return token

    def _accept(self, text: str) -> bool:
        """Take the next token if it is this one."""
        if self._peek().text != text:
            return False
        self._take()
        return True

    def _fail(self, token: Token, message: str) -> NoReturn:
        raise SourceError(f"{self._file.name}: {message}", token.line, token.column)


def _shown(token: Token) -> str:
    return "the end" if token.kind == "end" else repr(token.text[:40])
