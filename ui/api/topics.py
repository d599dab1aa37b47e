"""Tails of topics, and files of captures."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request
from pydantic import AfterValidator
from starlette.responses import StreamingResponse

from broker.admin.captures import CaptureRecord, Captures
from broker.admin.tails import MAX_BYTES, MAX_MESSAGES, MessageTails, check_filter, publishers_of
from broker.core import jsontext
from broker.core.resources import PATTERN
from ui.api.json_bodies import plain
from ui.api.models.topics import TailLine
from ui.api.operation import Operations
from ui.api.resources import pattern_of
from ui.api.security import while_identified

_LINES: Final = "application/x-ndjson"

Filter = Annotated[str, Query(description="A topic filter.")]
TailedClient = Annotated[
    str | None,
    Query(
        description=f"Client identifier of the publisher. {PATTERN}",
        min_length=1,
        max_length=65_535,
    ),
    AfterValidator(pattern_of),
]
TailedAddress = Annotated[
    str | None,
    Query(
        description="Address of the publisher, or a network such as `10.0.0.0/8`.",
        min_length=1,
        max_length=64,
    ),
]


def add_tails(router: APIRouter, tails: MessageTails) -> None:
    """Add ``/topics/tail``."""
    ops = Operations(router, "Topics", "message", "required", "lines")

    @ops.get(
        "/topics/tail",
        "tailTopics",
        "Follow the messages of a filter",
        answer=TailLine,
        media=_LINES,
        problems=(422,),
        outcome="Messages and statuses, a line each",
    )
    def tail(
        request: Request,
        filter: Filter,
        clientid: TailedClient = None,
        address: TailedAddress = None,
        messages_per_s: Annotated[
            int, Query(ge=1, le=MAX_MESSAGES, description="Maximum number of messages per second.")
        ] = MAX_MESSAGES,
        bytes_per_s: Annotated[
            int, Query(ge=1024, le=MAX_BYTES, description="Maximum bytes of payloads per second.")
        ] = MAX_BYTES,
        count: Annotated[
            int | None, Query(ge=1, description="Ends after this number of messages.")
        ] = None,
        seconds: Annotated[
            float, Query(gt=0, le=86_400, description="Ends after this number of seconds.")
        ] = 10,
    ) -> StreamingResponse:
        """Returns messages as they pass, one JSON object per line, each with its outcome.

        It is a sample: what exceeds the bounds is counted as skipped, and delivery is not slowed. Payloads are decoded
        by the schema that a validation binds to the topic, and cut after 64 KiB. Messages that access rules refuse are
        not shown.
        """
        check_filter(filter)
        publishers = publishers_of(clientid, address)
        lines = tails.stream(filter, messages_per_s, bytes_per_s, count, seconds, _line, publishers)
        return StreamingResponse(while_identified(request, lines), media_type=_LINES)


def add_capture_files(router: APIRouter, captures: Captures) -> None:
    """Add ``/captures/{name}/file``."""
    ops = Operations(router, "Topics", "capture", "named", "lines")

    @ops.get(
        "/captures/{name}/file",
        "downloadCapture",
        "Download a capture",
        answer=CaptureRecord,
        media=_LINES,
        problems=(404,),
        outcome="Messages, a line each",
        topics="named",
    )
    def download(
        name: Annotated[str, Path(description="Its name.", max_length=64)],
    ) -> StreamingResponse:
        """Returns the records of a capture so far, one JSON object per line."""
        captures.check(name)
        headers = {"Content-Disposition": f'attachment; filename="{name}.jsonl"'}
        return StreamingResponse(captures.lines(name), media_type=_LINES, headers=headers)


def _line(value: Any) -> bytes:
    return jsontext.encode(plain(value)) + b"\n"
