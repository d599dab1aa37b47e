"""``POST /ingest/NAME``: a request goes to the source of that name, which authorizes and processes it.

Not part of the management API: the administrator's token opens nothing here, and what opens here opens nothing there.
"""

from __future__ import annotations

from fastapi import FastAPI, Request
from starlette.responses import Response

from broker.core.errors import NotFound, Unavailable
from broker.core.receivers import Post, PostRefused, Receiver
from ui.api.connections import authenticated
from ui.api.context import ApiContext
from ui.api.json_bodies import answer, read_bytes
from ui.api.problems import ApiProblem

PATH = "/ingest"
_TYPE = "http_server"


def add_ingest(app: FastAPI, context: ApiContext) -> None:
    """Add the routes."""

    async def ingest(name: str, request: Request, path: str = "") -> Response:
        receiver = _receiver(context, name)

        async def read(most_bytes: int) -> bytes:
            try:
                return await read_bytes(request, most_bytes)
            except ApiProblem as error:
                raise PostRefused(error.status, error.code, str(error)) from None

        peer_host = request.client.host if request.client else None
        headers = {header.lower(): text for header, text in request.headers.items()}
        post = Post(
            path,
            dict(request.query_params),
            headers,
            peer_host,
            read,
            lambda: authenticated(request),
        )
        try:
            return answer(dict(await receiver.receive(post)))
        except PostRefused as error:
            raise ApiProblem(
                error.status, error.code, str(error), error.errors, error.headers
            ) from None

    app.add_api_route(f"{PATH}/{{name}}", ingest, methods=["POST"], include_in_schema=False)
    app.add_api_route(
        f"{PATH}/{{name}}/{{path:path}}", ingest, methods=["POST"], include_in_schema=False
    )


def _receiver(context: ApiContext, name: str) -> Receiver:
    """The one of that name.

    Raises:
        NotFound: there is no such source.
        Unavailable: it does not run now.
    """
    receiver = context.receivers.find(name)
    if receiver is not None:
        return receiver
    sources = context.services.get("sources")
    if sources is None or sources.get(name)["type"] != _TYPE:
        raise NotFound("HTTP source", name)
    raise Unavailable(f"source {name!r} does not run now; try again", retry_after_s=5)
