"""Every way of getting the syntax wrong has a sentence, its place, and what to do."""

from __future__ import annotations

import pytest

from broker.core.errors import Invalid, Problem
from rules.sql.syntax.parser import parse

CASES = r"""
SELECT a FORM "t"                         | 15 | expected FROM, found 't'                        | did you mean FROM?
SELEC a FROM t                            | 1  | a rule begins with SELECT or FOREACH, not 'SELEC' | did you mean SELECT?
INSERT INTO t                             | 1  | a rule begins with SELECT or FOREACH, not 'INSERT' | -
SELECT a, FROM t                          | 11 | expected a value, found the keyword FROM        | remove the comma before it
SELECT a,, b FROM t                       | 10 | expected a value, found ','                     | remove one of the commas
SELECT [1,2,] FROM t                      | 13 | expected a value, found ']'                     | remove the comma before it
SELECT f(a,) FROM t                       | 12 | expected a value, found ')'                     | remove the comma before it
SELECT {a: 1,} FROM t                     | 14 | expected a key of the map, found '}'            | remove the comma before it
SELECT {1: 2} FROM t                      | 9  | expected a key of the map, found '1'            | a key is a name or a string in quotes
SELECT a AS from FROM t                   | 13 | expected a name after AS, found 'FROM'          | a column of that name is written "from"
SELECT a AS 'b' FROM t                    | 13 | expected a name after AS, found 'b'             | names are written in double quotes: "b"
SELECT select FROM t                      | 8  | expected a value, found the keyword SELECT      | a rule has no queries within queries; use FROM "$rules/name" to read another rule's rows
SELECT end FROM t                         | 8  | expected a value, found the keyword END         | a column of that name is written "end"
SELECT if FROM t                          | 8  | expected a value, found the keyword IF          | conditions within a value: CASE WHEN ... THEN ... ELSE ... END
SELECT a.end FROM t                       | 10 | the keyword END cannot be a key                 | write ."end"
SELECT a FROM t/1                         | 16 | unexpected '/' after the end of the statement   | a topic filter with such characters is written in double quotes: FROM "a/b"
SELECT a FROM "t" WERE b = 1              | 19 | unexpected 'WERE' after the end of the statement | did you mean WHERE?
SELECT a FROM t WHERE b = 1 ADN c = 2     | 29 | unexpected 'ADN' after the end of the statement | did you mean AND?
SELECT a FROM t WHERE b = 1 WHERE c = 2   | 29 | unexpected 'WHERE' after the end of the statement | join the conditions with AND
SELECT a WHERE b = 1                      | 10 | expected FROM, found 'WHERE'                    | WHERE comes after FROM: FROM "topic/#" WHERE ...
SELECT a                                  | 9  | expected FROM, found the end of the text        | name the messages: FROM "topic/#"
SELECT a b c FROM t                       | 12 | expected FROM, found 'c'                        | columns are separated by commas
SELECT a FROM t ORDER BY b                | 17 | unexpected 'ORDER' after the end of the statement | a rule sees one message at a time and has no ORDER; tables of rows are made and queried in Spark
SELECT a FROM t AS x                      | 17 | unexpected 'AS' after the end of the statement  | topics have no aliases
FOREACH a INCASE b DO c FROM t            | 20 | expected FROM, found 'DO'                       | DO comes before INCASE
SELECT a INCASE b FROM t                  | 10 | expected FROM, found 'INCASE'                   | INCASE belongs to FOREACH: SELECT ... FROM ... WHERE ..., or FOREACH ... DO ... INCASE ... FROM ... WHERE ...
FOREACH * FROM t                          | 11 | the last item of FOREACH must be an array to walk, not * | -
FOREACH a AS b.c FROM t                   | 24 | the alias of the array that FOREACH walks must be a plain name | -
SELECT count(*) FROM t                    | 14 | expected a value, found '*'                     | functions take no *; a rule sees one message at a time
SELECT cast(a as int) FROM t              | 15 | expected ',' or ')' in the arguments of cast, found 'AS' | use int(x), float(x) or str(x)
SELECT (a FROM t                          | 11 | expected ')', found 'FROM'                      | close the bracket
SELECT a) FROM t                          | 9  | expected FROM, found ')'                        | a bracket is open or closed too often
SELECT .5 FROM t                          | 8  | expected a value, found '.'                     | a number begins with a digit: 0.5
SELECT 5. FROM t                          | 9  | '5.' is neither a number nor a path                   | write digits on both sides of the point
SELECT 12ab FROM t                        | 10 | '12a' is neither a number nor a name            | a name begins with a letter
SELECT a['x'] FROM t                      | 10 | expected an index: an integer, a column or a path, found 'x' | a key is written .'x'
SELECT a[] FROM t                         | 10 | expected an index: an integer, a column or a path, found ']' | elements count from 1; [-1] is the last
SELECT a[i+1] FROM t                      | 11 | expected ']', found '+'                         | an index is a number, a column or a path; give it a name first: i + 1 AS j, a[j]
SELECT a[1..x] FROM t                     | 14 | the ends of a range must be integers            | write them as numbers; nth(i, array) takes any index
SELECT 1 AS a[1..2] FROM t                | 16 | a range cannot be written to                    | write one index
SELECT a[1..2].b FROM t                   | 15 | a range cannot be followed by a key or an index | give it a name first: ... AS x, x.key
SELECT f(x).g() FROM t                    | 14 | a function cannot be called on a value          | write f(value)
SELECT a = b = c FROM t                   | 14 | comparisons cannot be chained                   | write a < b and b < c
SELECT a == b FROM t                      | 11 | expected a value, found '='                     | write = to compare
SELECT a && b FROM t                      | 10 | unexpected character '&'                        | write AND, or bitand(a, b)
SELECT ${a} FROM t                        | 8  | unexpected character '$'                        | a template's ${...} has no place in SQL; write the column's name
SELECT `abc FROM t                        | 8  | the quote ` is never closed                     | -
SELECT # a FROM t                         | 8  | unexpected character '#'                        | a comment begins with -- or ##
SELECT a FROM t WHERE a = ‘x’             | 27 | unexpected character '‘'                        | strings are written in straight quotes: 'text'
SELECT a FROM t WHERE a = "x" "y"         | 31 | unexpected 'y' after the end of the statement   | join conditions with AND or OR; strings are written in single quotes
SELECT 'abc FROM t                        | 8  | the quote ' is never closed                     | a quote inside the text is written twice
SELECT "abc FROM t                        | 8  | the quote " is never closed                     | -
SELECT a /* FROM t                        | 10 | the comment /* is never closed                  | -
SELECT case a then 1 end FROM t           | 15 | expected WHEN, found 'THEN'                     | did you mean WHEN?
SELECT case when a then 1 FROM t          | 27 | expected WHEN, ELSE or END, found 'FROM'        | -
SELECT a FROM t WHERE a IS 5              | 25 | unexpected 'IS' after the end of the statement  | IS tests for NULL only; compare with = or !=
SELECT a FROM t WHERE a IN 5              | 28 | expected '(', found '5'                         | write values in parentheses: IN (1, 2); for an array use contains(x, array)
SELECT a LIKE 'x' ESCAPE 'ab' FROM t      | 26 | the sign after ESCAPE must be one character     | -
SELECT a FROM ""                          | 15 | a topic filter must not be empty                | -
SELECT * JQ FROM t                        | 10 | expected FROM, found 'JQ'                       | a jq program follows JQ
SELECT * JQ {a: .b FROM t                 | 13 | the jq program has a bracket that is never closed | close it with }
SELECT * JQ .a + "abc FROM t              | 18 | the jq program has a string that is never closed | close it with "
SELECT * JQ if . then 1 FROM t            | 13 | the jq program has an 'if' that is never closed | close it with end
SELECT * JQ . ) FROM t                    | 15 | the jq program has a ')' that closes nothing    | -
SELECT * JQ '' FROM t                     | 13 | the jq program is empty                         | write . for the value as it is
SELECT JQ a DO .x FROM t                  | 16 | the jq program that begins here is not followed by END | -
FOREACH a JQ .x FROM t                    | 11 | expected FROM, found 'JQ'                       | JQ is written in SELECT; here use jq('program', value)
"""  # noqa: E501 (a table)


def cases() -> list[tuple[str, ...]]:
    lines = [[part.strip() for part in line.split(" | ")] for line in CASES.strip().splitlines()]
    return [(sql, column, message, suggestion) for sql, column, message, suggestion in lines]


@pytest.mark.parametrize(
    ("sql", "column", "message", "suggestion"), cases(), ids=[case[0] for case in cases()]
)
def test_one_problem(sql: str, column: str, message: str, suggestion: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse(sql)
    hint = None if suggestion == "-" else suggestion
    assert caught.value.problems == (Problem(message, "/sql", 1, int(column), hint),)
    assert caught.value.code == "sql_syntax"


def test_lines_are_counted_through_strings_comments_and_jq_programs() -> None:
    with pytest.raises(Invalid) as caught:
        parse("SELECT 'a\nb' AS x /* \n */ JQ {\n a: 1 }\n FROM t\n WHERE ==")
    assert (caught.value.problems[0].line, caught.value.problems[0].column) == (6, 8)
