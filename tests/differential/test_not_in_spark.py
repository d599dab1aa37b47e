"""What keeps a rule from being Spark SQL is said in a sentence that names the expression."""

from __future__ import annotations

import pytest

from broker.core.schema import FieldType
from rules.sql.spark.values import NotInSpark
from tests.differential.runtimes import statement_of

LONG, DOUBLE, STRING = (FieldType(name) for name in ("long", "double", "string"))
PAYLOAD = FieldType(
    "struct",
    fields={
        "i": LONG, "x": DOUBLE, "s": STRING, "S": STRING, "l": FieldType("array", item=DOUBLE),
        "u": FieldType("unknown"),
    },
)  # fmt: skip


@pytest.mark.parametrize(
    ("sql", "reason", "place"),
    [
        ('SELECT * FROM "t"', "'*' selects maps", (1, 8)),
        ('FOREACH payload.l AS i DO i FROM "t"', "FOREACH has no Spark SQL here", (1, 1)),
        ('SELECT clientid FROM "$events/client/connected"', "it reads events only", (1, 1)),
        ('SELECT payload.u AS u FROM "t"', "payload.u: no schema bound to the topics says its type", (1, 8)),
        ('SELECT payload.x FROM "t"', "payload.x is written into a map; give it a name with AS", (1, 8)),
        ('SELECT payload.l[1] AS a FROM "t"', "payload.l[1]: elements of arrays are read by the compiled rule", (1, 8)),
        ('SELECT payload.l AS l FROM "t"', "payload.l: it is of type array", (1, 8)),
        ('SELECT [1, 2] AS l FROM "t"', "[1, 2]: arrays and maps are made by the compiled rule only", (1, 8)),
        ('SELECT\n  sin(payload.x) AS y FROM "t"', "sin has no Spark form", (2, 3)),
        ('SELECT now_timestamp() AS n FROM "t"', "now_timestamp has no Spark form", (1, 8)),
        ('SELECT strlen(payload.i) AS n FROM "t"', "strlen has no Spark form for (long)", (1, 8)),
        ('SELECT is_int(payload.x) AS n FROM "t"', "is_int has no Spark form for (number)", (1, 8)),
        ('SELECT str(payload.x) AS n FROM "t"', "str has no Spark form for (number)", (1, 8)),
        ("SELECT 'x' || payload.x AS n FROM \"t\"", "payload.x: Spark writes the digits of a float", (1, 15)),
        ("SELECT payload.x > '3' AS n FROM \"t\"", "payload.x > '3' compares a number with a string", (1, 8)),
        ('SELECT payload.x in (1) AS n FROM "t"', "an integer is not a float here", (1, 8)),
        ('SELECT payload.s AS a, payload.S AS b FROM "t"', "payload.S: Spark does not distinguish S from s", (1, 24)),
        ('SELECT 1 AS a, 2 AS A FROM "t"', "Spark does not distinguish the column A from another one", (1, 1)),
        ('SELECT id FROM "t"', "id: streams do not keep it", (1, 8)),
        ('SELECT 99999999999999999999 AS n FROM "t"', "99999999999999999999 has more than 64 bits", (1, 8)),
        ('SELECT payload.s AS clientid, clientid AS c FROM "t"', "where clientid is undefined, it is", (1, 31)),
    ],
)  # fmt: skip
def test_the_expression_is_named(sql: str, reason: str, place: tuple[int, int]) -> None:
    with pytest.raises(NotInSpark) as caught:
        statement_of(sql, PAYLOAD)
    assert reason in str(caught.value)
    assert (caught.value.problem.line, caught.value.problem.column) == place
