"""Operations: how they are described in OpenAPI, how their bodies are read, and how what they return is answered."""

from __future__ import annotations

import re
import threading
from collections.abc import Awaitable, Callable
from functools import partial, wraps
from inspect import Parameter, Signature, isawaitable, signature
from typing import Any, Final, Literal
from urllib.parse import unquote

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, compile_path
from starlette.types import Scope

from broker.admin.jobs import JOB_ID
from broker.admin.rights import Actor
from broker.config.spec_problems import parsed
from broker.core.kinds import At, Kind, Topics
from broker.core.resources import Does
from ui.api.audit import note_subject
from ui.api.body_members import check_members
from ui.api.cell_calls import is_of_cell
from ui.api.cell_figures import FIGURES_HEADER, figures_only
from ui.api.cell_jobs import JOB_HEADER
from ui.api.cell_joins import SHOWS_PLACES, Joining
from ui.api.cell_requests import Asked
from ui.api.idempotency import HEADER, IdempotencyKeys
from ui.api.json_bodies import MAX_JSON_BYTES, answer, read_bytes, read_object
from ui.api.models.jobs import JobWithResult
from ui.api.models.shapes import Effect
from ui.api.parameters import rename_old_members
from ui.api.security import need_of
from ui.api.topic_scope import require_topics

Handler = Callable[..., Any]

# Tags of operations whose bodies are messages and events, which may name any file.
_TAGS_OF_DATA: Final = frozenset({"Try", "Messages"})
COMPONENTS: Final = "#/components/schemas/"
RESPONSES: Final = "#/components/responses/"

# Meaning of the error statuses of operations.
PROBLEMS: Final = {
    400: "Malformed: not JSON, or an unknown parameter",
    401: "No token, or a wrong one",
    403: "A missing right, which the detail names; a session used from another site; a host name that is not allowed",
    404: "No object of that name",
    408: "The body did not arrive in time",
    409: "The name is taken, or the object is used or fixed by a file",
    412: "The object is not the one that If-Match names",
    413: "The body is larger than 2 MiB (files: 16 MiB)",
    422: "A parameter or the body cannot be used; errors[] has every problem with its place",
    429: "Too many failed logins, or too many requests at once; see Retry-After",
    500: "The server failed; its log has the request's identifier",
    503: "Not now; see Retry-After",
}
_ENCODED_SLASH: Final = re.compile("%2[fF]")
# Stands for a slash of a name while routes are matched: half of a surrogate pair, which no path has.
_SLASH_OF_NAME: Final = "\udc2f"
_OF_EVERY: Final = (400, 401, 403, 429, 500, 503)
_OF_BODIES: Final = (408, 413, 422)


_IF_MATCH: Final = {
    "name": "If-Match",
    "in": "header",
    "required": False,
    "description": "The `ETag` of the version to change: 412 where the object changed since.",
    "schema": {"type": "string"},
}

_KEY: Final = {
    "name": HEADER,
    "in": "header",
    "required": False,
    "description": "A new string for each request: the same request with it again gets the same answer for 24 hours.",
    "schema": {"type": "string", "maxLength": 255},
}

# Models that operations name, by where the document describes them.
MODELS: Final[dict[str, Any]] = {}


class EncodedRoute(APIRoute):
    """A route to which an encoded slash belongs to a name: ``/clients/a%2Fevents`` is the client ``a/events``, while
    ``/clients/a/events`` are the events of ``a``. A slash that is not encoded belongs to a name where nothing else has
    that path.

    FastAPI analyses a route on its first use: for hundreds of routes, that took a seventh of the processor time of a
    broker's start."""

    _lock: Final = threading.RLock()

    def __init__(self, path: str, endpoint: Handler, **how: Any) -> None:
        """Same as ``fastapi.routing.APIRoute``."""
        self.path, self.endpoint, self.methods = path, endpoint, set(how["methods"])
        self.path_regex, self.path_format, self.param_convertors = compile_path(path)
        self._make = partial(super().__init__, path, endpoint, **how)

    def __getattr__(self, name: str) -> Any:
        """A member that FastAPI sets. The OpenAPI document is built on another thread than requests are routed."""
        with self._lock:
            make = vars(self).pop("_make", None)
            if make is not None:
                make()
        try:
            return vars(self)[name]
        except KeyError:
            raise AttributeError(name) from None

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """See ``starlette.routing.BaseRoute``."""
        parts = _ENCODED_SLASH.split(scope.get("raw_path", b"").decode("ascii", "replace"))
        if len(parts) == 1:
            return super().matches(scope)
        parts = [unquote(part) for part in parts]
        root = scope["path"].removesuffix("/".join(parts))
        path = root + _SLASH_OF_NAME.join(parts)
        match, child = super().matches({**scope, "path": path})
        if match is not Match.NONE:
            child["path_params"] = {
                name: value.replace(_SLASH_OF_NAME, "/") if isinstance(value, str) else value
                for name, value in child["path_params"].items()
            }
        return match, child


class Operations:
    """Adds operations with one tag to a router. They are ``about`` a kind, or another resource, and run ``at`` a place
    (``broker.core.kinds.At``), where they do not say ``at`` themselves; what does not change anything saved then runs
    here. What is not a GET changes something, or says what it does in ``does``. ``joining`` says more about how
    answers of several cells are joined. Scopes of topics apply to them as ``topics`` says, which is also theirs to say;
    ``named`` of all of them is for those that do more than read.

    A handler is called on the event loop. What it returns is the answer, None being 204; it may be a coroutine. Its
    parameter ``body`` is the body: the model that is its type, which OpenAPI then shows, or the object as it was sent,
    which fits the model that the argument ``body`` names, or which the service of a kind validates. Its parameter
    ``name`` is of the type ``name``, where one is given.
    """

    def __init__(
        self,
        router: APIRouter,
        tag: str,
        about: str,
        topics: Topics,
        at: At = "here",
        name: Any = None,
    ) -> None:
        self._router = router
        self.tag = tag
        self._about = about
        self._topics: Topics = topics
        self._at = at
        self._name = name

    def get(self, path: str, id: str, summary: str, **how: Any) -> Callable[[Handler], Handler]:
        """Add a GET; keywords as of ``described``."""
        return self._adding("GET", path, id, summary, how)

    def post(self, path: str, id: str, summary: str, **how: Any) -> Callable[[Handler], Handler]:
        """Add a POST; keywords as of ``described``."""
        return self._adding("POST", path, id, summary, how)

    def put(self, path: str, id: str, summary: str, **how: Any) -> Callable[[Handler], Handler]:
        """Add a PUT; keywords as of ``described``."""
        return self._adding("PUT", path, id, summary, how)

    def patch(self, path: str, id: str, summary: str, **how: Any) -> Callable[[Handler], Handler]:
        """Add a PATCH; keywords as of ``described``."""
        return self._adding("PATCH", path, id, summary, how)

    def delete(self, path: str, id: str, summary: str, **how: Any) -> Callable[[Handler], Handler]:
        """Add a DELETE; keywords as of ``described``."""
        return self._adding("DELETE", path, id, summary, how)

    def _adding(
        self, method: str, path: str, id: str, summary: str, how: dict[str, Any]
    ) -> Callable[[Handler], Handler]:
        def add(handler: Handler) -> Handler:
            parameters = dict(signature(handler, eval_str=True).parameters)
            if self._name is not None and "name" in parameters:
                parameters["name"] = parameters["name"].replace(annotation=self._name)
            body = parameters.pop("body", None)
            model = body.annotation if body is not None and _is_model(body.annotation) else None
            text = how.pop("description", None)
            most_bytes = how.pop("most_bytes", MAX_JSON_BYTES)
            does: Does = how.pop("does", "read" if method == "GET" else "change")
            at: At = how.pop("at", "here" if _is_of_front(self._at, does) else self._at)
            if at == "home" and does == "change":
                at = "config"
            joining = how.pop("joining", Joining())
            is_definition = self._topics == "named" and does == "read"
            resource = {
                "name": self._about,
                "does": does,
                "at": at,
                "topics": how.pop("topics", None) or ("none" if is_definition else self._topics),
            }
            takes_key = how.get("takes_key", False)
            needs_body = how.get("needs_body", True)
            in_path = "{" in path
            others = parameters.keys() - {"request"}
            implied = ((404,) if in_path else ()) + ((422,) if others else ())
            route = described(
                **{"body": model, **how, "problems": (*how.get("problems", ()), *implied)}
            )
            route["openapi_extra"]["x-resource"] = resource
            shown = how.get("body", model)
            is_data = self.tag in _TAGS_OF_DATA and "parameters" not in getattr(
                shown, "model_fields", ()
            )
            has_request = "request" in parameters

            @wraps(handler)
            async def run(request: Request, **values: Any) -> Response:
                if has_request:
                    values["request"] = request
                sent: dict[str, Any] = {}
                if body is not None and (needs_body or await read_bytes(request, most_bytes)):
                    sent = await read_object(request, most_bytes, may_name_files=is_data)
                    rename_old_members(request, sent, shown)
                    if shown is not None and _is_model(shown):
                        check_members(sent, shown)
                        checked = parsed(shown, sent, "the body cannot be used")
                    values["body"] = sent if model is None else checked
                elif model is not None:
                    values["body"] = model()

                actor: Actor | None = getattr(request.state, "identity", None)
                if actor is not None and actor.topics is not None:
                    await require_topics(request, actor, need_of(request), sent)
                request.state.is_dry = (values.get("dry_run") or sent.get("dry_run")) is True

                async def act_here(**others: Any) -> Response:
                    result = handler(**values | others)
                    result = await result if isawaitable(result) else result
                    if isinstance(result, Response):
                        return result
                    if needs_figures:
                        result = figures_only(result)
                    return (
                        Response(status_code=204)
                        if result is None
                        else answer(result, route["status_code"])
                    )

                needs_figures = (
                    at == "running" and is_of_cell(request) and FIGURES_HEADER in request.headers
                )
                act: Callable[[], Awaitable[Response]] = act_here
                faces = request.app.state.context.faces
                if is_of_cell(request):
                    SHOWS_PLACES.set(True)
                    JOB_ID.set(request.headers.get(JOB_HEADER))
                elif faces is not None and at != "here":
                    sent_body = sent if body is not None else None
                    asked = Asked(request, method, at, values, sent_body, joining, note_subject)
                    act = partial(faces.answer, asked, act_here)
                if takes_key and HEADER in request.headers:
                    keys: IdempotencyKeys = request.app.state.context.keys
                    return await keys.once(request, sent, act)
                return await act()

            parameters["request"] = Parameter("request", Parameter.KEYWORD_ONLY, annotation=Request)
            run.__signature__ = Signature(  # type: ignore[attr-defined]  # FastAPI reads parameters here
                [
                    parameter.replace(kind=Parameter.KEYWORD_ONLY)
                    for parameter in parameters.values()
                ]
            )
            self._router.add_api_route(
                path,
                run,
                methods=[method],
                operation_id=id,
                tags=[self.tag],
                summary=summary,
                description=text,
                **route,
            )
            return handler

        return add


def _is_of_front(at: At, does: Does) -> bool:
    """True if what is declared to run there runs here, since it changes nothing that is saved."""
    return at in ("config", "each") and does != "change"


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def described(
    *,
    body: type[BaseModel] | Kind | None = None,
    is_patch: bool = False,
    form: dict[str, Any] | None = None,
    media_types: tuple[str, ...] = (),
    answer: type[Any] | Kind | None = None,
    is_list: bool = False,
    status: int = 0,
    problems: tuple[int, ...] = (),
    outcome: str = "Done",
    media: str = "application/json",
    redirect: str = "",
    also_creates: bool = False,
    may_be_dry: bool = False,
    takes_key: bool = False,
    needs_body: bool = True,
    may_be_a_job: bool = False,
) -> dict[str, Any]:
    """Keyword arguments for a route: what FastAPI cannot see, since bodies are read and written exactly, by us.

    The body of a kind is validated by the service, with the models that the document shows. ``problems`` are those
    in addition to the ones of every operation, of bodies, of parameters (422) and of paths that name something (404).
    """
    status = status or (204 if answer is None else 200)
    responses: dict[int | str, dict[str, Any]] = {status: {"description": outcome}}
    if answer is not None:
        schema: dict[str, Any] = {"type": "string", "format": "binary"}
        if answer is not bytes:
            shown = (
                ref_of_kind(answer, "List" if is_list else "Object")
                if isinstance(answer, Kind)
                else ref(answer)
            )
            schema = {"$ref": shown}
        responses[status]["content"] = {media: {"schema": schema}}
    if also_creates:
        responses[201] = {**responses[status], "description": "Created"}
    if redirect:
        responses[307] = {"description": redirect}
    if may_be_dry:
        dry = {"$ref": ref(Effect)}
        done = responses.get(200)
        schema = {"anyOf": [done["content"]["application/json"]["schema"], dry]} if done else dry
        described = done["description"] if done else "With `dry_run`: the effect"
        responses[200] = {
            "description": described,
            "content": {"application/json": {"schema": schema}},
        }
    if may_be_a_job:
        content = {"application/json": {"schema": {"$ref": ref(JobWithResult)}}}
        responses[202] = {
            "description": "With `Prefer: respond-async`: the job",
            "content": content,
        }
    with_body = () if body is None and form is None and not media_types else _OF_BODIES
    with_key = (409, 422) if takes_key else ()
    for code in sorted({*_OF_EVERY, *with_body, *with_key, *problems}):
        responses[code] = {"$ref": f"{RESPONSES}Problem{code}", "description": PROBLEMS[code]}
    extra: dict[str, Any] = {}
    if body is not None:
        named = (
            ref_of_kind(body, "Patch" if is_patch else "Spec")
            if isinstance(body, Kind)
            else ref(body)
        )
        content = {"application/json": {"schema": {"$ref": named}}}
        extra["requestBody"] = {"required": needs_body, "content": content}
    if headers := [*([_IF_MATCH] if 412 in problems else ()), *([_KEY] if takes_key else ())]:
        extra["parameters"] = headers
    if form is not None:
        extra["requestBody"] = {
            "required": True,
            "content": {"multipart/form-data": {"schema": form}},
        }
    if media_types:
        content = {
            media_type: {"schema": {"type": "string", "format": "binary"}}
            for media_type in media_types
        }
        extra["requestBody"] = {"required": True, "content": content}
    kind = JSONResponse if answer is not None and media == "application/json" else Response
    return {
        "responses": responses,
        "openapi_extra": extra,
        "status_code": status,
        "response_class": kind,
    }


def ref(model: type[Any]) -> str:
    """Reference to the model in the document."""
    name = f"{COMPONENTS}{model.__name__}"
    assert MODELS.setdefault(name, model) is model, f"two models are named {name}"
    return name


def ref_of_kind(kind: Kind, part: Literal["Spec", "Patch", "Object", "Item", "List"]) -> str:
    """Reference to a model of a kind in the document: of a spec, a patch, an object as shown, an object in a list, or
    a page."""
    return f"{COMPONENTS}{kind.id}{part}"
