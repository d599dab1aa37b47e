"""``ETag``, ``If-Match`` and ``If-None-Match`` (RFC 9110, section 13): no client overwrites a change that it has not
seen."""

from __future__ import annotations

import re
from typing import Final

from fastapi import Request
from starlette.responses import Response

from broker.core.objects import Version
from broker.core.times import rfc3339
from ui.api.problems import ApiProblem

# An Accept-Encoding header that names gzip, and not as refused.
_TAKES_GZIP: Final = re.compile(r"\bgzip\b(?!\s*;\s*q=0(?:\.0*)?\s*(?:,|$))", re.IGNORECASE)


def check(request: Request, version: Version | None) -> None:
    """Refuse a change where the object is not the version that the request names; None if there is no object.

    Raises:
        ApiProblem: 412.
    """
    wanted = request.headers.get("if-match")
    unwanted = request.headers.get("if-none-match")
    etag = None if version is None else version.etag
    if wanted is not None and not _holds(wanted, etag):
        raise _changed(f"expected version {wanted} (If-Match), {_now(version)}", version)
    if unwanted is not None and _holds(unwanted, etag):
        raise _changed(f"expected no version {unwanted} (If-None-Match), {_now(version)}", version)


def _now(version: Version | None) -> str:
    if version is None:
        return "and there is no such object now"
    changed = (
        "before the broker started"
        if version.changed_ns is None
        else f"at {rfc3339(version.changed_ns)}"
    )
    return f"got {quoted(version.etag)}, last changed {changed}"


def _changed(detail: str, version: Version | None) -> ApiProblem:
    if version is None:
        return ApiProblem(412, "changed_meanwhile", detail)
    changed_at = None if version.changed_ns is None else rfc3339(version.changed_ns)
    members = {"etag": version.etag, "changed_at": changed_at}
    return ApiProblem(
        412, "changed_meanwhile", detail, headers={"ETag": quoted(version.etag)}, members=members
    )


def with_etag(request: Request, response: Response, etag: str) -> Response:
    """The answer with its ETag; 304 in its place when a GET names that as what the client has."""
    client_etags = request.headers.get("if-none-match")
    if request.method == "GET" and client_etags is not None and _holds(client_etags, etag):
        kept = {
            name: response.headers[name]
            for name in ("Cache-Control", "Vary")
            if name in response.headers
        }
        response = Response(status_code=304, headers=kept)
    response.headers["ETag"] = quoted(etag)
    return response


def takes_gzip(accepted: str) -> bool:
    """Return whether an Accept-Encoding header allows gzip."""
    return _TAKES_GZIP.search(accepted) is not None


def quoted(etag: str) -> str:
    """Format an ETag for a header."""
    return f'"{etag}"'


def _holds(header: str, etag: str | None) -> bool:
    if etag is None:
        return False
    tags = [tag.strip().removeprefix("W/") for tag in header.split(",")]
    return "*" in tags or quoted(etag) in tags
