"""``ETag``, ``If-Match`` and ``If-None-Match`` (RFC 9110, section 13): no client overwrites a change that it has not
seen."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from ui.api.problems import ApiProblem


def check(request: Request, etag: str | None) -> None:
    """Refuse a change where the object is not the one that the request names; ``etag`` is None when there is none.

    Raises:
        ApiProblem: 412.
    """
    wanted, unwanted = request.headers.get("if-match"), request.headers.get("if-none-match")
    if wanted is not None and not _holds(wanted, etag):
        now = "there is no such object" if etag is None else f"it is {quoted(etag)} now"
        raise ApiProblem(
            412, "changed_meanwhile", f"the object changed since you read it (If-Match is {wanted}); {now}"
        )
    if unwanted is not None and _holds(unwanted, etag):
        raise ApiProblem(412, "changed_meanwhile", f"the object exists, and If-None-Match is {unwanted}")


def with_etag(request: Request, response: Response, etag: str | None) -> Response:
    """The answer with its ETag; 304 in its place when a GET names that as what the client has."""
    if etag is None:
        return response
    known = request.headers.get("if-none-match")
    if request.method == "GET" and known is not None and _holds(known, etag):
        response = Response(status_code=304)
    response.headers["ETag"] = quoted(etag)
    return response


def quoted(etag: str) -> str:
    """As a header has it."""
    return f'"{etag}"'


def _holds(header: str, etag: str | None) -> bool:
    if etag is None:
        return False
    tags = [tag.strip().removeprefix("W/") for tag in header.split(",")]
    return "*" in tags or quoted(etag) in tags
