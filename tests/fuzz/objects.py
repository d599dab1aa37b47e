"""Requests that are nearly right: objects and calls made by the grammars of SQL, variform, jq, schemas and templates.

Random bytes are refused at the first character; these come through to compilers, checkers and evaluators.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

Call = tuple[str, str, Any]
"""Method, path below ``/api/v1``, body."""

NUMBERS = (
    "0",
    "1",
    "-1",
    "007",
    "1.5",
    "1e3",
    "1e308",
    "1e999",
    "9" * 30,
    "9" * 5_000,
    "0.1",
    "4294967296",
    "-0.0",
)
WORDS = (
    "a",
    "b",
    "payload",
    "topic",
    "item",
    "x y",
    "1e5message",
    "5",
    "True",
    "None",
    "self",
    "class",
    "é",
    "\u0301",
    "",
)
TEXTS = (
    "",
    "a",
    "it's",
    "\0",
    "\r\n",
    "%_%",
    "\\",
    "~s~p",
    "%Y-%m",
    "(a+)+$",
    "{",
    '{"a":[1]}',
    "é\u0301",
    "x" * 5_000,
    "a/b/#",
    "second",
    "sha256",
    "${a}",
    "9" * 400,
    "\u2028",
    "'; --",
    "##",
)
PAYLOADS = (
    '{"a":1,"b":[1,2,{"c":"x"}],"item":{"5":1},"x y":null}',
    "[" + "1," * 60_000 + "1]",
    "[" * 200 + "]" * 200,
    "text",
    "",
    "5",
    json.dumps({"a": "a" * 300_000, "b": [1] * 100_000}, separators=(",", ":")),
    "~s" * 100_000,
    '{"a":' * 90 + "1" + "}" * 90,
)
TYPES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string", "nosuch")
PROTO_TYPES = (
    "int32",
    "uint64",
    "string",
    "bytes",
    "double",
    "M",
    "N",
    "E",
    "map<string, M>",
    "nosuch",
    "map<double, M>",
)


class Requests:
    """An endless source of calls. ``functions`` and ``variform`` are the names that may be called."""

    def __init__(self, chance: Random, functions: list[str], variform: list[str]) -> None:
        self._chance, self._functions, self._variform = chance, functions, variform
        self._number = 0

    def next(self) -> Call:
        """One more call."""
        self._number += 1
        makers: tuple[Callable[[], Call], ...] = (
            self._rule,
            self._rule,
            self._test,
            self._test,
            self._explain,
            self._check,
            self._render,
            self._eval,
            self._schema,
            self._schema,
            self._codec,
            self._transform,
            self._validation,
            self._setting,
            self._jq_rule,
        )
        return self._chance.choice(makers)()

    # -- calls --

    def _name(self) -> str:
        return f"f{self._number}"

    def _rule(self) -> Call:
        actions = [self._action() for _ in range(self._chance.randint(0, 2))]
        return "POST", "/rules", {"name": self._name(), "sql": self.sql(), "actions": actions}

    def _jq_rule(self) -> Call:
        spec = {
            "name": self._name(),
            "language": "jq",
            "jq": self.jq(3),
            "from": ["in/#"],
            "actions": [],
        }
        return "POST", "/rules", spec

    def _test(self) -> Call:
        return "POST", "/rules:test", {"sql": self.sql(), "event": self._event()}

    def _explain(self) -> Call:
        return "POST", "/rules:explain", {"sql": self.sql(), "event": self._event()}

    def _check(self) -> Call:
        return "POST", "/rules:check", {"sql": self.sql()}

    def _render(self) -> Call:
        return "POST", "/templates:render", {"template": self.template(), "row": self.value(3)}

    def _eval(self) -> Call:
        body = {
            "expression": self.variform(3),
            "bindings": {"a": self.value(2), "b": self.value(1)},
        }
        return "POST", "/variform:eval", {**body, "raw": self._chance.random() < 0.5}

    def _schema(self) -> Call:
        kind, source = self.schema()
        return "POST", "/schemas", {"name": self._name(), "type": kind, "source": source}

    def _codec(self) -> Call:
        kind, source = self.schema()
        body: dict[str, Any] = {"type": kind, "source": source}
        if kind == "protobuf":
            body["message_type"] = "M"
        verb = self._chance.choice(("decode", "encode", "validate", "check"))
        body |= (
            {"payload": self._chance.choice(PAYLOADS)}
            if verb != "encode"
            else {"value": self.value(3)}
        )
        return (
            "POST",
            f"/schemas:{verb}",
            body if verb != "check" else {"type": kind, "source": source},
        )

    def _transform(self) -> Call:
        keys = (
            "payload.a.b",
            "topic",
            "qos",
            "user_property.x",
            "payload",
            "retain",
            f"payload.{self._word()}",
            self._word(),
        )
        operations = [
            {"key": self._chance.choice(keys), "value": self.variform(2)}
            for _ in range(self._chance.randint(0, 3))
        ]
        spec = {"name": self._name(), "topics": ["in/#"], "operations": operations}
        if self._chance.random() < 0.5:
            return "POST", "/transforms", spec
        message = {"topic": "in/1", "payload": self._chance.choice(PAYLOADS)}
        return "POST", "/transforms:preview", {"transformation": spec, "message": message}

    def _validation(self) -> Call:
        check = {"type": "sql", "sql": f"SELECT {self.fields()} WHERE {self.expression(2)}"}
        return "POST", "/validations", {"name": self._name(), "topics": ["in/#"], "checks": [check]}

    def _setting(self) -> Call:
        """Objects of few members, with values of every kind and size."""
        path, members = self._chance.choice(
            (
                ("/rewrites", ("name", "action", "source", "regex", "target")),
                (
                    "/streams",
                    ("name", "topics", "shards", "retention", "max_bytes", "partition_key"),
                ),
                ("/auto-subscriptions", ("name", "topic", "qos", "nl", "rap", "rh")),
                ("/bans", ("kind", "who", "reason", "until", "by")),
                ("/schemas:compatibility", ("mode", "level", "compatibility")),
                ("/rewrites:test", ("topic", "rewrites", "client_id")),
            )
        )
        body = {name: self.value(2) for name in members if self._chance.random() < 0.8}
        return "PUT" if path.endswith("compatibility") else "POST", path, body

    def _event(self) -> Any:
        return {"topic": "in/1", "clientid": "c", "payload": self._chance.choice(PAYLOADS)}

    def _action(self) -> Any:
        kind = self._chance.choice(("console", "republish", "drop", "nosuch"))
        if kind != "republish":
            return {"type": kind}
        return {
            "type": kind,
            "topic": self.template(),
            "payload": self.template(),
            "qos": self._chance.choice((0, 2, 5, "${qos}", "x")),
        }

    # -- values --

    def value(self, depth: int) -> Any:
        """Any JSON, some of it large."""
        roll = self._chance.random()
        if depth and roll < 0.2:
            return [self.value(depth - 1) for _ in range(self._chance.randint(0, 3))]
        if depth and roll < 0.45:
            return {self._word(): self.value(depth - 1) for _ in range(self._chance.randint(0, 3))}
        scalars = (None, True, 0, -1, 2**63, 10**400, 1.5, 1e308, *TEXTS)
        return self._chance.choice(scalars)

    def _word(self) -> str:
        return self._chance.choice(WORDS)

    def template(self) -> str:
        parts = (
            "${a}",
            "${.}",
            "${a.b.c}",
            "${payload.x}",
            "${$}",
            "${",
            "}",
            "a/",
            "${a[1]}",
            "x" * 300,
            "\0",
            "+",
            "${5}",
        )
        return "".join(self._chance.choices(parts, k=self._chance.randint(0, 5)))

    # -- SQL --

    def sql(self) -> str:
        """A statement."""
        source = self._chance.choice(
            (
                '"in/#"',
                "`in/+`",
                '"$events/client/connected"',
                "t",
                '"in/#", "a/+"',
                '"a/#/b"',
                "''",
            )
        )
        where = f" WHERE {self.expression(3)}" if self._chance.random() < 0.5 else ""
        if self._chance.random() < 0.6:
            program = f" JQ '{self.jq(2)}'" if self._chance.random() < 0.1 else ""
            return f"SELECT {self.fields()}{program} FROM {source}{where}"
        alias = f" AS {self._quoted()}" if self._chance.random() < 0.5 else ""
        incase = f" INCASE {self.expression(2)}" if self._chance.random() < 0.5 else ""
        items = self._chance.choice(
            ("payload", "payload.b", "[1..9]", "[1..999999]", self.expression(2))
        )
        return f"FOREACH {items}{alias} DO {self.fields()}{incase} FROM {source}{where}"

    def fields(self) -> str:
        return ", ".join(self._field() for _ in range(self._chance.choice((1, 1, 2, 3, 20))))

    def _field(self) -> str:
        if self._chance.random() < 0.1:
            return "*"
        alias = self._chance.choice(
            ("", f" AS {self._quoted()}", f" AS {self._quoted()}.{self._quoted()}[1]", " AS a[-0]")
        )
        return self.expression(3) + alias

    def _quoted(self) -> str:
        word, mark = self._word(), self._chance.choice('"`')
        return (
            word if word.isidentifier() and self._chance.random() < 0.5 else f"{mark}{word}{mark}"
        )

    def expression(self, depth: int) -> str:
        """An expression or a condition."""

        def inner() -> str:
            return self.expression(depth - 1) if depth else self._leaf()

        def some() -> range:
            return range(self._chance.randint(0, 3))

        shapes: tuple[Callable[[], str], ...] = (
            self._leaf,
            lambda: f"{self._chance.choice(self._functions)}({', '.join(inner() for _ in some())})",
            lambda: (
                f"({inner()} {self._chance.choice(('+', '-', '*', '/', 'div', 'mod', '||'))} {inner()})"
            ),
            lambda: (
                f"({inner()} {self._chance.choice(('=', '!=', '<', '>=', '=~', 'AND', 'OR'))} {inner()})"
            ),
            lambda: f"({inner()} {self._chance.choice(('IN', 'NOT IN'))} ({inner()}, {inner()}))",
            lambda: f"({inner()} LIKE {inner()})",
            lambda: f"({inner()} BETWEEN {inner()} AND {inner()})",
            lambda: f"(NOT {inner()})",
            lambda: f"({inner()} IS NULL)",
            lambda: f"CASE WHEN {inner()} THEN {inner()} ELSE {inner()} END",
            lambda: f"CASE {inner()} WHEN {inner()} THEN {inner()} END",
            lambda: f"[{inner()}, {inner()}][{self._chance.choice(('1', '-1', '0', 'a'))}]",
            lambda: f"{{{self._quoted() or 'a'}: {inner()}}}",
            lambda: f"jq('{self.jq(1)}', {inner()})" if self._chance.random() < 0.1 else inner(),
            lambda: f"(- {inner()})",
        )
        return self._chance.choice(shapes)()

    def _leaf(self) -> str:
        text = "'" + self._chance.choice(TEXTS).replace("'", "''") + "'"
        path = (
            "payload."
            + self._quoted()
            + self._chance.choice(("", "[1]", ".b[-1]", "[1..2]", ".'x'"))
        )
        return self._chance.choice(
            (
                text,
                path,
                path,
                self._quoted(),
                self._chance.choice(NUMBERS),
                "true",
                "null",
                "topic",
            )
        )

    # -- jq --

    def jq(self, depth: int) -> str:
        """A program."""
        if not depth:
            return self._chance.choice(
                (
                    ".",
                    ".a",
                    ".[]?",
                    "1",
                    '"a"',
                    "1e9",
                    "2000000000",
                    "$ENV",
                    "input",
                    "[range(5)]",
                    ".b[1:]",
                )
            )
        one, other = self.jq(depth - 1), self.jq(depth - 1)
        operator = self._chance.choice(("|", ",", "+", "*", "-", "/", "//", "==", "and", "|="))
        shapes = (
            f"{one} {operator} {other}",
            f"[{one}]",
            f"({one})",
            f"map({one})",
            f"reduce .[]? as $x ({one}; {other})",
            f"def f: {one}; {other}",
            f"def f: f; {one}",
            f"if {one} then {other} else . end",
            f"try {one} catch {other}",
            f"{{a: {one}}}",
            f"[limit(3; {one})]",
            f'"\\({one})"',
            f"range({one})",
            f"[recurse({one}; . != null)]",
            f"last({one})",
            f"{one} as $x | {other}",
            '"a" * 2000000000',
            f"[{one}] | sort_by({other})",
            f"label $o | {one}",
            f'{one} | test("(a+)+$")',
        )
        return self._chance.choice(shapes)

    # -- variform --

    def variform(self, depth: int) -> str:
        """An expression."""
        if not depth or self._chance.random() < 0.2:
            text = "'" + self._chance.choice(TEXTS).replace("'", "") + "'"
            number = self._chance.choice(("0", "5", "-3", "1.5", "9" * 30, "1000000"))
            return self._chance.choice(
                (text, number, "a", "b.c", "payload.a", "clientid", "true", "[]", "nosuch")
            )
        inner = [self.variform(depth - 1) for _ in range(self._chance.randint(0, 3))]
        if self._chance.random() < 0.15:
            return f"[{', '.join(inner)}]"
        return f"{self._chance.choice(self._variform)}({', '.join(inner)})"

    # -- schemas --

    def schema(self) -> tuple[str, str]:
        """Type and source."""
        kind = self._chance.choice(("json", "avro", "protobuf"))
        if kind == "json":
            return kind, json.dumps(self.json_schema(3))
        return kind, json.dumps(self.avro(3)) if kind == "avro" else self.proto()

    def json_schema(self, depth: int) -> Any:
        """A JSON Schema, or nearly one."""
        if not depth:
            kinds = ("object", "array", "string", "integer", "nosuch", 5)
            return self._chance.choice(
                (
                    True,
                    {"type": self._chance.choice(kinds)},
                    {"$ref": "#"},
                    {"$ref": "#/$defs/x"},
                    {},
                    5,
                )
            )
        inner = self.json_schema(depth - 1)
        shapes = (
            {"type": "object", "properties": {self._word(): inner}, "required": [self._word()]},
            {"type": "array", "items": inner, "uniqueItems": True, "maxItems": self.value(0)},
            {"allOf": [inner, inner]},
            {"oneOf": [inner, {"not": inner}]},
            {"if": inner, "then": inner},
            {
                "type": "string",
                "pattern": self._chance.choice(("(a+)+$", "\\w{1,500}", "(", "(?=a)", "\\p{L}*")),
            },
            {
                "type": "number",
                "multipleOf": self._chance.choice((0, 0.1, 1e-300, -1, "x")),
                "minimum": self.value(0),
            },
            {"$defs": {"x": inner}, "$ref": "#/$defs/x"},
            {"enum": [self.value(1)]},
            {"const": self.value(2)},
            {"patternProperties": {"(a|a)*b": inner}, "additionalProperties": inner},
            {"propertyNames": inner, "format": "email"},
            {"unevaluatedProperties": inner, "anyOf": [inner, {"$ref": "#"}]},
            {"dependentSchemas": {"a": inner}, "$schema": "x"},
        )
        return self._chance.choice(shapes)

    def avro(self, depth: int) -> Any:
        """An Avro schema, or nearly one."""
        if not depth:
            return self._chance.choice(
                (
                    *TYPES,
                    "r",
                    {"type": "fixed", "name": "z", "size": 0},
                    {"type": "int", "logicalType": "date"},
                )
            )
        inner = self.avro(depth - 1)
        default = self.value(1)
        shapes = (
            {
                "type": "record",
                "name": self._chance.choice(("r", "s", "9", "")),
                "fields": [
                    {
                        "name": self._word(),
                        "type": inner,
                        **({"default": default} if self._chance.random() < 0.3 else {}),
                    }
                ],
            },
            {"type": "array", "items": inner},
            {"type": "map", "values": inner},
            ["null", inner],
            [inner, inner],
            {
                "type": "enum",
                "name": "e",
                "symbols": self._chance.choice((["A", "B"], [], ["A", "A"], ["9"], 5)),
            },
            {"type": "fixed", "name": "f", "size": self._chance.choice((4, 0, -1, 2**40, "x"))},
            {
                "type": "bytes",
                "logicalType": "decimal",
                "precision": self.value(0),
                "scale": self.value(0),
            },
        )
        return self._chance.choice(shapes)

    def proto(self) -> str:
        """A .proto file, or nearly one."""
        numbers = (
            "1",
            "2",
            "0",
            "-1",
            "536870912",
            "19500",
            "0x10",
            "9" * 100_000,
            "99999999999999999999",
        )
        options = ("", " [packed = true]", " [default = 1e999]")
        fields = "".join(
            f"{self._chance.choice(('', 'repeated ', 'optional ', 'required '))}{self._chance.choice(PROTO_TYPES)} "
            f"f{n} = {self._chance.choice(numbers)}{self._chance.choice(options)};"
            for n in range(self._chance.randint(0, 3))
        )
        head = self._chance.choice(
            ('syntax = "proto3";', 'syntax = "proto2";', 'edition = "2023";', "")
        )
        enum = f"enum E {{ A = {self._chance.choice(numbers)}; }}"
        reserved = self._chance.choice(numbers)
        return (
            f"{head} {enum} message M {{ {fields} reserved {reserved}; }} message N {{ M m = 1; }}"
        )
