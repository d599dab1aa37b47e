"""Times: units, offsets, formats."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.calls import check, evaluate, fails, refused

S = 1_700_000_000
NS = 1_700_000_000_123_456_789


@pytest.fixture
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The host in another time zone."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("expression", "want"),
    [
        ("rfc3339_to_unix_ts('2023-11-14T22:13:20Z')", S),
        ("rfc3339_to_unix_ts('2023-11-14t22:13:20z')", S),
        ("rfc3339_to_unix_ts('2023-11-14 22:13:20Z')", S),
        ("rfc3339_to_unix_ts('2023-11-15T06:13:20+08:00')", S),
        ("rfc3339_to_unix_ts('2023-11-14T20:43:20-01:30')", S),
        ("rfc3339_to_unix_ts('2023-11-14T22:13:20.123456789Z')", S),
        ("rfc3339_to_unix_ts('2023-11-14T22:13:20.999Z', 'second')", S),
        ("rfc3339_to_unix_ts('2023-11-14T22:13:20.123456789Z', 'millisecond')", NS // 10**6),
        ("rfc3339_to_unix_ts('2023-11-14T22:13:20.123456789Z', 'microsecond')", NS // 10**3),
        ("rfc3339_to_unix_ts('2023-11-14T22:13:20.123456789Z', 'nanosecond')", NS),
        ("rfc3339_to_unix_ts('2023-11-14T22:13:20.1234567891111Z', 'nanosecond')", NS),
        ("rfc3339_to_unix_ts('2023-11-14T22:13:20.5Z', 'millisecond')", S * 1000 + 500),
        ("rfc3339_to_unix_ts('1969-12-31T23:59:59.5Z', 'millisecond')", -500),
        ("rfc3339_to_unix_ts('2024-02-29T00:00:00Z')", 1709164800),
        ("rfc3339_to_unix_ts('2024-03-01T00:00:00Z')", 1709251200),
        ("rfc3339_to_unix_ts('2100-03-01T00:00:00Z')", 4107542400),
        ("format_date('second', 0, '%Y-%m-%d %H:%M:%S', ts)", "2023-11-14 22:13:20"),
        ("format_date('second', 'Z', '%Y', ts)", "2023"),
        ("format_date('second', 'z', '%Y', ts)", "2023"),
        ("format_date('second', '+08:00', '%Y-%m-%d %H:%M:%S%z', ts)", "2023-11-15 06:13:20+0800"),
        ("format_date('second', '+0800', '%H%:z', ts)", "06+08:00"),
        ("format_date('second', '-08:00:30', '%H:%M:%S%::z', ts)", "14:12:50-08:00:30"),
        ("format_date('second', 3600, '%H %z', ts)", "23 +0100"),
        ("format_date('second', -3600, '%H %z', ts)", "21 -0100"),
        ("format_date('second', nosuch, '%H %z', ts)", "22 +0000"),
        ("format_date('nanosecond', 0, '%3N %6N %N', ns)", "123 123456 123456789"),
        ("format_date('millisecond', 0, '%S.%3N', ts * 1000 + 7)", "20.007"),
        ("format_date('microsecond', 0, '%6N', 1)", "000001"),
        ("format_date('millisecond', 0, '%Y-%m-%d %H:%M:%S.%3N', -1)", "1969-12-31 23:59:59.999"),
        ("format_date('second', 0, 'a{b} 5%% %%Y %Y', 0)", "a{b} 5% %Y 1970"),
        ("format_date('second', 0, '', 0)", ""),
        ("format_date('second', 0, '%m-%d', 1709164800)", "02-29"),
        ("format_date('second', 0, '%m-%d', 1709251200)", "03-01"),
        ("format_date('second', 0, '%Y', -62135596800)", "0001"),
        ("date_to_unix_ts('second', '%Y-%m-%d %H:%M:%S', '2023-11-14 22:13:20')", S),
        ("date_to_unix_ts('second', '%%%Y/%m/%dT%H.%M.%SZ', '%2023/11/14T22.13.20Z')", S),
        ("date_to_unix_ts('second', 'local', '%Y-%m-%d %H:%M:%S%z', '2023-11-14 22:13:20Z')", S),
        ("date_to_unix_ts('second', '%z %Y-%m-%d %H:%M:%S', '+08:00 2023-11-15 06:13:20')", S),
        ("date_to_unix_ts('second', '%Y%m%d%H%M%S', '20231114221320')", S),
        (
            "date_to_unix_ts('millisecond', '%Y-%m-%d %H:%M:%S.%3N', '2023-11-14 22:13:20.123')",
            S * 1000 + 123,
        ),
        ("date_to_unix_ts('second', '%Y-%m-%d %H:%M:%S.%3N', '2023-11-14 22:13:20.999')", S),
        (
            "date_to_unix_ts('nanosecond', '%Y-%m-%d %H:%M:%S.%N', '2023-11-14 22:13:20.123456789')",
            NS,
        ),
        (
            "date_to_unix_ts('millisecond', '%Y-%m-%d %H:%M:%S.%N', '2023-11-14 22:13:20.123456789')",
            NS // 10**6,
        ),
        ("date_to_unix_ts('second', '%Y-%m-%d %H:%M:%S%z', '2023-11-15 06:13:20+0800')", S),
        ("date_to_unix_ts('second', '%Y-%m-%d %H:%M:%S%:z', '2023-11-15 06:13:20+08:00')", S),
        ("date_to_unix_ts('second', '+08:00', '%Y-%m-%d %H:%M:%S', '2023-11-15 06:13:20')", S),
        ("date_to_unix_ts('second', 28800, '%Y-%m-%d %H:%M:%S', '2023-11-15 06:13:20')", S),
        (
            "date_to_unix_ts('second', '+01:00', '%Y-%m-%d %H:%M:%S%:z', '2023-11-15 06:13:20+08:00')",
            S,
        ),
        ("date_to_unix_ts('second', '%Y-%m-%d %H:%M:%S.%3N %z', '2023-11-14 22:13:20')", S),
        ("date_to_unix_ts('second', '%Y-%m-%d %H:%M:%S', '2024-02-29 00:00:00')", 1709164800),
        ("timezone_to_offset_seconds('+08:00')", 28800),
        ("timezone_to_offset_seconds('-08:00:30')", -28830),
        ("timezone_to_offset_seconds('+0830')", 30600),
        ("timezone_to_offset_seconds('Z')", 0),
        ("timezone_to_offset_seconds(5)", 5),
        ("timezone_to_offset_seconds(nosuch)", 0),
        ("timezone_to_second('z')", 0),
        ("mongo_date(0)", "ISODate(1970-01-01T00:00:00.000Z)"),
        ("mongo_date(ts * 1000 + 5)", "ISODate(2023-11-14T22:13:20.005Z)"),
        ("mongo_date(ts, 'second')", "ISODate(2023-11-14T22:13:20.000Z)"),
        ("mongo_date(ns, 'nanosecond')", "ISODate(2023-11-14T22:13:20.123Z)"),
    ],
)
def test_value(expression: str, want: Any) -> None:
    check(expression, want, ts=S, ns=NS)


@pytest.mark.parametrize(
    ("zone", "offset"),
    [("UTC", "+00:00"), ("Asia/Shanghai", "+08:00"), ("America/St_Johns", "-03:30")],
    indirect=["zone"],
)
def test_text_of_an_instant_is_in_the_zone_of_the_host(zone: str, offset: str) -> None:
    for unit, value, digits in (
        ("second", S, ""),
        ("millisecond", S * 1000, r"\.000"),
        ("microsecond", S * 10**6, r"\.000000"),
        ("nanosecond", NS, r"\.123456789"),
    ):
        text = evaluate("unix_ts_to_rfc3339(n, unit)", n=value, unit=unit)
        assert re.fullmatch(rf"2023-11-1[45]T\d\d:\d\d:20{digits}{re.escape(offset)}", text)
        check("rfc3339_to_unix_ts(s, unit)", value, s=text, unit=unit)


@pytest.mark.parametrize("zone", ["Europe/Berlin"], indirect=True)
def test_local_is_the_offset_at_the_instant_itself(zone: str) -> None:
    check("format_date('second', 'local', '%H %z', 1700000000)", "23 +0100")
    check("format_date('second', 'local', '%H %z', 1690000000)", "06 +0200")
    check(
        "date_to_unix_ts('second', 'local', '%Y-%m-%d %H:%M:%S', '2023-07-22 06:26:40')", 1690000000
    )


@pytest.mark.parametrize(
    ("zone", "text", "instant"),
    [
        ("Europe/Berlin", "2023-10-29 01:30:00", 1698535800),
        ("Europe/Berlin", "2023-10-29 02:30:00", 1698539400),  # the first of two
        ("Europe/Berlin", "2023-10-29 03:30:00", 1698546600),
        ("Europe/Berlin", "2023-03-26 01:30:00", 1679790600),
        ("Europe/Berlin", "2023-03-26 03:30:00", 1679794200),
        ("America/New_York", "2023-03-12 01:30:00", 1678602600),
        ("America/New_York", "2023-03-12 03:30:00", 1678606200),
        ("America/New_York", "2023-11-05 03:30:00", 1699173000),
        ("Pacific/Auckland", "2023-04-02 01:30:00", 1680352200),
    ],
    indirect=["zone"],
)
def test_local_times_around_changes_of_the_clock(zone: str, text: str, instant: int) -> None:
    check("date_to_unix_ts('second', 'local', '%Y-%m-%d %H:%M:%S', s)", instant, s=text)
    check("format_date('second', 'local', '%Y-%m-%d %H:%M:%S', n)", text, n=instant)


@pytest.mark.parametrize(
    ("expression", "per_second"),
    [
        ("now_timestamp()", 1),
        ("now_timestamp('second')", 1),
        ("now_timestamp('millisecond')", 10**3),
        ("now_timestamp('microsecond')", 10**6),
        ("now_timestamp('nanosecond')", 10**9),
        ("timestamp_s()", 1),
        ("timestamp_ms()", 10**3),
        ("rfc3339_to_unix_ts(now_rfc3339())", 1),
        ("rfc3339_to_unix_ts(now_rfc3339('millisecond'), 'millisecond')", 10**3),
        ("rfc3339_to_unix_ts(now_rfc3339('nanosecond'), 'nanosecond')", 10**9),
    ],
)
def test_now(expression: str, per_second: int) -> None:
    before = time.time_ns() * per_second // 10**9
    found = evaluate(expression)
    assert before <= found <= time.time_ns() * per_second // 10**9


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (
            "now_timestamp(u)",
            "one of 'second', 'millisecond', 'microsecond', 'nanosecond', not 'hour'",
        ),
        ("now_rfc3339(u)", "not 'hour'"),
        ("unix_ts_to_rfc3339(1.5)", "must be an integer, not a float"),
        ("unix_ts_to_rfc3339('1')", "must be an integer"),
        ("unix_ts_to_rfc3339(1, u)", "not 'hour'"),
        ("unix_ts_to_rfc3339(ts * 1000000)", "out of range"),
        ("rfc3339_to_unix_ts('2023-11-14T22:13:20')", "is not an RFC 3339 time"),
        ("rfc3339_to_unix_ts('2023-11-14')", "is not an RFC 3339 time"),
        ("rfc3339_to_unix_ts('2023-02-30T00:00:00Z')", "there is no date 2023-02-30"),
        ("rfc3339_to_unix_ts('2023-02-29T00:00:00Z')", "there is no date 2023-02-29"),
        ("rfc3339_to_unix_ts('2100-02-29T00:00:00Z')", "there is no date 2100-02-29"),
        ("rfc3339_to_unix_ts('2023-11-14T24:00:00Z')", "there is no time 24:00:00"),
        ("rfc3339_to_unix_ts('2023-11-14T22:60:00Z')", "there is no time"),
        ("rfc3339_to_unix_ts('2023-11-14T22:13:20+24:00')", "an offset must be"),
        ("rfc3339_to_unix_ts(5)", "must be a string"),
        ("format_date(u, 0, '%Y', 0)", "not 'hour'"),
        ("format_date('second', o, '%Y', 0)", "must be seconds east of UTC, 'Z'"),
        ("format_date('second', 0, '%Y', 1.5)", "must be an integer"),
        ("format_date('second', 0, '%Y', 999999999999)", "out of range"),
        ("format_date('second', 0, 5, 0)", "must be a string"),
        ("date_to_unix_ts('second', f, '2023')", "%m, %d, %H, %M, %S cannot be read"),
        ("date_to_unix_ts('second', '%Y-%m-%d %H:%M:%S', '2023-11-14 22:13')", "%S cannot be read"),
        (
            "date_to_unix_ts('second', '%Y-%m-%d %H:%M:%S', '2023-02-29 00:00:00')",
            "there is no date",
        ),
        (
            "date_to_unix_ts('second', '%Y-%m-%d %H:%M:%S', '2023-13-01 00:00:00')",
            "there is no date",
        ),
        (
            "date_to_unix_ts('second', '%Y-%m-%d %H:%M:%S', '2023-01-01 25:00:00')",
            "there is no time",
        ),
        (
            "date_to_unix_ts('second', '%Y-%m-%d %H:%M:%S', '2023-1-1 00:00:00')",
            "%m cannot be read from '1-'",
        ),
        (
            "date_to_unix_ts('second', '%Y-%m-%d %H:%M:%S%z', '2023-11-14 22:13:20junk!')",
            "an offset must be",
        ),
        ("date_to_unix_ts('second', '%Y-%m-%d %H:%M:%S', 5)", "format and text as strings"),
        (
            "date_to_unix_ts('second', '%Y-%m-%d %H:%M:%S', '2023-11-14 22:13:20 CET')",
            "expected the end at character 20",
        ),
        (
            "date_to_unix_ts('second', '%Y-%m-%d %H:%M:%S', '2023-11-14 22:13:20.5')",
            "expected the end at character 20",
        ),
        (
            "date_to_unix_ts('second', '%Y-%m-%d %H:%M:%S', '2023/11/14 22:13:20')",
            "expected '-' at character 5",
        ),
        (
            "date_to_unix_ts('second', '%Y-%m-%d %H:%M:%SZ', '2023-11-14 22:13:20+01:00')",
            "expected 'Z' at character 20",
        ),
        ("date_to_unix_ts('second', g, '2023-11-14')", "got '%q'"),
        ("format_date('second', 0, g, 0)", "got '%q'"),
        (
            "timezone_to_offset_seconds(o)",
            "seconds east of UTC, 'Z', 'local' or such as '+08:00', not '+08'",
        ),
        ("timezone_to_offset_seconds('+24:00')", "not '+24:00'"),
        ("timezone_to_offset_seconds('+08:60')", "not '+08:60'"),
        ("timezone_to_offset_seconds(1.5)", "not a float"),
        ("mongo_date('x')", "must be an integer"),
        ("mongo_date(1, u)", "not 'hour'"),
    ],
)
def test_failure(expression: str, message: str) -> None:
    fails(expression, message, ts=S, u="hour", o="+08", f="%Y", g="%Y %q")


@pytest.mark.parametrize(
    ("expression", "column", "message"),
    [
        (
            "format_date('second', '+08', '%Y', 1)",
            30,
            "format_date: argument 2 must be seconds east of UTC, 'Z', 'local' or such as",
        ),
        ("format_date('hour', 0, '%Y', 1)", 20, "format_date: argument 1 must be one of 'second'"),
        (
            "date_to_unix_ts('hour', '%Y', s)",
            24,
            "date_to_unix_ts: argument 1 must be one of 'second'",
        ),
        (
            "date_to_unix_ts('second', '%Y-%m-%d', s)",
            34,
            "date_to_unix_ts: the format needs %H, %M, %S too",
        ),
        (
            "date_to_unix_ts('second', '+8', '%Y-%m-%d %H:%M:%S', s)",
            34,
            "date_to_unix_ts: argument 2 must be seconds east of UTC",
        ),
        (
            "date_to_unix_ts('second', 5, s)",
            34,
            "date_to_unix_ts: argument 2 must be a format, not an integer",
        ),
        (
            "rfc3339_to_unix_ts('yesterday')",
            8,
            "rfc3339_to_unix_ts: 'yesterday' is not an RFC 3339 time",
        ),
        ("format_date('second', 0, '%Y %q', 1)", 33, "format_date: expected %Y %m %d"),
        ("format_date('second', 0, '100 %', 1)", 33, "format_date: expected %Y %m %d"),
        (
            "date_to_unix_ts('second', '%Y-%m-%d %H:%M:%S %p', s)",
            34,
            "date_to_unix_ts: expected %Y %m %d",
        ),
        ("mongo_date(1, 'day')", 22, "mongo_date: argument 2 must be one of"),
    ],
)
def test_a_literal_that_can_never_work_is_refused_when_saved(
    expression: str, column: int, message: str
) -> None:
    (problem,) = refused(expression)
    assert problem.column == column
    assert problem.message.startswith(message)
