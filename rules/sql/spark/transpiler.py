"""A tree to one statement of Spark SQL, for the rules whose meaning there is known to be the same.

Live, a value may be undefined, JSON null, or of another type than the schema says, and an expression may fail. Spark
has NULL, and fails the whole query. So the statement marks each record that it cannot answer for: in column
``_irregular`` it is true for payloads that are not what the schema says (checked to the last byte: Spark alone would
take ``{"a":1} and more``), for null where null and undefined differ, and wherever an operation would fail or go beyond
what both sides compute exactly. Those records are left to the compiled rule (``bridges.spark.rule_frame``); of all
others the statement gives what the compiled rule gives, which tests hold against each other in a real Spark.

What cannot be said so is refused with a sentence: the rule then runs compiled. JSON is read by ``from_json`` with the
fields that the rule names, numbers as DOUBLE or BIGINT, strings as VARIANT, since a STRING field would take anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from broker.core.schema import UNKNOWN, FieldType
from rules.functions.registry import Functions
from rules.functions.spark_form import EXACT, SparkForm
from rules.sql import like
from rules.sql.operators import ARITHMETIC, COMPARISONS
from rules.sql.sources import Sources
from rules.sql.spark.values import (
    FIELD_TYPES,
    MAX_LENGTH,
    NUMERIC,
    UNDEFINED,
    Fields,
    NotInSpark,
    Value,
    common_kind,
    comparable,
    double,
    fits,
    inexact,
    literal,
    literal_pattern,
    need_numbers,
    no_string,
    quoted,
    quoted_name,
    shown,
)
from rules.sql.syntax.printer import target_of
from rules.sql.syntax.tree import OPPOSITES, TESTS, Path, Tree, bare, path_of

IRREGULAR: Final = "_irregular"
_PLACE: Final = {"_shard": "shard", "_offset": "offset", "_published_at": "ts", "_topic": "topic"}
_RECORD: Final = (
    "shard", "offset", "ts", "topic", "payload", "qos", "retain", "client_id", "username", "properties", "rule",
)  # fmt: skip
_LISTED: Final = ",\n  "
_OR: Final = "\n      OR "
_OF_FIELD: Final = {"boolean": "boolean", "long": "long", "double": "number", "string": "string"}
_COLUMN_TYPES: Final = {
    "boolean": "boolean",
    "long": "long",
    "number": "double",
    "float": "double",
    "string": "string",
}
_COLUMNS: Final = {
    "event": Value("'message.publish'", "string"),
    "clientid": Value("coalesce(client_id, '')", "string"),
    "username": Value("username", "string", may_be_null=True),
    "payload": Value("_text", "string", unsure=("NOT is_valid_utf8(_text)",)),
    "topic": Value("topic", "string"),
    "qos": Value("CAST(qos AS BIGINT)", "long"),
    "flags.retain": Value("retain", "boolean"),
    "flags.dup": Value("FALSE", "boolean"),
    "publish_received_at": Value("unix_millis(ts)", "long"),
    "timestamp": Value("unix_millis(ts)", "long"),
    "peerhost": UNDEFINED,
    "peername": UNDEFINED,
}
_OTHER_COLUMNS: Final = ("id", "pub_props", "client_attrs", "flags", "metadata")


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


class _Transpiler:
    def __init__(self, functions: Functions, payload: FieldType, rule: str, node: str) -> None:
        self._functions = functions
        self._payload = payload
        self._constants = {"node": node, "metadata.rule_id": rule}
        self._names: dict[str, Value] = {}
        self._fields = Fields()

    # The whole

    def statement(self, tree: exp.Select, sources: Sources) -> SparkStatement:
        if not sources.filters:
            raise NotInSpark("it reads events only, and a stream keeps messages")
        if "foreach" in tree.args:
            raise NotInSpark("FOREACH has no Spark SQL here", tree)
        if tree.args.get("jq") is not None:
            raise NotInSpark("jq runs in the compiled rule only", tree)
        for item in tree.expressions:
            self._field(item)
        _refuse_same_names(self._names)
        where = tree.args.get("where")
        condition = Value("TRUE", "boolean") if where is None else self._condition(where.this)
        doubts = [
            *condition.unsure,
            *(doubt for value in self._names.values() for doubt in value.unsure),
        ]
        statement = self._text(sources, condition, list(dict.fromkeys(doubts)))
        if len(statement.sql) > MAX_LENGTH:
            raise NotInSpark(f"the statement would have more than {MAX_LENGTH} characters")
        return statement

    def _text(self, sources: Sources, condition: Value, doubts: Sequence[str]) -> SparkStatement:
        """Three steps, innermost first: the payload as JSON, what is irregular, and the rows."""
        doubts = [*self._fields.doubts(), *doubts]
        irregular = f"coalesce({_OR.join(doubts)}, FALSE)" if doubts else "FALSE"
        topics = " OR ".join(
            f"topic RLIKE {quoted(_topic_pattern(topic_filter.levels))}"
            for topic_filter in sources.filters
        )
        source = (
            f"FROM (\n  SELECT *, {irregular} AS {IRREGULAR}\n  FROM (\n{self._fields.decoded()}\n  )\n)\n"
            f"WHERE ({topics})\n  AND"
        )
        rows = [f"{column} AS {name}" for name, column in _PLACE.items()]
        rows += [
            f"IF({IRREGULAR}, NULL, {value.sql}) AS {quoted_name(name)}"
            for name, value in self._names.items()
        ]
        kinds = tuple(
            (name, _COLUMN_TYPES.get(value.kind, "json")) for name, value in self._names.items()
        )
        return SparkStatement(
            f"SELECT\n  {_LISTED.join([*rows, IRREGULAR])}\n{source} ({IRREGULAR} OR {condition.sql})",
            f"SELECT {', '.join(_RECORD)}\n{source} {IRREGULAR}",
            kinds,
        )

    def _field(self, item: Tree) -> None:
        if isinstance(item, exp.Star):
            raise NotInSpark(
                "'*' selects maps (flags, pub_props), which are compared as text; name the columns",
                item,
            )
        value = self._expression(item.this if isinstance(item, exp.Alias) else item)
        self._names[self._target(item)] = value

    def _target(self, item: Tree) -> str:
        path = target_of(item)
        if path.steps:
            raise NotInSpark(f"{path.text} is written into a map; give it a name with AS", item)
        if path.root == "payload" and path_of(item) != path:
            raise NotInSpark("a column called payload hides the message's own", item)
        return path.root

    # Expressions

    def _expression(self, node: Tree) -> Value:
        node = bare(node)
        path = path_of(node)
        if path is not None:
            return self._path(path, node)
        match node:
            case exp.Literal():
                return literal(node)
            case exp.Boolean():
                return Value(str(bool(node.this)).upper(), "boolean")
            case exp.Null():
                return UNDEFINED
            case exp.Add() | exp.Sub() | exp.Mul():
                return self._arithmetic(node)
            case exp.Div():
                return self._divide(node)
            case exp.IntDiv() | exp.Mod():
                name = "div" if isinstance(node, exp.IntDiv) else "mod"
                return self._call_of(name, [node.this, node.expression], node)
            case exp.DPipe():
                return self._joined(node)
            case exp.Neg():
                return self._negative(node)
            case exp.Anonymous():
                return self._function(node)
            case exp.Case():
                return self._case(node)
        if isinstance(node, TESTS):
            return self._test(node)
        raise NotInSpark(f"{shown(node)}: arrays and maps are made by the compiled rule only", node)

    def _path(self, path: Path, node: Tree) -> Value:
        named = self._names.get(path.root)
        if named is not None and (path.root != "payload" or not path.steps):
            if path.steps or path.range:
                raise NotInSpark(f"{path.text} goes into a column that the rule made itself", node)
            if named.may_be_null and path.root in _COLUMNS:
                raise NotInSpark(
                    f"where {path.root} is undefined, it is the message's own {path.root}", node
                )
            return named
        if path.range is not None or not all(isinstance(step, str) for step in path.steps):
            raise NotInSpark(
                f"{shown(node)}: elements of arrays are read by the compiled rule only", node
            )
        if path.root == "payload" and path.steps:
            return self._payload_path(path, node)
        if path.text in self._constants:
            return Value(quoted(self._constants[path.text]), "string")
        if path.root in _OTHER_COLUMNS and path.text not in _COLUMNS:
            raise NotInSpark(
                f"{path.text}: streams do not keep it in a form that Spark SQL reads the same", node
            )
        if path.text not in _COLUMNS and path.root in _COLUMNS:
            raise NotInSpark(f"{path.text} goes into text that may be JSON", node)
        return _COLUMNS.get(path.text, UNDEFINED)

    def _payload_path(self, path: Path, node: Tree) -> Value:
        kind = self._payload
        if kind.coding != "json":
            raise NotInSpark(
                f"{path.text}: the payload is {kind.coding}, which the compiled rule decodes", node
            )
        for step in path.steps:
            kind = kind.fields.get(step, UNKNOWN) if kind.name == "struct" else UNKNOWN
        if kind.name not in FIELD_TYPES:
            reason = (
                "no schema bound to the topics says its type"
                if kind.name == "unknown"
                else f"it is of type {kind.name}"
            )
            raise NotInSpark(f"{path.text}: {reason}", node)
        place = self._fields.read(path, kind.name, node)
        if kind.name == "string":
            value = f"try_variant_get({place}, '$', 'string')"
            other = f"schema_of_variant({place}) NOT IN ('STRING', 'VOID')"
            return Value(value, "string", True, (other,), (f"is_variant_null({place})",))
        # A null must be spelled so somewhere in the text.
        unsure_null = (f"({place} IS NULL AND contains(_text, 'null'))",)
        unsure = (f"NOT ({place} {EXACT})",) if kind.name == "double" else ()
        return Value(place, _OF_FIELD[kind.name], True, unsure, unsure_null)

    def _arithmetic(self, node: Tree) -> Value:
        operator = ARITHMETIC[type(node)]
        sign = operator.sql
        left = self._expression(node.this)
        right = self._expression(node.expression)
        if sign == "+" and "string" in (left.kind, right.kind):
            joined = self._joined(node)
            return Value(joined.sql, "string", False, joined.unsure + no_string(left, right))
        need_numbers(node, left, right)
        doubts = left.doubts_unless_there + right.doubts_unless_there
        if left.kind == right.kind == "long":
            sql = f"try_{operator.function}({left.sql}, {right.sql})"
            return Value(sql, "long", False, (*doubts, f"{sql} IS NULL"))
        sql = f"({double(left)} {sign} {double(right)})"
        return self._float_result(sql, left, right, doubts)

    def _float_result(self, sql: str, left: Value, right: Value, doubts: tuple[str, ...]) -> Value:
        """A sum or product as double: exact where both may be integers, finite where one is a float."""
        doubts += inexact(left) + inexact(right)
        if "float" in (left.kind, right.kind):
            return Value(sql, "float", False, (*doubts, f"NOT (abs({sql}) < double('Infinity'))"))
        return Value(sql, "number", False, (*doubts, f"NOT ({sql} {EXACT})"))

    def _divide(self, node: Tree) -> Value:
        left = self._expression(node.this)
        right = self._expression(node.expression)
        need_numbers(node, left, right)
        sql = f"try_divide({double(left)}, {double(right)})"
        doubts = (
            left.doubts_unless_there + right.doubts_unless_there + inexact(left) + inexact(right)
        )
        return Value(
            sql, "float", False, (*doubts, f"coalesce(NOT (abs({sql}) < double('Infinity')), TRUE)")
        )

    def _negative(self, node: exp.Neg) -> Value:
        inner = self._expression(node.this)
        need_numbers(node, inner)
        if inner.kind != "long":
            return Value(f"(- {inner.sql})", inner.kind, False, inner.doubts_unless_there)
        if isinstance(bare(node.this), exp.Literal):
            return Value(f"(-{inner.sql})", "long")
        sql = f"try_subtract(0L, {inner.sql})"
        return Value(sql, "long", False, (*inner.doubts_unless_there, f"{sql} IS NULL"))

    def _joined(self, node: Tree) -> Value:
        texts = [self._printed(side) for side in (node.this, node.expression)]
        sql = f"concat({texts[0].sql}, {texts[1].sql})"
        return Value(
            sql, "string", False, (*texts[0].unsure, *texts[1].unsure, f"length({sql}) > 1000000")
        )

    def _printed(self, node: Tree) -> Value:
        """The text of a value; an absent value is a word."""
        value = self._expression(node)
        if value.kind in ("float", "number"):
            raise NotInSpark(f"{shown(node)}: Spark writes the digits of a float differently", node)
        if value.kind == "undefined":
            return Value("'undefined'", "string")
        sql = value.sql if value.kind == "string" else f"CAST({value.sql} AS STRING)"
        return Value(
            f"coalesce({sql}, 'undefined')" if value.may_be_null else sql,
            "string",
            False,
            value.doubts,
        )

    def _case(self, node: exp.Case) -> Value:
        subject = None if node.this is None else self._expression(node.this)
        branches: list[str] = []
        results: list[Value] = []
        doubts: tuple[str, ...] = () if subject is None else subject.doubts
        for branch in node.args["ifs"]:
            test = self._when(branch.this, subject)
            result = self._expression(branch.args["true"])
            doubts += (*test.unsure, *(f"({test.sql} AND {doubt})" for doubt in result.unsure))
            results.append(result)
            branches.append(test.sql)
        default = node.args.get("default")
        otherwise = UNDEFINED if default is None else self._expression(default)
        doubts += otherwise.unsure
        kind = common_kind(node, [*results, otherwise])
        whens = " ".join(
            f"WHEN {test} THEN {result.sql}" for test, result in zip(branches, results, strict=True)
        )
        nulls = tuple(doubt for result in (*results, otherwise) for doubt in result.unsure_null)
        may_be_null = any(result.may_be_null for result in (*results, otherwise))
        return Value(f"CASE {whens} ELSE {otherwise.sql} END", kind, may_be_null, doubts, nulls)

    def _when(self, node: Tree, subject: Value | None) -> Value:
        if subject is None:
            value = self._condition(node)
            return Value(value.sql, "boolean", False, value.unsure)
        return self._identical(subject, self._expression(node), node)

    # Conditions

    def _condition(self, node: Tree, *, negated: bool = False) -> Value:
        """True if an expression is true or, with ``negated``, false; never NULL where the record is regular. What is
        not there is neither."""
        node = bare(node)
        if isinstance(node, TESTS):
            return self._test(node, negated=negated)
        value = self._expression(node)
        if value.kind == "undefined":
            return Value("FALSE", "boolean")
        if value.kind != "boolean":
            raise NotInSpark(f"{shown(node)} is used as a condition and is a {value.kind}", node)
        sql = f"(NOT {value.sql})" if negated else value.sql
        return Value(
            f"coalesce({sql}, FALSE)" if value.may_be_null else sql, "boolean", False, value.unsure
        )

    def _test(self, node: Tree, *, negated: bool = False) -> Value:
        """``_condition`` of one of ``TESTS``."""
        if type(node) in COMPARISONS:
            return self._comparison(node, negated=negated)
        match node:
            case exp.And() | exp.Or():
                word, goes_on = (
                    ("AND", "{}") if isinstance(node, exp.And) != negated else ("OR", "NOT {}")
                )
                left, right = (
                    self._condition(side, negated=negated) for side in (node.this, node.expression)
                )
                return _junction(word, goes_on, left, right)
            case exp.Not():
                return self._not(node, negated=negated)
            case exp.Between():
                signs, word, goes_on = (
                    (("<", ">"), "OR", "NOT {}") if negated else ((">=", "<="), "AND", "{}")
                )
                value = self._expression(node.this)
                low = self._expression(node.args["low"])
                high = self._expression(node.args["high"])
                below = self._ordered(signs[0], value, low, node)
                return _junction(word, goes_on, below, self._ordered(signs[1], value, high, node))
            case exp.Like() | exp.Escape():
                return self._like(node, negated=negated)
            case exp.In():
                value = self._in(node)
            case _:  # IS NULL
                value = self._expression(node.this)
                sql = f"({value.sql} IS NULL)" if value.may_be_null else "FALSE"
                value = Value(sql, "boolean", False, value.unsure)
        return Value(f"(NOT {value.sql})", "boolean", False, value.unsure) if negated else value

    def _comparison(self, node: Tree, *, negated: bool) -> Value:
        left = self._expression(node.this)
        right = self._expression(node.expression)
        opposite = OPPOSITES.get(type(node)) if negated else None
        if opposite is not None:
            return self._ordered(COMPARISONS[opposite].sql, left, right, node)
        value = self._compared(COMPARISONS[type(node)].sql, left, right, node)
        return Value(f"(NOT {value.sql})", "boolean", False, value.unsure) if negated else value

    def _compared(self, sign: str, left: Value, right: Value, node: Tree) -> Value:
        """A comparison as it is written; two undefined values are equal."""
        may_both_be_null = left.may_be_null and right.may_be_null
        if sign in ("<", ">") or (sign in ("<=", ">=") and not may_both_be_null):
            return self._ordered(sign, left, right, node)
        left, right, doubts = comparable(left, right, node)
        doubts += left.doubts + right.doubts
        if not (left.may_be_null or right.may_be_null):
            return Value(f"({left.sql} {sign} {right.sql})", "boolean", False, doubts)
        if sign == "=":
            return Value(f"({left.sql} <=> {right.sql})", "boolean", False, doubts)
        otherwise = "FALSE" if sign == "!=" else f"{left.sql} <=> {right.sql}"
        return Value(
            f"coalesce({left.sql} {sign} {right.sql}, {otherwise})", "boolean", False, doubts
        )

    def _ordered(self, sign: str, left: Value, right: Value, node: Tree) -> Value:
        """An ordering comparison, true of no null and no undefined value."""
        left, right, doubts = comparable(left, right, node)
        doubts += left.unsure + right.unsure
        sql = f"{left.sql} {sign} {right.sql}"
        may_be_null = left.may_be_null or right.may_be_null
        return Value(
            f"coalesce({sql}, FALSE)" if may_be_null else f"({sql})", "boolean", False, doubts
        )

    def _not(self, node: Tree, *, negated: bool) -> Value:
        inner = bare(node.this)
        if isinstance(inner, TESTS):
            return self._test(inner, negated=not negated)
        value = self._expression(inner)
        if value.kind != "boolean":
            return Value("FALSE", "boolean", False, value.unsure)
        return Value(
            f"coalesce({value.sql if negated else f'NOT {value.sql}'}, FALSE)",
            "boolean",
            False,
            value.unsure,
        )

    def _in(self, node: Tree) -> Value:
        value = self._expression(node.this)
        tests = [self._identical(value, self._expression(item), node) for item in node.expressions]
        doubts = value.doubts + tuple(doubt for test in tests for doubt in test.unsure)
        return Value(f"({' OR '.join(test.sql for test in tests)})", "boolean", False, doubts)

    def _identical(self, value: Value, other: Value, node: Tree) -> Value:
        """Equality of IN and CASE: of one type, and undefined is undefined."""
        doubts = other.doubts
        kinds = {value.kind, other.kind}
        if "undefined" in kinds or (len(kinds) == 1 and "number" not in kinds):
            return Value(f"({value.sql} <=> {other.sql})", "boolean", False, doubts)
        if "number" in kinds and kinds <= {*NUMERIC}:
            raise NotInSpark(
                f"{shown(node)}: an integer is not a float here, and the schema's number may be either",
                node,
            )
        both = (
            f"({value.sql} IS NULL AND {other.sql} IS NULL)"
            if value.may_be_null and other.may_be_null
            else "FALSE"
        )
        return Value(both, "boolean", False, doubts)

    def _like(self, node: Tree, *, negated: bool) -> Value:
        test, escape = (
            (node.this, node.expression.name)
            if isinstance(node, exp.Escape)
            else (node, like.ESCAPE)
        )
        value = self._expression(test.this)
        pattern = bare(test.expression)
        if not isinstance(pattern, exp.Literal) or not pattern.is_string or escape in pattern.name:
            raise NotInSpark(
                "LIKE is the same in Spark for a pattern that is a literal without escape signs",
                node,
            )
        if value.kind != "string":
            raise NotInSpark(f"{shown(test.this)} is compared by LIKE and is a {value.kind}", node)
        escaped = pattern.name.replace("\\", "\\\\")
        word = "NOT LIKE" if negated else "LIKE"
        return Value(
            f"coalesce({value.sql} {word} {quoted(escaped)}, FALSE)", "boolean", False, value.unsure
        )

    # Functions

    def _function(self, node: exp.Anonymous) -> Value:
        name: str = node.name
        if name == "null":
            return UNDEFINED
        if name == "topic_match":
            return self._topic_match(node)
        if name in ("is_null_var", "is_not_null_var"):
            value = self._expression(node.expressions[0])
            test = "IS NULL" if name == "is_null_var" else "IS NOT NULL"
            return Value(f"({value.sql} {test})", "boolean", False, value.unsure)
        return self._call_of(name, node.expressions, node)

    def _call_of(self, name: str, arguments: Sequence[Tree], node: Tree) -> Value:
        function = self._functions.get(name)
        if function is None or not function.spark:
            raise NotInSpark(f"{name} has no Spark form", node)
        inputs: list[Tree | Value] = list(arguments)
        if function.column is not None:
            inputs.insert(0, self._path(Path(function.column), node))
        values = [item if isinstance(item, Value) else self._expression(item) for item in inputs]
        for form in function.spark:
            if len(form.takes) == len(inputs) and all(map(fits, form.takes, values, inputs)):
                return self._formed(form, values, inputs)
        kinds = ", ".join(value.kind for value in values)
        raise NotInSpark(f"{name} has no Spark form for ({kinds})", node)

    def _formed(
        self, form: SparkForm, values: Sequence[Value], operands: Sequence[Tree | Value]
    ) -> Value:
        arguments: list[str] = []
        doubts: tuple[str, ...] = ()
        for takes, value, node in zip(form.takes, values, operands, strict=True):
            if takes == "printable":
                value = value if isinstance(node, Value) else self._printed(node)
            elif takes == "double":
                value = Value(
                    double(value), "float", value.may_be_null, value.unsure, value.unsure_null
                )
            doubts += value.doubts if form.takes_undefined else value.doubts_unless_there
            arguments.append(value.sql)
        if form.unless:
            doubts += (f"({form.unless.format(*arguments)})",)
        may_be_null = (
            form.takes_undefined
            and form.gives != "boolean"
            and all(value.may_be_null for value in values)
        )
        if "printable" in form.takes:
            may_be_null = False
        return Value(form.value.format(*arguments), form.gives, may_be_null, doubts)

    def _topic_match(self, node: exp.Anonymous) -> Value:
        topic = self._expression(node.expressions[0])
        topic_filter = bare(node.expressions[1])
        if (
            not isinstance(topic_filter, exp.Literal)
            or not topic_filter.is_string
            or topic.kind != "string"
        ):
            raise NotInSpark(
                "=~ is the same in Spark for a string and a filter that is a literal", node
            )
        levels = tuple(topic_filter.name.split("/"))
        if "#" in levels[:-1]:
            raise NotInSpark(
                f"'{topic_filter.name}' is not a topic filter: '#' must be its last level", node
            )
        pattern = quoted(_topic_pattern(levels))
        return Value(
            f"coalesce({topic.sql} RLIKE {pattern}, FALSE)", "boolean", False, topic.doubts
        )


def _junction(word: str, goes_on: str, left: Value, right: Value) -> Value:
    """Both joined; what the right side doubts matters only where the left one does not decide."""
    doubts = (
        *left.unsure,
        *(f"({goes_on.format(left.sql)} AND {doubt})" for doubt in right.unsure),
    )
    return Value(f"({left.sql} {word} {right.sql})", "boolean", False, doubts)


def _refuse_same_names(names: Sequence[str] | dict[str, Value]) -> None:
    seen = {name.lower() for name in (*_PLACE, IRREGULAR)}
    for name in names:
        if name.lower() in seen:
            raise NotInSpark(
                f"Spark does not distinguish the column {name} from another one of the rule"
            )
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
            pieces.append(before + ("[^/]*" if level == "+" else literal_pattern(level)))
    return rf"(?s)\A{start}{''.join(pieces)}\z"
