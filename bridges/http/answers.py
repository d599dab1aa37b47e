"""Meaning of answers: errors that are retried, and when; rows that are rejected; the outcome of each row of a batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from bridges.http.settings import RowAnswers
from bridges.resource.errors import (
    BadSettings,
    BridgeError,
    NeverAgain,
    TargetMissing,
    TargetUnusable,
    TryAgain,
)
from broker.core import jsontext
from broker.core.kinds import counted

# Bytes of an answer that an error quotes.
_SHOWN_BYTES: Final = 200
_LONGEST_HOLD_S: Final = 3600.0
_CLASS: Final = "xx"


class Answer(NamedTuple):
    """The service's answer: a body above the limit is cut. Names of ``headers`` are found in any case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Statuses:
    """A list of statuses, as ``["5xx", "429"]``."""

    def __init__(self, texts: Collection[str]) -> None:
        self._classes = {int(text[0]) for text in texts if text.endswith(_CLASS)}
        self._numbers = {int(text) for text in texts if not text.endswith(_CLASS)}

    def __contains__(self, status: int) -> bool:
        return status in self._numbers or status // 100 in self._classes


class Judge:
    """Says what an answer means.

    ``is_one_place``: every row goes to the same path. Where it is so, 403 says that the credentials do not
    reach it, and 404 or 410 that it is not there, for all rows alike; where the path is made of the row, they are about
    that row, which is rejected.
    """

    def __init__(self, again: Statuses, *, is_one_place: bool) -> None:
        self._again = again
        self._is_one_place = is_one_place

    def error(self, status: int, said: str, after_s: float | None = None) -> BridgeError | None:
        """The error that an answer means; None when all is well."""
        if 200 <= status < 300:
            return None
        if status in self._again:
            return TryAgain(said, after_s)
        if status == HTTPStatus.UNAUTHORIZED:
            return BadSettings(said)
        if status == HTTPStatus.FORBIDDEN and self._is_one_place:
            return TargetUnusable(said)
        if status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE) and self._is_one_place:
            return TargetMissing(said)
        return NeverAgain(said)


def summary(request: str, answer: Answer) -> str:
    """An answer in a sentence: status, where it points to, the beginning of its text."""
    try:
        phrase = f" {HTTPStatus(answer.status).phrase}"
    except ValueError:
        phrase = ""
    text = " ".join(answer.body[:_SHOWN_BYTES].decode(errors="replace").split())
    place = answer.headers.get("location") if 300 <= answer.status < 400 else ""
    return f"{request} answers {answer.status}{phrase}{f' to {place}' if place else ''}{f': {text}' if text else ''}"


def retry_after_s(answer: Answer, now_s: float) -> float | None:
    """Seconds that the service asks to wait (RFC 9110, section 10.2.3): a number, or a time. At most an hour."""
    text = answer.headers.get("retry-after", "").strip()
    if not text:
        return None
    if text.isdecimal():
        return min(float(text), _LONGEST_HOLD_S)
    try:
        at = parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
    return min(max(at - now_s, 0.0), _LONGEST_HOLD_S)


def answers_of_rows(
    answer: Answer, settings: RowAnswers, count: int, judge: Judge, request: str
) -> Sequence[BridgeError | None]:
    """The outcome of each row, from the body of an answer to a batch.

    Raises:
        NeverAgain: the answer has no outcome for each row.
    """
    try:
        elements = _at(jsontext.decode(answer.body), settings.at)
    except jsontext.JsonError as error:
        raise NeverAgain(f"{request} answers what is not JSON: {error}") from None
    if not isinstance(elements, list) or len(elements) != count:
        has = counted(len(elements), "element") if isinstance(elements, list) else "no array"
        raise NeverAgain(
            f"{request} answers a batch of {counted(count, 'row')} with {has} at {settings.at or 'the top'!r}"
        )
    return [_of_row(element, settings, judge, request) for element in elements]


def _of_row(element: Any, settings: RowAnswers, judge: Judge, request: str) -> BridgeError | None:
    status = _at(element, settings.status)
    number = 200 if status is None else int(status) if str(status).isdecimal() else 500
    reason = _at(element, settings.reason)
    text = "" if reason is None else f": {str(reason)[:_SHOWN_BYTES]}"
    return judge.error(number, f"{request} answers {number} for the row{text}")


def _at(value: Any, path: str) -> Any:
    for key in path.split(".") if path else ():
        value = value.get(key) if isinstance(value, dict) else None
    return value
