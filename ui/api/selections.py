"""Which clients and sessions a list is to hold, from query parameters; and its page as an answer."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query

from broker.admin.listing import Selection
from broker.core.errors import Invalid, Problem
from broker.core.objects import Spec
from ui.api.parameters import encode_cursor

_VERSIONS = {"3.1": 3, "3.1.1": 4, "5.0": 5}
_MOST_SIGNS = 256

Pattern = Annotated[str | None, Query(description="As it is, or a pattern with `*`, `?` and `[abc]`.")]


async def session_filter(
    client_id: Pattern = None,
    username: Pattern = None,
    address: Annotated[str | None, Query(description="The client's address without port, or a pattern.")] = None,
    listener: Annotated[str | None, Query(description="The listener it came through, or a pattern.")] = None,
    zone: Annotated[str | None, Query(description="The zone of that listener, or a pattern.")] = None,
    attribute: Annotated[
        list[str] | None,
        Query(description="`NAME=VALUE` of a client attribute, maybe a pattern; repeatable."),
    ] = None,
    connected: Annotated[bool | None, Query(description="Only those that are connected, or that are away.")] = None,
    durable: Annotated[bool | None, Query(description="Only those that are on disk, or in memory.")] = None,
    protocol: Annotated[Literal["3.1", "3.1.1", "5.0"] | None, Query(description="The version of MQTT.")] = None,
    min_queued: Annotated[int | None, Query(ge=0, description="At least so many messages wait.")] = None,
    min_queue_bytes: Annotated[int | None, Query(ge=0, description="At least so many bytes wait.")] = None,
) -> Selection:
    """The selection of query parameters."""
    return Selection(
        client_id=pattern_of(client_id),
        username=pattern_of(username),
        address=pattern_of(address),
        listener=pattern_of(listener),
        zone=pattern_of(zone),
        attributes=_attributes(attribute or []),
        is_connected=connected,
        is_durable=durable,
        protocol_version=None if protocol is None else _VERSIONS[protocol],
        min_queued=min_queued,
        min_queue_bytes=min_queue_bytes,
    )


def pattern_of(text: str | None) -> str | None:
    """A pattern that can be matched quickly.

    Raises:
        Invalid: it is too long, or has so many stars that matching might take long.
    """
    if text is not None and (text.count("*") > 8 or ("*" in text and len(text) > _MOST_SIGNS)):
        raise Invalid("the pattern cannot be used", [Problem(f"at most 8 stars and {_MOST_SIGNS} characters")])
    return text


def with_cursor(page: Spec) -> Spec:
    """A page of a desk as the API shows it."""
    following = page["next"]
    return {**page, "next": None if following is None else encode_cursor(*following), "total_is_estimate": False}


def _attributes(texts: list[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise Invalid("the list cannot be made", [Problem(f"{text!r} is not NAME=VALUE", "/query/attribute")])
        found[name] = pattern_of(value) or ""
    return found
