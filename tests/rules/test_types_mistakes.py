"""What the type checker tells: certain mistakes, warnings, and nothing where a statement may be meant so."""

from __future__ import annotations

import pytest

from broker.core.schema import FieldType
from rules.functions.library import standard
from rules.sql.syntax.parser import parse
from rules.sql.syntax.tree import sources_of
from rules.sql.type_checker.inference import Inferred, infer
from rules.sql.type_checker.inputs import inputs_of

FUNCTIONS = standard()


def _field(name: str, *, nullable: bool = False) -> FieldType:
    return FieldType(name, nullable=nullable)


_TAG = FieldType(
    "struct", nullable=False, fields={"k": _field("string"), "n": _field("long")}, open=False
)
METER = FieldType(
    "struct",
    nullable=False,
    open=False,
    fields={
        "temp": _field("double"),
        "seq": _field("long"),
        "device": _field("string"),
        "state": FieldType("string", nullable=False, values=("on", "off")),
        "ok": _field("boolean"),
        "note": _field("string", nullable=True),
        "tags": FieldType("array", nullable=False, item=_TAG),
        "numbers": FieldType("array", nullable=False, item=_field("long")),
        "by_name": FieldType("map", nullable=False, item=_field("double")),
        "place": FieldType(
            "struct", nullable=False, fields={"room": _field("string"), "floor": _field("long")}
        ),
        "any": FieldType("unknown"),
    },
)
OPEN = FieldType(
    "struct",
    nullable=False,
    open=True,
    fields={"temp": _field("double"), "sensor1": _field("double")},
)


def checked(sql: str, **payloads: FieldType) -> Inferred:
    """What is inferred of a statement that reads ``m/+``, or the filters given with the types of their payloads."""
    types = {name.replace("_", "/"): kind for name, kind in payloads.items()} or {"m/+": METER}
    text = sql if " FROM " in sql else f"{sql} FROM " + ", ".join(f'"{one}"' for one in types)
    tree = parse(text)
    return infer(tree, FUNCTIONS, inputs_of([table.name for table in sources_of(tree)], types.get))


def mistakes(found: Inferred) -> list[str]:
    """The texts of certain mistakes, each with its suggestion."""
    return [str(report.problem).partition(": ")[2] for report in found.reports if report.is_mistake]


def warnings(found: Inferred) -> list[str]:
    """The texts of warnings, each with its suggestion."""
    return [
        str(report.problem).partition(": ")[2] for report in found.reports if not report.is_mistake
    ]


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("payload.tmep", "payload has no field 'tmep'; did you mean 'temp'?"),
        ("payload.Temp", "has no field 'Temp'; did you mean 'temp'?"),
        ("payload.place.rom + 1", "the schema of payload.place does not mention 'rom'"),
        ("payload.tags[1].nn", "has no field 'nn'; did you mean 'n'?"),
        ("payload.tags.k", "payload.tags is an array, so payload.tags.k is always undefined; take an element, as"),
        ("payload.temp.x", "payload.temp is a number and has no members"),
        ("payload.place[1]", "payload.place is a map and has no elements"),
        ("payload.temp[1]", "payload.temp is a number and has no elements"),
        ("payload.temp[1..2]", "a range can be taken of an array only; payload.temp is a number"),
        ("payload.numbers[payload.device]", "an index is an integer, and payload.device is a string"),
        ("payload.device - 1", "'-' always fails here: it needs numbers, and payload.device is a string; convert it"),
        ("'12' * 2", "'*' always fails here: it needs numbers, and '12' is a string"),
        ("payload.ok + 1", "'+' always fails here: it needs numbers, and payload.ok is a boolean"),
        ("payload.tags * 2", "'*' always fails here: it needs numbers, and payload.tags is an array"),
        ("payload.place / 2", "'/' always fails here: it needs numbers, and payload.place is a map"),
        ("payload.seq mod 1.5", "'mod' always fails here: it needs integers, and 1.5 is none"),
        ("-payload.device", "'-' always fails here: it needs a number, and payload.device is a string"),
        ("qos - clientid", "'-' always fails here: it needs numbers, and clientid is a string"),
        ("flags + 1", "'+' always fails here: it needs numbers, and flags is a map"),
        ("qos = 'x'", "qos is a number, and the text 'x' never holds a number: the comparison always fails"),
        ("payload.temp > 'warm'", "the text 'warm' never holds a number"),
        ("payload.temp BETWEEN 'low' AND 5", "the text 'low' never holds a number"),
        ("payload.state > 5", "payload.state is a string never holds a number: the comparison always fails"),
        ("payload.place > 5", "payload.place is a map, 5 is a number: they have no order that means anything"),
        ("payload.tags = 'x'", "payload.tags is an array, 'x' is a string: they are never equal"),
        ("payload.ok = 1", "payload.ok is a boolean, 1 is a number: they are never equal"),
        ("payload.ok != 1", "they are always different"),
        ("payload.ok = 'yes'", "payload.ok is a boolean, and 'yes' is neither 'true' nor 'false'"),
        ("payload.place < payload.place", "maps have no order"),
        ("payload.state = 'onn'", "'onn' is not a value of payload.state: they are never equal; did you mean 'on'?"),
        ("'closed' != payload.state", "'closed' is not a value of payload.state: they are always different"),
        ("payload.state IN ('on', 'of')", "'of' is not a value of payload.state: they are never"),
        ("payload.seq IN (1, '2')", "payload.seq is a number, '2' is a string: they are never equal"),
        ("CASE payload.state WHEN 'up' THEN 1 END", "'up' is not a value of payload.state"),
        ("CASE payload.seq WHEN 'a' THEN 1 END", "they are never equal, nothing is converted here"),
        ("CASE WHEN payload.seq THEN 1 END", "a condition must be true or false, and payload.seq is a number"),
        ("NOT payload.device", "a condition must be true or false, and payload.device is a string"),
        ("payload.ok AND payload.temp", "a condition must be true or false, and payload.temp is a number"),
        ("contains('x', payload.numbers)", "contains is never true here: 'x'"),
        ("upper(payload.temp)", "upper always fails here: argument 1 must be a string, and payload.temp is a number"),
        ("upper(payload.tags)", "must be a string, and payload.tags is an array; it is called upper(s)"),
        ("length(payload.device)", "argument 1 must be an array, and payload.device is a string"),
        ("nth(payload.tags, 1)", "argument 1 must be an integer, and payload.tags is an array"),
        ("abs(payload.device)", "abs always fails here: argument 1 must be a number, and payload.device is a string"),
        ("int(payload.place)", "int always fails here: argument 1 must be a number, a boolean or a numeric string"),
        ("float(payload.ok)", "float always fails here"),
        ("json_decode(payload.place)", "argument 1 must be JSON text, and payload.place is a map"),
        ("map_keys(payload.seq)", "map_keys always fails here: argument 1 must be a map or the JSON text of one"),
        ("substr(payload.device, payload.device)", "substr always fails here: argument 2 must be an integer"),
        ("{'a': payload.temp}.b", "has no field 'b'"),
    ],
)  # fmt: skip
def test_certain_mistake(expression: str, message: str) -> None:
    found = mistakes(checked(f"SELECT {expression} AS x"))
    assert len(found) == 1, found
    assert message in found[0]


@pytest.mark.parametrize(
    "expression",
    [
        "payload.any.x.y[1] - payload.any",
        "payload.by_name.anything * 2",
        "payload.device + 1",
        "1 + payload.device",
        "payload.temp = '21.5'",
        "payload.temp > payload.device",
        "payload.temp = 21",
        "payload.seq IN (1.0, 2)",
        "payload.ok = 'true'",
        "payload.state = payload.device",
        "payload.note.x",
        "payload.device[1]",
        "json_decode(payload.device) - 1",
        "payload.any = 'x' AND payload.any",
        "upper(payload.ok)",
        "map_keys(payload.device)",
        "nth(payload.temp, payload.tags)",
        "coalesce(payload.note, 5) - 1",
        "payload.tags[-1].k || payload.seq",
        "payload.numbers < payload.numbers",
        "username = 'x' OR payload.ok",
        "qos = '1'",
        "timestamp - publish_received_at",
        "pub_props.'User-Property'.x",
        "pub_props.'Something-New'",
        "client_attrs.tenant = 'a'",
        "null",
        "NULL",
        "is_null(payload.note)",
        "payload.note IS NOT NULL AND payload.note != 'x'",
        "payload.note > 'x' OR payload.note IS NULL",
        "payload.any > 5",
        "mod(payload.seq, 2) = 0",
        "payload.temp div 2",
    ],
)
def test_nothing_is_told_of_what_may_be_meant(expression: str) -> None:
    found = checked(f"SELECT {expression} AS x")
    assert found.reports == ()


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT clientId AS c", "has no column 'clientId', so it is always undefined; did you mean 'clientid'?"),
        ("SELECT nothing", "has no column 'nothing', so it is always undefined"),
        ("SELECT retain", "has no column 'retain'"),
        ("SELECT 1 AS a FROM \"m/+\" WHERE clientid = \"meter\"", "strings are written in single quotes: 'meter'"),
        ("SELECT payload.tags[0].k AS k", "elements count from 1, so element 0 is always undefined; write [1]"),
        ("SELECT 1 AS a FROM \"m/+\" WHERE payload.note != 'x'", "payload.note is missing, payload.note != 'x'"),
        ("SELECT 1 AS a FROM \"m/+\" WHERE username <> 'x'", "add OR username IS NULL for rows without it"),
        (
            "SELECT payload.note > 'x' AS late",
            "where payload.note is null or missing, payload.note > 'x' is false, and so is NOT of it; add OR",
        ),
        ("SELECT 1 AS a FROM \"m/+\" WHERE NOT payload.note BETWEEN 'a' AND 'c'", "payload.note is null or missing"),
        ("SELECT payload.note = NULL AS n", "a comparison with NULL is never true; write payload.note IS NULL"),
        ("SELECT payload.note != NULL AS n", "write payload.note IS NOT NULL"),
        ("SELECT payload.place.street AS s", "does not mention 'street'; it mentions floor, room"),
        (
            'FOREACH payload.tags AS t DO t.k AS key INCASE key = \'a\' FROM "m/+"',
            "INCASE is evaluated before DO, so 'key' is undefined in it; repeat the expression",
        ),
    ],
)  # fmt: skip
def test_warning(sql: str, message: str) -> None:
    found = checked(sql)
    assert mistakes(found) == []
    assert len(warnings(found)) == 1, warnings(found)
    assert message in warnings(found)[0]


def test_aliases_are_columns_of_what_follows() -> None:
    found = checked("SELECT payload.temp AS clientId, clientId + 1 AS x, x - payload.device AS y")
    assert warnings(found) == []
    (mistake,) = mistakes(found)
    assert mistake.startswith(
        "'-' always fails here: it needs numbers, and payload.device is a string"
    )


@pytest.mark.parametrize(
    ("field", "is_mistake", "hint"),
    [
        ("tmep", True, "did you mean 'temp'?"),
        ("humidity", False, "it mentions"),
        ("sensor2", False, "it mentions"),
    ],
)
def test_a_field_that_an_open_schema_does_not_mention(
    field: str, is_mistake: bool, hint: str
) -> None:
    (report,) = checked(f"SELECT payload.{field} AS x", m=OPEN).reports
    assert report.is_mistake == is_mistake
    assert hint in str(report.problem)


def test_foreach_walks_arrays_only() -> None:
    assert "there are never rows" in mistakes(checked("FOREACH payload.temp AS t DO t"))[0]
    assert "there are never rows" in mistakes(checked("FOREACH payload AS t DO t"))[0]
    assert mistakes(checked("FOREACH payload AS t DO t", m=FieldType("array", item=_TAG))) == []
    assert "has no field 'x'" in mistakes(checked("FOREACH payload.tags AS t DO t.x AS x"))[0]


def test_a_field_of_some_filters_only_is_a_warning_that_names_the_others() -> None:
    other = FieldType("struct", nullable=False, open=False, fields={"hum": _field("double")})
    found = checked(
        "SELECT payload.temp AS t, payload.hum AS h, payload.tmp AS x", a=METER, b=other
    )
    in_b, in_a = warnings(found)
    assert in_b == "on topics of \"b\": payload.temp: payload has no field 'temp'; it has hum"
    assert in_a.startswith(
        "on topics of \"a\": payload.hum: payload has no field 'hum'; it has any, by_name"
    )
    assert mistakes(found) == ["payload.tmp: payload has no field 'tmp'; did you mean 'temp'?"]


def test_topics_without_a_schema_may_have_any_field() -> None:
    tree = parse('SELECT payload.tmep AS t FROM "m/+", "free/#"')
    found = infer(tree, FUNCTIONS, inputs_of(["m/+", "free/#"], {"m/+": METER}.get))
    assert mistakes(found) == []
    assert warnings(found)[0].startswith('on topics of "m/+": payload.tmep')
    assert found.columns == [("t", FieldType("unknown"))]


@pytest.mark.parametrize(
    ("source", "column", "known"),
    [
        ("$events/client/connected", "keepalive", True),
        ("$events/client/connected", "payload", False),
        ("$events/message/delivered", "from_clientid", True),
        ("$bridges/mqtt:far", "server", True),
        ("$bridges/mqtt:far", "clientid", False),
        ("$bridges/kafka:far", "anything", True),
        ("$rules/other", "anything", True),
    ],
)
def test_columns_are_those_of_the_event(source: str, column: str, known: bool) -> None:
    tree = parse(f"SELECT {column} AS x FROM '{source}'")
    found = infer(tree, FUNCTIONS, inputs_of([source], lambda _: None))
    assert (warnings(found) == []) == known


def test_a_payload_that_is_not_json_has_no_fields() -> None:
    avro = FieldType("struct", nullable=False, open=False, fields=METER.fields, coding="avro")
    found = checked("SELECT payload.temp AS t", m=avro)
    (mistake,) = mistakes(found)
    assert mistake.startswith(
        "the payload is written in Avro, not JSON, so payload.temp always fails; decode it with"
    )
    assert mistakes(checked("SELECT payload AS p, strlen(payload) AS n", m=avro)) == []


def test_long_chains_of_conditions_are_checked() -> None:
    many = " OR ".join(f"payload.seq = {number}" for number in range(900))
    assert checked(f'SELECT 1 AS x FROM "m/+" WHERE {many}').reports == ()


def test_members_of_an_item_keep_their_place_and_are_looked_for_in_the_item() -> None:
    assert mistakes(checked('FOREACH payload.tags DO item.k, item.n FROM "m/+"')) == []
    assert (
        mistakes(checked('FOREACH payload.any AS s DO s.name, s.idx, s.name AS n FROM "m/+"')) == []
    )
    assert mistakes(checked('FOREACH payload.tags DO item.k, item.m FROM "m/+"')) == [
        "item.m: item has no field 'm'; it has k, n"
    ]
