"""Confluent's REST API under ``/registry``, so that Kafka and Spark tools read and register schemas here.

Paths, bodies, error codes and the content type are those of Confluent Schema Registry. Requests show the API's token
as bearer, or as the password of basic authentication, whatever the user's name.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from broker.admin.rights import Need
from broker.core import jsontext
from broker.core.errors import SluiceError
from broker.core.resources import Does
from schema_validation.subjects import TYPES, RegistryError, Subjects, as_registry_error
from ui.api.audit import acts_as, only_reads_registry
from ui.api.context import ApiContext
from ui.api.deadline import BoundedCalls
from ui.api.json_bodies import read_object
from ui.api.problems import ApiProblem, log
from ui.api.schemas import COMPILE_S
from ui.api.security import actor_with_token, require

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
PATH = "/registry"

Handler = Callable[[Request], Any]


def registry_app(schemas: Any, context: ApiContext) -> ASGIApp:
    """The application to be mounted under ``PATH``, over the service of schemas."""
    routes = [
        Route(path, _answering(handler), methods=[method])
        for method, path, handler in _Handlers(Subjects(schemas)).routes()
    ]
    missing = {404: _not_found, 405: _not_found}
    return Starlette(
        routes=routes, middleware=[Middleware(_Guard, context=context)], exception_handlers=missing
    )


class _Handlers:
    """The handlers, over the subjects of the schemas."""

    def __init__(self, subjects: Subjects) -> None:
        self._subjects, self._calls = subjects, BoundedCalls(COMPILE_S, slots=2)

    def routes(self) -> Sequence[tuple[str, str, Handler]]:
        """Method, path and handler of each route."""
        subjects = self._subjects
        version_path = "/subjects/{subject}/versions/{version}"
        by_id = "/schemas/ids/{id:int}"
        return (
            ("GET", "/", lambda _: {}),
            ("GET", "/subjects", self.names),
            ("POST", "/subjects/{subject}", self.look_up),
            ("DELETE", "/subjects/{subject}",
             lambda it: subjects.delete(_subject(it), permanent=_flag(it, "permanent"))),
            ("GET", "/subjects/{subject}/versions", self.versions),
            ("POST", "/subjects/{subject}/versions", self.register),
            ("GET", version_path, self.version),
            ("DELETE", version_path, self.delete_version),
            ("GET", f"{version_path}/schema", lambda it: _Text(subjects.text(_subject(it), _version(it)))),
            ("GET", f"{version_path}/referencedby", lambda it: subjects.referenced_by(_subject(it), _version(it))),
            ("GET", "/schemas", self.schemas),
            ("GET", "/schemas/types", lambda _: sorted(TYPES)),
            ("GET", "/schemas/guids/{guid}", lambda it: subjects.by_guid(it.path_params["guid"])),
            ("GET", by_id, lambda it: subjects.by_id(it.path_params["id"])),
            ("GET", f"{by_id}/schema", lambda it: _Text(subjects.text_by_id(it.path_params["id"]))),
            ("GET", f"{by_id}/subjects", lambda it: sorted({subject for subject, _ in self.places(it)})),
            ("GET", f"{by_id}/versions",
             lambda it: [{"subject": name, "version": number} for name, number in self.places(it)]),
            *((method, path, handler) for path in ("/config", "/config/{subject}")
              for method, handler in (("GET", self.level), ("PUT", self.set_level), ("DELETE", self.forget_level))),
            ("POST", "/compatibility/subjects/{subject}/versions", self.compatible),
            ("POST", "/compatibility/subjects/{subject}/versions/{version}", self.compatible),
            ("GET", "/mode", self.mode),
            ("GET", "/mode/{subject}", self.mode),
            ("GET", "/contexts", lambda _: ["."]),
        )  # fmt: skip

    async def look_up(self, request: Request) -> Any:
        body = await read_object(request)
        deleted = _flag(request, "deleted")
        return await self._calls.run(
            "looking up the schema",
            lambda: self._subjects.look_up(_subject(request), body, deleted=deleted),
        )

    async def register(self, request: Request) -> Any:
        compiling, spec = self._subjects.register(_subject(request), await read_object(request))
        prepared = await self._calls.run("compiling the schema", compiling)
        return self._subjects.registered(_subject(request), spec, prepared)

    async def set_level(self, request: Request) -> Any:
        level = (await read_object(request)).get("compatibility")
        return {"compatibility": self._subjects.set_level(_optional_subject(request), level)}

    async def compatible(self, request: Request) -> Any:
        version = request.path_params.get("version")
        comparing = self._subjects.compatible(
            _subject(request), version, await read_object(request)
        )
        verdict = await self._calls.run("comparing the schema", comparing)
        answer: dict[str, Any] = {"is_compatible": verdict.is_compatible}
        if _flag(request, "verbose"):
            answer["messages"] = [str(finding) for finding in verdict.problems]
        return answer

    def names(self, request: Request) -> Any:
        only = _flag(request, "deletedOnly")
        prefix = request.query_params.get("subjectPrefix", "")
        return _piece(
            request,
            self._subjects.names(
                deleted=_flag(request, "deleted"), deleted_only=only, prefix=prefix
            ),
        )

    def schemas(self, request: Request) -> Any:
        prefix = request.query_params.get("subjectPrefix", "")
        latest = _flag(request, "latestOnly")
        return _piece(
            request,
            self._subjects.all(
                prefix=prefix, latest_only=latest, deleted=_flag(request, "deleted")
            ),
        )

    def versions(self, request: Request) -> Any:
        return _piece(
            request, self._subjects.versions(_subject(request), deleted=_flag(request, "deleted"))
        )

    def version(self, request: Request) -> Any:
        return self._subjects.version(
            _subject(request), _version(request), deleted=_flag(request, "deleted")
        )

    def delete_version(self, request: Request) -> Any:
        return self._subjects.delete_version(
            _subject(request), _version(request), permanent=_flag(request, "permanent")
        )

    def places(self, request: Request) -> Any:
        return self._subjects.places(request.path_params["id"], deleted=_flag(request, "deleted"))

    def level(self, request: Request) -> Any:
        level = self._subjects.level(
            _optional_subject(request), or_overall=_flag(request, "defaultToGlobal")
        )
        return {"compatibilityLevel": level}

    def forget_level(self, request: Request) -> Any:
        return {"compatibilityLevel": self._subjects.forget_level(_optional_subject(request))}

    def mode(self, request: Request) -> Any:
        return {
            "mode": "READONLY"
            if self._subjects.is_read_only(_optional_subject(request))
            else "READWRITE"
        }


class _Text(str):
    """A schema that is the whole answer."""


class _Guard:
    """Refuses requests without the token."""

    def __init__(self, app: ASGIApp, context: ApiContext) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = self._refusal(Request(scope)) if scope["type"] == "http" else None
        await (response or self._app)(scope, receive, send)

    def _refusal(self, request: Request) -> Response | None:
        try:
            token = _shown_token(request)
            if token is not None:
                acts_as(request, actor_with_token(request, self._context, token))
                require(request, Need("schemas", _does(request)))
                return None
        except ApiProblem as error:
            if error.status != 401:
                response = _error(RegistryError(error.status, str(error)))
                response.headers.update(error.headers)
                return response
        response = _error(
            RegistryError(40101, "Unauthorized: send the API's token as bearer or basic password")
        )
        response.headers["WWW-Authenticate"] = 'Basic realm="sluice"'
        return response


def _shown_token(request: Request) -> str | None:
    scheme, _, shown = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return shown.strip()
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(shown.strip(), validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return None


def _does(request: Request) -> Does:
    if request.method in ("GET", "HEAD") or only_reads_registry(request.method, request.url.path):
        return "read"
    return "change"


def _answering(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            result = handler(request)
            result = await result if isawaitable(result) else result
        except RegistryError as error:
            return _error(error)
        except SluiceError as error:
            return _error(as_registry_error(error))
        except ApiProblem as error:
            return _error(RegistryError(42201 if error.status == 400 else error.status, str(error)))
        except ClientDisconnect:
            raise
        except Exception:  # noqa: BLE001 - whatever it is, clients get an answer of the kind they read
            log.exception("registry.failed", extra={"path": request.url.path})
            return _error(RegistryError(50001, "Error in the backend data store"))
        body = result.encode() if isinstance(result, _Text) else jsontext.encode(result)
        return Response(body, media_type=CONTENT_TYPE)

    return answer


def _error(error: RegistryError) -> Response:
    body = {"error_code": error.error_code, "message": str(error)}
    return Response(jsontext.encode(body), error.status, media_type=CONTENT_TYPE)


async def _not_found(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    return _error(
        RegistryError(status, f"HTTP {status}: there is no {request.method} {request.url.path}")
    )


def _subject(request: Request) -> str:
    return str(request.path_params["subject"])


def _version(request: Request) -> str:
    return str(request.path_params["version"])


def _optional_subject(request: Request) -> str | None:
    return request.path_params.get("subject")


def _flag(request: Request, name: str) -> bool:
    return request.query_params.get(name, "").lower() == "true"


def _piece(request: Request, items: list[Any]) -> list[Any]:
    """``offset`` and ``limit`` of a list, as clients page."""
    offset = _whole(request, "offset", 0)
    limit = _whole(request, "limit", -1)
    return items[offset:] if limit < 0 else items[offset : offset + limit]


def _whole(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else default
