"""The pages: status at ``/``, operations and problems under ``/docs``. Static, and all from this server."""

from __future__ import annotations

import html
from pathlib import Path

from fastapi import APIRouter, FastAPI, Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from ui.api.problems import TITLES
from ui.api.security import checked, context_of, set_session

STATIC = Path(__file__).parent.parent / "web" / "static"

router = APIRouter(include_in_schema=False)


def add_pages(app: FastAPI) -> None:
    """Add the pages and the files that they load."""
    app.include_router(router)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")


@router.get("/")
async def status_page(request: Request, code: str | None = None) -> Response:
    """The status page. A sign-in code in the address is exchanged for a session; the page then drops it."""
    response = FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-store"})
    context = context_of(request)
    session = context.sign_in.redeem(code) if code else None
    if code and checked(request, context, code, session is not None) and session is not None:
        set_session(request, response, session)
    return response


@router.get("/docs")
async def operations_page() -> Response:
    """Every operation, read from the OpenAPI document by the page itself."""
    return FileResponse(STATIC / "reference.html")


@router.get("/docs/problems")
async def problems_page() -> Response:
    """What each ``code`` of a problem document means; ``type`` points here."""
    rows = "".join(
        f'<tr id="{code}"><td><code>{code}</code></td><td class="num">{status}</td>'
        f"<td>{html.escape(title)}</td><td>{html.escape(advice)}</td></tr>"
        for code, (status, title, advice) in TITLES.items()
    )
    return HTMLResponse(_PROBLEMS_PAGE.replace("ROWS", rows))


_PROBLEMS_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Problems · Sluice</title><link rel="icon" href="/static/mark.svg" type="image/svg+xml">
<link rel="stylesheet" href="/static/app.css"></head>
<body><main class="prose"><h1>Problems</h1>
<p>Errors are problem documents (RFC 9457, <code>application/problem+json</code>). <code>code</code> is stable.
<code>errors</code> lists every problem found, with a JSON pointer into the body and, inside a string, line and column.
<a href="/docs">Operations</a></p>
<div class="scroll" role="group" aria-label="Codes" tabindex="0"><table>
<thead><tr><th>Code</th><th class="num">Status</th><th>Meaning</th><th>What to do</th></tr></thead>
<tbody>ROWS</tbody></table></div></main></body></html>
"""
