"""A tree to one statement of Spark SQL, for the rules whose meaning there is known to be the same.

Live, a value may be undefined, JSON null, or of another type than the schema says, and an expression may fail. Spark
has NULL, and fails the whole query. So the statement tells of each record whether it can answer for it: in column
``_irregular`` it is true for payloads that are not what the schema says (checked to the last byte: Spark alone would
take ``{"a":1} and more``), for null where null and undefined differ, and wherever an operation would fail or go beyond
what both sides compute exactly. Those records are left to the compiled rule (``bridges.spark.rule_frame``); of all
others the statement gives what the compiled rule gives, which tests hold against each other in a real Spark.

What cannot be said so is refused with a sentence: the rule then runs compiled. JSON is read by ``from_json`` with the
fields that the rule names, numbers as DOUBLE or BIGINT, strings as VARIANT, since a STRING field would take anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlglot import exp

from broker.core.errors import Problem
from broker.core.schema import UNKNOWN, FieldType
from rules.functions.registry import Functions
from rules.functions.spark_form import EXACT, SparkForm
from rules.sql import like
from rules.sql.printer import text_of_tree
from rules.sql.sources import Sources
from rules.sql.tree import Path, Tree, bare, path_of, place_of

RECORDS: Final = "records"
"""What the statement reads: a view with the columns of the source ``sluice``."""
IRREGULAR: Final = "_irregular"
_PLACE: Final = {"_shard": "shard", "_offset": "offset", "_published_at": "ts", "_topic": "topic"}
_RECORD: Final = (
    "shard", "offset", "ts", "topic", "payload", "qos", "retain", "client_id", "username", "properties", "rule",
)  # fmt: skip
_LISTED: Final = ",\n  "
_NONCE: Final = "sluice:2f8c1d0ab7"
"""A key that no payload has: one that holds this text is irregular."""
_MAX_LENGTH: Final = 100_000
_NUMERIC: Final = ("long", "float", "number")
_FIELD_TYPES: Final = {"boolean": "BOOLEAN", "long": "BIGINT", "double": "DOUBLE", "string": "VARIANT"}
_OF_FIELD: Final = {"boolean": "boolean", "long": "long", "double": "number", "string": "string"}
_COLUMN_TYPES: Final = {"boolean": "boolean", "long": "long", "number": "double", "float": "double", "string": "string"}
_BEYOND_JSON: Final = r"[0-9.][eE][+]?[0-9]{3}|[0-9]{200}|\\u[dD][89a-fA-F]"
"""Where a number might overflow or a surrogate stand alone, which makes a text no JSON to the broker."""


class NotInSpark(Exception):
    """The rule has no Spark SQL. The text names the expression and says why."""

    def __init__(self, text: str, node: Tree | None = None) -> None:
        super().__init__(text)
        self.place = (1, 1) if node is None else place_of(node)

    @property
    def problem(self) -> Problem:
        """The same with its place in the SQL."""
        return Problem(str(self), "/sql", *self.place)


@dataclass(frozen=True, slots=True)
class SparkStatement:
    """``sql`` reads the view ``records`` and gives the rows; ``irregular_sql`` the records that it cannot answer for.

    ``columns`` are name and type of the rule's columns, as the lake has them.
    """

    sql: str
    irregular_sql: str
    columns: tuple[tuple[str, str], ...]


def to_spark(
    tree: exp.Select,
    sources: Sources,
    functions: Functions,
    payload: FieldType | None = None,
    *,
    rule: str = "",
    node: str = "",
) -> SparkStatement:
    """The statement in Spark SQL.

    Args:
        tree: the rule.
        sources: what it reads.
        functions: with their Spark forms.
        payload: the type of the payload, from the schema bound to the topics.
        rule: its name, for the column ``metadata``.
        node: the name of the broker, for the column ``node``.

    Raises:
        NotInSpark: something in it has no meaning in Spark SQL that is known to be the same.
    """
    return _Transpiler(functions, payload or UNKNOWN, rule, node).statement(tree, sources)


@dataclass(frozen=True, slots=True)
class _Value:
    """An expression of Spark SQL.

    ``kind`` is ``string``, ``boolean``, ``long``, ``float``, ``number`` (JSON numbers of either kind, as double) or
    ``undefined``. ``unsure`` are conditions under which ``sql`` may not be the value; ``unsure_null`` those under which
    its NULL may stand for JSON null and not for undefined.
    """

    sql: str
    kind: str
    may_be_null: bool = False
    unsure: tuple[str, ...] = ()
    unsure_null: tuple[str, ...] = ()

    @property
    def doubts(self) -> tuple[str, ...]:
        """All of them, where null and undefined are to be told apart."""
        return self.unsure + self.unsure_null

    @property
    def doubts_unless_there(self) -> tuple[str, ...]:
        """For operations that fail on what is not there."""
        return (*self.unsure, f"{self.sql} IS NULL") if self.may_be_null else self.unsure


_UNDEFINED: Final = _Value("NULL", "undefined", may_be_null=True)
_COLUMNS: Final = {
    "event": _Value("'message.publish'", "string"),
    "clientid": _Value("coalesce(client_id, '')", "string"),
    "username": _Value("username", "string", may_be_null=True),
    "payload": _Value("_text", "string", unsure=("NOT is_valid_utf8(_text)",)),
    "topic": _Value("topic", "string"),
    "qos": _Value("CAST(qos AS BIGINT)", "long"),
    "flags.retain": _Value("retain", "boolean"),
    "flags.dup": _Value("FALSE", "boolean"),
    "publish_received_at": _Value("unix_millis(ts)", "long"),
    "timestamp": _Value("unix_millis(ts)", "long"),
    "peerhost": _UNDEFINED,
    "peername": _UNDEFINED,
}
_OTHER_COLUMNS: Final = ("id", "pub_props", "client_attrs", "flags", "metadata")

_COMPARISONS: Final[dict[type[Tree], str]] = {
    exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
}  # fmt: skip
_ARITHMETIC: Final[dict[type[Tree], tuple[str, str]]] = {
    exp.Add: ("+", "try_add"), exp.Sub: ("-", "try_subtract"), exp.Mul: ("*", "try_multiply"),
}  # fmt: skip


class _Transpiler:
    def __init__(self, functions: Functions, payload: FieldType, rule: str, node: str) -> None:
        self._functions, self._payload = functions, payload
        self._constants = {"node": node, "metadata.rule_id": rule}
        self._names: dict[str, _Value] = {}
        self._fields = _Fields()

    # The whole

    def statement(self, tree: exp.Select, sources: Sources) -> SparkStatement:
        if not sources.filters:
            raise NotInSpark("it reads events only, and a stream keeps messages")
        if "foreach" in tree.meta:
            raise NotInSpark("FOREACH has no Spark SQL here", tree)
        if tree.args.get("jq") is not None:
            raise NotInSpark("jq runs in the compiled rule only", tree)
        for item in tree.expressions:
            self._field(item)
        _refuse_same_names(self._names)
        where = tree.args.get("where")
        condition = _Value("TRUE", "boolean") if where is None else self._condition(where.this)
        doubts = [*condition.unsure, *(doubt for value in self._names.values() for doubt in value.unsure)]
        statement = self._text(sources, condition, list(dict.fromkeys(doubts)))
        if len(statement.sql) > _MAX_LENGTH:
            raise NotInSpark(f"the statement would have more than {_MAX_LENGTH} characters")
        return statement

    def _text(self, sources: Sources, condition: _Value, doubts: Sequence[str]) -> SparkStatement:
        """Three steps, innermost first: the payload as JSON, what is irregular, and the rows."""
        doubts = [*self._fields.doubts(), *doubts]
        irregular = f"coalesce({_any(doubts)}, FALSE)" if doubts else "FALSE"
        topics = " OR ".join(f"topic RLIKE {_string(_topic_pattern(one.levels))}" for one in sources.filters)
        source = (
            f"FROM (\n  SELECT *, {irregular} AS {IRREGULAR}\n  FROM (\n{self._fields.decoded()}\n  )\n)\n"
            f"WHERE ({topics})\n  AND"
        )
        rows = [f"{column} AS {name}" for name, column in _PLACE.items()]
        rows += [f"IF({IRREGULAR}, NULL, {value.sql}) AS {_name(name)}" for name, value in self._names.items()]
        kinds = tuple((name, _COLUMN_TYPES.get(value.kind, "json")) for name, value in self._names.items())
        return SparkStatement(
            f"SELECT\n  {_LISTED.join([*rows, IRREGULAR])}\n{source} ({IRREGULAR} OR {condition.sql})",
            f"SELECT {', '.join(_RECORD)}\n{source} {IRREGULAR}",
            kinds,
        )

    def _field(self, item: Tree) -> None:
        if isinstance(item, exp.Star):
            raise NotInSpark("'*' selects maps (flags, pub_props), which are compared as text; name the columns", item)
        value = self._expression(item.this if isinstance(item, exp.Alias) else item)
        self._names[self._target(item)] = value

    def _target(self, item: Tree) -> str:
        if isinstance(item, exp.Alias) and isinstance(item.args["alias"], exp.Identifier):
            name: str = item.args["alias"].name
        else:
            path = path_of(item.args["alias"]) if isinstance(item, exp.Alias) else path_of(item)
            if path is not None and path.steps:
                raise NotInSpark(f"{path.text} is written into a map; give it a name with AS", item)
            name = path.root if path is not None else _implicit_name(item)
        if name == "payload" and path_of(item) != Path("payload"):
            raise NotInSpark("a column called payload hides the message's own", item)
        return name

    # Expressions

    def _expression(self, node: Tree) -> _Value:
        node = bare(node)
        path = path_of(node)
        if path is not None:
            return self._path(path, node)
        if isinstance(node, exp.Literal):
            return _literal(node)
        if isinstance(node, exp.Boolean):
            return _Value(str(bool(node.this)).upper(), "boolean")
        if isinstance(node, exp.Null):
            return _UNDEFINED
        if type(node) in _ARITHMETIC:
            return self._arithmetic(node)
        if isinstance(node, exp.Div):
            return self._divide(node)
        if isinstance(node, (exp.IntDiv, exp.Mod)):
            return self._call_of("div" if isinstance(node, exp.IntDiv) else "mod", [node.this, node.expression], node)
        if isinstance(node, exp.DPipe):
            return self._joined(node)
        if isinstance(node, exp.Neg):
            return self._negative(node)
        if isinstance(node, exp.Anonymous):
            return self._function(node)
        if isinstance(node, exp.Case):
            return self._case(node)
        if type(node) in _CONDITIONS:
            return self._condition(node)
        raise NotInSpark(f"{_shown(node)}: arrays and maps are made by the compiled rule only", node)

    def _path(self, path: Path, node: Tree) -> _Value:
        named = self._names.get(path.root)
        if named is not None and (path.root != "payload" or not path.steps):
            if path.steps or path.range:
                raise NotInSpark(f"{path.text} goes into a column that the rule made itself", node)
            if named.may_be_null and path.root in _COLUMNS:
                raise NotInSpark(f"where {path.root} is undefined, it is the message's own {path.root}", node)
            return named
        if path.range is not None or not all(isinstance(step, str) for step in path.steps):
            raise NotInSpark(f"{_shown(node)}: elements of arrays are read by the compiled rule only", node)
        if path.root == "payload" and path.steps:
            return self._payload_path(path, node)
        if path.text in self._constants:
            return _Value(_string(self._constants[path.text]), "string")
        if path.root in _OTHER_COLUMNS and path.text not in _COLUMNS:
            raise NotInSpark(f"{path.text}: streams do not keep it in a form that Spark SQL reads the same", node)
        if path.text not in _COLUMNS and path.root in _COLUMNS:
            raise NotInSpark(f"{path.text} goes into text that may be JSON", node)
        return _COLUMNS.get(path.text, _UNDEFINED)

    def _payload_path(self, path: Path, node: Tree) -> _Value:
        kind = self._payload
        if kind.coding != "json":
            raise NotInSpark(f"{path.text}: the payload is {kind.coding}, which the compiled rule decodes", node)
        for step in path.steps:
            kind = kind.fields.get(step, UNKNOWN) if kind.name == "struct" else UNKNOWN
        if kind.name not in _FIELD_TYPES:
            why = (
                "no schema bound to the topics says its type"
                if kind.name == "unknown"
                else f"it is of type {kind.name}"
            )
            raise NotInSpark(f"{path.text}: {why}", node)
        place = self._fields.read(path, kind.name, node)
        if kind.name == "string":
            value = f"try_variant_get({place}, '$', 'string')"
            other = f"schema_of_variant({place}) NOT IN ('STRING', 'VOID')"
            return _Value(value, "string", True, (other,), (f"is_variant_null({place})",))
        # A null must be spelled so somewhere in the text.
        unsure_null = (f"({place} IS NULL AND contains(_text, 'null'))",)
        unsure = (f"NOT ({place} {EXACT})",) if kind.name == "double" else ()
        return _Value(place, _OF_FIELD[kind.name], True, unsure, unsure_null)

    def _arithmetic(self, node: Tree) -> _Value:
        sign, exact = _ARITHMETIC[type(node)]
        left, right = self._expression(node.this), self._expression(node.expression)
        if sign == "+" and "string" in (left.kind, right.kind):
            joined = self._joined(node)
            return _Value(joined.sql, "string", False, joined.unsure + _no_string(left, right))
        _need_numbers(node, left, right)
        doubts = left.doubts_unless_there + right.doubts_unless_there
        if left.kind == right.kind == "long":
            sql = f"{exact}({left.sql}, {right.sql})"
            return _Value(sql, "long", False, (*doubts, f"{sql} IS NULL"))
        sql = f"({_double(left)} {sign} {_double(right)})"
        return self._float_result(sql, left, right, doubts)

    def _float_result(self, sql: str, left: _Value, right: _Value, doubts: tuple[str, ...]) -> _Value:
        """A sum or product as double: exact where both may be integers, finite where one is a float."""
        doubts += _inexact(left) + _inexact(right)
        if "float" in (left.kind, right.kind):
            return _Value(sql, "float", False, (*doubts, f"NOT (abs({sql}) < double('Infinity'))"))
        return _Value(sql, "number", False, (*doubts, f"NOT ({sql} {EXACT})"))

    def _divide(self, node: Tree) -> _Value:
        left, right = self._expression(node.this), self._expression(node.expression)
        _need_numbers(node, left, right)
        sql = f"try_divide({_double(left)}, {_double(right)})"
        doubts = left.doubts_unless_there + right.doubts_unless_there + _inexact(left) + _inexact(right)
        return _Value(sql, "float", False, (*doubts, f"coalesce(NOT (abs({sql}) < double('Infinity')), TRUE)"))

    def _negative(self, node: exp.Neg) -> _Value:
        inner = self._expression(node.this)
        _need_numbers(node, inner)
        if inner.kind != "long":
            return _Value(f"(- {inner.sql})", inner.kind, False, inner.doubts_unless_there)
        if isinstance(bare(node.this), exp.Literal):
            return _Value(f"(-{inner.sql})", "long")
        sql = f"try_subtract(0L, {inner.sql})"
        return _Value(sql, "long", False, (*inner.doubts_unless_there, f"{sql} IS NULL"))

    def _joined(self, node: Tree) -> _Value:
        texts = [self._printed(side) for side in (node.this, node.expression)]
        sql = f"concat({texts[0].sql}, {texts[1].sql})"
        return _Value(sql, "string", False, (*texts[0].unsure, *texts[1].unsure, f"length({sql}) > 1000000"))

    def _printed(self, node: Tree) -> _Value:
        """The text of a value; that of what is not there is a word."""
        value = self._expression(node)
        if value.kind in ("float", "number"):
            raise NotInSpark(f"{_shown(node)}: Spark writes the digits of a float differently", node)
        if value.kind == "undefined":
            return _Value("'undefined'", "string")
        sql = value.sql if value.kind == "string" else f"CAST({value.sql} AS STRING)"
        return _Value(f"coalesce({sql}, 'undefined')" if value.may_be_null else sql, "string", False, value.doubts)

    def _case(self, node: exp.Case) -> _Value:
        subject = None if node.this is None else self._expression(node.this)
        branches: list[str] = []
        results: list[_Value] = []
        doubts: tuple[str, ...] = () if subject is None else subject.doubts
        for branch in node.args["ifs"]:
            test = self._when(branch.this, subject)
            result = self._expression(branch.args["true"])
            doubts += (*test.unsure, *(f"({test.sql} AND {doubt})" for doubt in result.unsure))
            results.append(result)
            branches.append(test.sql)
        default = node.args.get("default")
        otherwise = _UNDEFINED if default is None else self._expression(default)
        doubts += otherwise.unsure
        kind = _common_kind(node, [*results, otherwise])
        whens = " ".join(
            f"WHEN {test} THEN {_as(result, kind)}" for test, result in zip(branches, results, strict=True)
        )
        nulls = tuple(doubt for result in (*results, otherwise) for doubt in result.unsure_null)
        may_be_null = any(result.may_be_null for result in (*results, otherwise))
        return _Value(f"CASE {whens} ELSE {_as(otherwise, kind)} END", kind, may_be_null, doubts, nulls)

    def _when(self, node: Tree, subject: _Value | None) -> _Value:
        if subject is None:
            value = self._truth(node)
            return _Value(value.sql, "boolean", False, value.unsure)
        return self._identical(subject, self._expression(node), node)

    # Conditions

    def _condition(self, node: Tree) -> _Value:
        """A boolean that is never NULL where the record is regular."""
        node = bare(node)
        if type(node) in _CONDITIONS:
            return _CONDITIONS[type(node)](self, node)
        value = self._truth(node)
        if isinstance(node, exp.Anonymous) and value.may_be_null:
            return _Value(value.sql, "boolean", False, value.doubts_unless_there)
        return value

    def _truth(self, node: Tree) -> _Value:
        """Whether an expression is true; what is not there is not."""
        if type(bare(node)) in _CONDITIONS:
            return self._condition(node)
        value = self._expression(node)
        if value.kind == "undefined":
            return _Value("FALSE", "boolean")
        if value.kind != "boolean":
            raise NotInSpark(f"{_shown(node)} is used as a condition and is a {value.kind}", node)
        sql = f"coalesce({value.sql}, FALSE)" if value.may_be_null else value.sql
        return _Value(sql, "boolean", False, value.unsure)

    def _comparison(self, node: Tree) -> _Value:
        return self._compared(
            _COMPARISONS[type(node)], self._expression(node.this), self._expression(node.expression), node
        )

    def _compared(self, sign: str, left: _Value, right: _Value, node: Tree) -> _Value:
        left, right, doubts = _comparable(left, right, node)
        doubts += left.doubts + right.doubts
        one, other = left.sql, right.sql
        if not (left.may_be_null or right.may_be_null):
            return _Value(f"({one} {sign} {other})", "boolean", False, doubts)
        if sign == "=":
            return _Value(f"({one} <=> {other})", "boolean", False, doubts)
        if sign in ("<=", ">=") and left.may_be_null and right.may_be_null:
            return _Value(f"coalesce({one} {sign} {other}, {one} <=> {other})", "boolean", False, doubts)
        return _Value(f"coalesce({one} {sign} {other}, FALSE)", "boolean", False, doubts)

    def _and(self, node: Tree) -> _Value:
        left, right = self._condition(node.this), self._condition(node.expression)
        doubts = (*left.unsure, *(f"({left.sql} AND {doubt})" for doubt in right.unsure))
        return _Value(f"({left.sql} AND {right.sql})", "boolean", False, doubts)

    def _or(self, node: Tree) -> _Value:
        left, right = self._condition(node.this), self._condition(node.expression)
        doubts = (*left.unsure, *(f"(NOT {left.sql} AND {doubt})" for doubt in right.unsure))
        return _Value(f"({left.sql} OR {right.sql})", "boolean", False, doubts)

    def _not(self, node: Tree) -> _Value:
        inner = bare(node.this)
        if type(inner) in _CONDITIONS:
            value = self._condition(inner)
            return _Value(f"(NOT {value.sql})", "boolean", False, value.unsure)
        value = self._expression(inner)
        if value.kind != "boolean":
            return _Value("FALSE", "boolean", False, value.unsure)
        return _Value(f"coalesce(NOT {value.sql}, FALSE)", "boolean", False, value.unsure)

    def _in(self, node: Tree) -> _Value:
        value = self._expression(node.this)
        found = [self._identical(value, self._expression(item), node) for item in node.expressions]
        doubts = value.doubts + tuple(doubt for one in found for doubt in one.unsure)
        return _Value(f"({' OR '.join(one.sql for one in found)})", "boolean", False, doubts)

    def _identical(self, value: _Value, other: _Value, node: Tree) -> _Value:
        """Equality of IN and CASE: of one type, and undefined is undefined."""
        doubts = other.doubts
        kinds = {value.kind, other.kind}
        if "undefined" in kinds or (len(kinds) == 1 and "number" not in kinds):
            return _Value(f"({value.sql} <=> {other.sql})", "boolean", False, doubts)
        if "number" in kinds and kinds <= {*_NUMERIC}:
            raise NotInSpark(
                f"{_shown(node)}: an integer is no float here, and the schema's number may be either", node
            )
        both = f"({value.sql} IS NULL AND {other.sql} IS NULL)" if value.may_be_null and other.may_be_null else "FALSE"
        return _Value(both, "boolean", False, doubts)

    def _is_null(self, node: Tree) -> _Value:
        value = self._expression(node.this)
        return _Value(f"({value.sql} IS NULL)" if value.may_be_null else "FALSE", "boolean", False, value.unsure)

    def _between(self, node: Tree) -> _Value:
        value = self._expression(node.this)
        low = self._compared(">=", value, self._expression(node.args["low"]), node)
        high = self._compared("<=", value, self._expression(node.args["high"]), node)
        doubts = (*low.unsure, *(f"({low.sql} AND {doubt})" for doubt in high.unsure))
        return _Value(f"({low.sql} AND {high.sql})", "boolean", False, doubts)

    def _like(self, node: Tree) -> _Value:
        test, escape = (node.this, node.expression.name) if isinstance(node, exp.Escape) else (node, like.ESCAPE)
        value, pattern = self._expression(test.this), bare(test.expression)
        if not isinstance(pattern, exp.Literal) or not pattern.is_string or escape in pattern.name:
            raise NotInSpark("LIKE is the same in Spark for a pattern that is a literal without escape signs", node)
        if value.kind != "string":
            raise NotInSpark(f"{_shown(test.this)} is compared by LIKE and is a {value.kind}", node)
        escaped = pattern.name.replace("\\", "\\\\")
        return _Value(f"coalesce({value.sql} LIKE {_string(escaped)}, FALSE)", "boolean", False, value.unsure)

    # Functions

    def _function(self, node: exp.Anonymous) -> _Value:
        name: str = node.name
        if name == "null":
            return _UNDEFINED
        if name == "topic_match":
            return self._topic_match(node)
        if name in ("is_null_var", "is_not_null_var"):
            value = self._expression(node.expressions[0])
            test = "IS NULL" if name == "is_null_var" else "IS NOT NULL"
            return _Value(f"({value.sql} {test})", "boolean", False, value.unsure)
        return self._call_of(name, node.expressions, node)

    def _call_of(self, name: str, arguments: Sequence[Tree], node: Tree) -> _Value:
        found = self._functions.get(name)
        if found is None or not found.spark:
            raise NotInSpark(f"{name} has no Spark form", node)
        given: list[Tree | _Value] = list(arguments)
        if found.column is not None:
            given.insert(0, self._path(Path(found.column), node))
        values = [one if isinstance(one, _Value) else self._expression(one) for one in given]
        for form in found.spark:
            if len(form.takes) == len(given) and all(map(_takes, form.takes, values, given)):
                return self._formed(form, values, given)
        kinds = ", ".join(value.kind for value in values)
        raise NotInSpark(f"{name} has no Spark form for ({kinds})", node)

    def _formed(self, form: SparkForm, values: Sequence[_Value], given: Sequence[Tree | _Value]) -> _Value:
        arguments: list[str] = []
        doubts: tuple[str, ...] = ()
        for takes, value, node in zip(form.takes, values, given, strict=True):
            if takes == "printable":
                value = value if isinstance(node, _Value) else self._printed(node)
            elif takes == "double":
                value = _Value(_double(value), "float", value.may_be_null, value.unsure, value.unsure_null)
            doubts += value.doubts if form.takes_undefined else value.doubts_unless_there
            arguments.append(value.sql)
        if form.unless:
            doubts += (f"({form.unless.format(*arguments)})",)
        may_be_null = form.takes_undefined and form.gives != "boolean" and all(value.may_be_null for value in values)
        if "printable" in form.takes:
            may_be_null = False
        return _Value(form.value.format(*arguments), form.gives, may_be_null, doubts)

    def _topic_match(self, node: exp.Anonymous) -> _Value:
        topic, topic_filter = self._expression(node.expressions[0]), bare(node.expressions[1])
        if not isinstance(topic_filter, exp.Literal) or not topic_filter.is_string or topic.kind != "string":
            raise NotInSpark("=~ is the same in Spark for a text and a filter that is a literal", node)
        levels = tuple(topic_filter.name.split("/"))
        if "#" in levels[:-1]:
            raise NotInSpark(f"'{topic_filter.name}' is no topic filter: '#' stands before its last level", node)
        pattern = _string(_topic_pattern(levels))
        return _Value(f"coalesce({topic.sql} RLIKE {pattern}, FALSE)", "boolean", False, topic.doubts)


_Condition = Callable[[_Transpiler, Any], _Value]
_CONDITIONS: Final[dict[type[Tree], _Condition]] = {
    **dict.fromkeys(_COMPARISONS, _Transpiler._comparison),
    exp.And: _Transpiler._and,
    exp.Or: _Transpiler._or,
    exp.Not: _Transpiler._not,
    exp.In: _Transpiler._in,
    exp.Is: _Transpiler._is_null,
    exp.Between: _Transpiler._between,
    exp.Like: _Transpiler._like,
    exp.Escape: _Transpiler._like,
}  # fmt: skip


# The payload's fields


@dataclass(slots=True)
class _Fields:
    """The fields of the payload that a rule reads, as a tree of names; leaves are types of Spark."""

    tree: dict[str, Any] = field(default_factory=dict)

    def read(self, path: Path, kind: str, node: Tree) -> str:
        """Spark SQL of the field."""
        members, names = self.tree, path.steps
        for name in names[:-1]:
            members = _member(members, name, {}, path, node)
        _member(members, names[-1], _FIELD_TYPES[kind], path, node)
        return ".".join(["_payload", *map(_name, names)])

    def decoded(self) -> str:
        """The query that reads them.

        The payload is put into an array, before an element whose key no payload has: only when the array has those
        two elements was the payload one JSON value, with nothing after it.
        """
        text = f"SELECT *, CAST(payload AS STRING) AS _text FROM {RECORDS}"
        if not self.tree:
            return f"    {text}"
        items = f"_json.{_name(_NONCE)}"
        whole = (
            f"_json._corrupt IS NULL AND size({items}) = 2 AND get({items}, 0) IS NOT NULL"
            f" AND get({items}, 1).{_name(_NONCE)} = 1"
        )
        return (
            f"    SELECT *, get({items}, 0) AS _payload,\n      coalesce({whole}, FALSE) AS _is_json\n"
            f"    FROM (\n      SELECT *, {self._from_json()} AS _json\n      FROM ({text})\n    )"
        )

    def _from_json(self) -> str:
        members = ", ".join([_ddl(self.tree), f"{_name(_NONCE)}: INT"])
        schema = f"{_name(_NONCE)} ARRAY<STRUCT<{members}>>, _corrupt STRING"
        options = {
            "mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_corrupt", "allowSingleQuotes": "false",
            "allowNonNumericNumbers": "false",
        }  # fmt: skip
        listed = ", ".join(_string(text) for pair in options.items() for text in pair)
        begin, end = _string(f'{{"{_NONCE}":['), _string(f',{{"{_NONCE}":1}}]}}')
        return f"from_json(concat({begin}, _text, {end}),\n        {_string(schema)},\n        map({listed}))"

    def doubts(self) -> list[str]:
        """Where the payload is not JSON of the schema's types, or Spark and the broker might read it differently."""
        if not self.tree:
            return []
        depth = "length(_text) - length(translate(_text, '[{', ''))"
        return [
            "NOT _is_json",
            "NOT is_valid_utf8(_text)",
            f"contains(_text, {_string(_NONCE)})",
            f"_text RLIKE {_string(_BEYOND_JSON)}",
            f"(length(_text) > 256 AND {depth} > 100)",
        ]


def _member(members: dict[str, Any], name: str, new: Any, path: Path, node: Tree) -> Any:
    for other in members:
        if other != name and other.lower() == name.lower():
            raise NotInSpark(f"{path.text}: Spark does not tell {name} from {other}", node)
    found = members.setdefault(name, new)
    if isinstance(found, dict) != isinstance(new, dict):
        raise NotInSpark(f"{path.text} is read as a value and as a map", node)
    return found


def _ddl(members: dict[str, Any]) -> str:
    return ", ".join(
        f"{_name(name)}: {f'STRUCT<{_ddl(kind)}>' if isinstance(kind, dict) else kind}"
        for name, kind in members.items()
    )


# Pieces


def _literal(node: exp.Literal) -> _Value:
    if node.is_string:
        return _Value(_string(node.name), "string")
    if not node.name.isdigit():
        return _Value(f"double('{float(node.name)!r}')", "float")
    number = int(node.name) if len(node.name) < 20 else 2**63
    if number >= 2**63:
        raise NotInSpark(f"{node.name} has more than 64 bits", node)
    return _Value(f"{number}L", "long")


def _takes(takes: str, value: _Value, node: Tree | _Value) -> bool:
    if takes.startswith("'"):
        literal = bare(node) if not isinstance(node, _Value) else None
        return isinstance(literal, exp.Literal) and literal.is_string and literal.name == takes[1:-1]
    if takes == "printable":
        return value.kind in ("string", "long", "boolean")
    return value.kind == takes or (takes == "double" and value.kind in _NUMERIC)


def _no_string(*values: _Value) -> tuple[str, ...]:
    """Where ``+`` finds no string on either side, since those that may be one are not there."""
    strings = [value for value in values if value.kind == "string"]
    if not all(value.may_be_null for value in strings):
        return ()
    return (f"({' AND '.join(f'{value.sql} IS NULL' for value in strings)})",)


def _need_numbers(node: Tree, *values: _Value) -> None:
    for value in values:
        if value.kind not in _NUMERIC:
            raise NotInSpark(f"{_shown(node)} fails for a value that is {value.kind}", node)


def _double(value: _Value) -> str:
    return f"CAST({value.sql} AS DOUBLE)" if value.kind == "long" else value.sql


def _inexact(value: _Value) -> tuple[str, ...]:
    """Where an integer is not exact as double. Literals are looked at here."""
    if value.kind != "long" or (value.sql.removesuffix("L").isdigit() and int(value.sql[:-1]) < 2**53):
        return ()
    return (f"NOT ({value.sql} {EXACT})",)


def _comparable(left: _Value, right: _Value, node: Tree) -> tuple[_Value, _Value, tuple[str, ...]]:
    """Both sides as one type of Spark, and where that is not exact."""
    kinds = {left.kind, right.kind}
    if len(kinds) == 1 or "undefined" in kinds:
        return left, right, ()
    if kinds <= {*_NUMERIC}:
        return _as_double(left), _as_double(right), _inexact(left) + _inexact(right)
    if kinds == {"boolean", "string"}:
        return _as_text(left), _as_text(right), ()
    raise NotInSpark(f"{_shown(node)} compares a {left.kind} with a {right.kind}", node)


def _as_double(value: _Value) -> _Value:
    return _Value(_double(value), "float", value.may_be_null, value.unsure, value.unsure_null)


def _as_text(value: _Value) -> _Value:
    sql = value.sql if value.kind == "string" else f"CAST({value.sql} AS STRING)"
    return _Value(sql, "string", value.may_be_null, value.unsure, value.unsure_null)


def _common_kind(node: Tree, values: Sequence[_Value]) -> str:
    kinds = {value.kind for value in values} - {"undefined"}
    if len(kinds) <= 1:
        return kinds.pop() if kinds else "undefined"
    if kinds <= {*_NUMERIC}:
        if "long" in kinds:
            raise NotInSpark("CASE gives integers and floats, which have one type in Spark", node)
        return "number"
    raise NotInSpark(f"CASE gives values of different types: {', '.join(sorted(kinds))}", node)


def _as(value: _Value, kind: str) -> str:
    return "NULL" if value.kind == "undefined" else value.sql


def _refuse_same_names(names: Sequence[str] | dict[str, _Value]) -> None:
    seen = {name.lower() for name in (*_PLACE, IRREGULAR)}
    for name in names:
        if name.lower() in seen:
            raise NotInSpark(f"Spark does not tell the column {name} from another one of the rule")
        seen.add(name.lower())


def _topic_pattern(levels: Sequence[str]) -> str:
    """The regular expression of a topic filter: MQTT 4.7.1, 4.7.2."""
    start = r"(?!\$)" if levels[0] in ("+", "#") else ""
    pieces: list[str] = []
    for position, level in enumerate(levels):
        before = "/" if position else ""
        if level == "#":
            pieces.append("(/.*)?" if position else ".*")
        else:
            pieces.append(before + ("[^/]*" if level == "+" else _literal_pattern(level)))
    return rf"(?s)\A{start}{''.join(pieces)}\z"


def _literal_pattern(text: str) -> str:
    return re.sub(r"[^0-9A-Za-z_ ]", lambda match: f"\\x{{{ord(match[0]):x}}}", text)


def _any(conditions: Sequence[str]) -> str:
    return "\n      OR ".join(conditions)


def _implicit_name(node: Tree) -> str:
    return node.name if isinstance(node, exp.Literal) and node.is_string else text_of_tree(node)


def _shown(node: Tree) -> str:
    text = text_of_tree(node)
    return text if len(text) <= 60 else text[:60] + "..."


def _string(text: str) -> str:
    return exp.Literal.string(text).sql("spark")


def _name(name: str) -> str:
    return exp.to_identifier(name, quoted=True).sql("spark")
