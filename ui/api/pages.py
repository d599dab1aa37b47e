"""The pages: the dashboard, and the documentation, operations and problems under ``/docs``. All from this server.

The dashboard is what ``ui/web/build.py`` built: files whose names change with their content, which browsers keep, and
``index.html``, which is sent for every path of a page with a policy and a nonce of its own.
"""

from __future__ import annotations

import html
import re
import secrets
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import Final
from urllib.parse import urlsplit

from fastapi import APIRouter, FastAPI, Request
from markdown_it import MarkdownIt
from markdown_it.token import Token
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.datastructures import Headers
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from ui.api.audit import acts_as
from ui.api.preconditions import takes_gzip
from ui.api.problems import TITLES
from ui.api.security import ADMINISTRATOR, checked, context_of, set_session

WEB: Final = Path(__file__).parent.parent / "web"
DIST: Final = WEB / "dist"
# Placeholder of the nonce in ``index.html``, as set in ``vite.config.ts``.
NONCE: Final = "NONCE"
_DASHBOARD_POLICY: Final = (
    "default-src 'none'; script-src 'self' 'nonce-{0}'; style-src 'self' 'nonce-{0}'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'; "
    "require-trusted-types-for 'script'"
)

router = APIRouter(include_in_schema=False)


class _PagePath(PathConvertor):
    """A path of the dashboard, whose own routes decide what it shows: not one of the API, nor of a file."""

    regex = r"(?!(?:api|assets|static|ingest|registry)(?:/|$)).*"


register_url_convertor("page", _PagePath())


class Assets(StaticFiles):
    """Files that never change under their name, compressed when they were built."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """The file, or its compressed form where the client takes it."""
        accepted = Headers(scope=scope).get("accept-encoding", "")
        directory = Path(str(self.directory))
        is_compressed = takes_gzip(accepted) and self.lookup_path(f"{path}.gz")[1] is not None
        response = await super().get_response(f"{path}.gz" if is_compressed else path, scope)
        if is_compressed and response.status_code == 200:
            response.headers["Content-Encoding"] = "gzip"
            response.headers["Content-Type"] = _TYPES[(directory / path).suffix]
        response.headers["Vary"] = "Accept-Encoding"
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return response


_TYPES: Final = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}


def add_pages(app: FastAPI) -> None:
    """Add the pages and the files that they load. Last, since the dashboard has every path that is left."""
    app.mount("/static", StaticFiles(directory=WEB / "static"), name="static")
    app.mount("/assets", Assets(directory=DIST / "assets", check_dir=False), name="assets")
    app.router.routes += router.routes


@router.get("/docs")
async def operations_page() -> Response:
    """Every operation, read from the OpenAPI document by the page itself."""
    return FileResponse(WEB / "static" / "reference.html")


@router.get("/docs/problems")
async def problems_page() -> Response:
    """Meaning of each ``code`` of a problem document; ``type`` points here."""
    rows = "".join(
        f'<tr id="{code}"><td><code>{code}</code></td><td class="num">{status}</td>'
        f"<td>{html.escape(title)}</td><td>{html.escape(advice)}</td></tr>"
        for code, (status, title, advice) in TITLES.items()
    )
    return HTMLResponse(_PROBLEMS_PAGE.replace("ROWS", rows))


@router.get("/docs/{path:path}")
def documentation_page(path: str) -> Response:
    """A page of the documentation as HTML, or an image of one."""
    if path not in _documentation():
        return HTMLResponse(_NO_PAGE, 404)
    return (
        HTMLResponse(_rendered(path))
        if path.endswith(".md")
        else FileResponse(_documentation()[path])
    )


@cache
def _documentation() -> Mapping[str, Path]:
    """The files of the documentation, by their paths: those of a wheel, else those of a clone."""
    root = next(
        (place for place in (WEB / "docs", WEB.parent.parent / "docs") if place.is_dir()), WEB
    )
    return {
        file.relative_to(root).as_posix(): file
        for file in root.rglob("*")
        if file.suffix in (".md", ".png")
    }


@cache
def _rendered(path: str) -> str:
    """A page of the documentation. Headings have identifiers for links; links to other files of a clone are text."""
    markdown = MarkdownIt().enable("table")
    tokens = markdown.parse(_documentation()[path].read_text())
    for opening, text in pairwise(tokens):
        if opening.type == "heading_open":
            opening.attrSet("id", re.sub(r"[^\w -]", "", text.content.lower()).replace(" ", "-"))
    for token in tokens:
        if token.attrs.pop("style", None) == "text-align:right":
            # the policy of pages has no styles in elements
            token.attrSet("class", "num")
    for parts in (token.children for token in tokens if token.children):
        for at, part in enumerate(parts):
            target = urlsplit(str(part.attrGet("href") or ""))
            if (
                target.path
                and not target.scheme
                and normpath(join(dirname(path), target.path)) not in _documentation()
            ):
                end = next(
                    place for place in range(at, len(parts)) if parts[place].type == "link_close"
                )
                parts[at] = parts[end] = Token("text", "", 0)
    title = next((text.content for text in tokens if text.type == "inline"), path)
    body = markdown.renderer.render(tokens, markdown.options, {})
    return _DOCUMENTATION_PAGE.replace("TITLE", html.escape(title), 1).replace("BODY", body, 1)


@router.get("/{path:page}")
async def dashboard(request: Request, code: str | None = None) -> Response:
    """The dashboard. A sign-in code in the address is exchanged for a session; the page then drops it."""
    nonce = secrets.token_urlsafe(16)
    index = DIST / "index.html"
    text = index.read_text().replace(NONCE, nonce) if index.is_file() else _NOT_BUILT
    headers = {
        "Cache-Control": "no-cache",
        "Content-Security-Policy": _DASHBOARD_POLICY.format(nonce),
    }
    response = HTMLResponse(text, 200 if index.is_file() else 503, headers)
    context = context_of(request)
    session = context.sign_in.redeem(code) if code else None
    if code and checked(request, context, code, session is not None) and session is not None:
        acts_as(request, ADMINISTRATOR, in_browser=True)
        request.state.opens_session = True
        set_session(request, response, session)
        response.headers["Cache-Control"] = "no-store"
    return response


_NOT_BUILT: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Sluice</title><link rel="icon" href="/static/mark.svg" type="image/svg+xml">
<link rel="stylesheet" href="/static/app.css"></head>
<body><main class="prose"><h1>The dashboard is not installed</h1>
<p>The broker and its <a href="/docs">API</a> work. This installation was made without the dashboard
(<code>SLUICE_UI=skip</code>). In a clone, run <code>make ui</code>; else install a wheel, or run
<code>SLUICE_UI=build pip install .</code> with access to the npm registry. Then load this page again.</p>
</main></body></html>
"""
_DOCUMENTATION_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>TITLE · Sluice</title><link rel="icon" href="/static/mark.svg" type="image/svg+xml">
<link rel="stylesheet" href="/static/app.css"></head>
<body><main class="prose"><p><a href="/">Dashboard</a> · <a href="/docs/README.md">Documentation</a></p>
BODY</main></body></html>
"""
_NO_PAGE: Final = _DOCUMENTATION_PAGE.replace("TITLE", "Not found").replace(
    "BODY", "<h1>Not found</h1><p>The documentation has no page at this address.</p>"
)
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
