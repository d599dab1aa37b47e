"""Listeners while the broker runs, and reading the configuration again."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from ui.api.context import Listeners, ReloadConfig, ShowSettings
from ui.api.models.node import ListenerSpec
from ui.api.models.shapes import Anything, ObjectList
from ui.api.objects import whole_list
from ui.api.operation import described
from ui.api.wire import answer, read_object

Id = Annotated[str, Path(max_length=300, description="Kind and key, as `tcp:default`.")]
Drain = Annotated[bool, Query(description="Whether its connections may stay until they end.")]
_TAGS: list[Any] = ["Listeners"]


def add_listeners(router: APIRouter, listeners: Listeners) -> None:
    """Add ``/listeners`` and its verbs."""

    @router.get(
        "/listeners",
        operation_id="listListeners",
        tags=_TAGS,
        summary="Listeners for MQTT in the order in which they are opened, and what they do",
        **described(answer=ObjectList),
    )
    async def list_listeners() -> Response:
        return answer(whole_list(listeners.list()))

    _add_switches(router, listeners)

    @router.get(
        "/listeners/{id}",
        operation_id="getListener",
        tags=_TAGS,
        summary="A listener with its settings",
        **described(answer=Anything, problems=(404, 422)),
    )
    async def get_listener(id: Id) -> Response:
        return answer(listeners.get(id))

    @router.post(
        "/listeners/{id}",
        operation_id="createListener",
        tags=_TAGS,
        summary="Add a listener and open it; the body holds its settings",
        **described(body=ListenerSpec, answer=Anything, status=201, problems=(409,)),
    )
    async def create_listener(id: Id, request: Request) -> Response:
        return answer(await listeners.create(id, await read_object(request)), 201)

    @router.patch(
        "/listeners/{id}",
        operation_id="patchListener",
        tags=_TAGS,
        summary="Change settings of a listener, by JSON Merge Patch; its connections live on",
        **described(body=ListenerSpec, answer=Anything, problems=(404, 409)),
    )
    async def patch_listener(id: Id, request: Request, drain: Drain = False) -> Response:
        return answer(await listeners.patch(id, await read_object(request), drain=drain))

    @router.delete(
        "/listeners/{id}",
        operation_id="deleteListener",
        tags=_TAGS,
        summary="Close a listener and forget it; its connections are closed, unless they are to drain",
        **described(status=204, problems=(404, 409, 422)),
    )
    async def delete_listener(id: Id, drain: Drain = False) -> Response:
        await listeners.delete(id, drain=drain)
        return Response(status_code=204)


def _add_switches(router: APIRouter, listeners: Listeners) -> None:
    @router.post(
        "/listeners/{id}:start",
        operation_id="startListener",
        tags=_TAGS,
        summary="Open a listener that was stopped",
        **described(answer=Anything, problems=(404, 422)),
    )
    async def start_listener(id: Id) -> Response:
        return answer(await listeners.start(id))

    @router.post(
        "/listeners/{id}:stop",
        operation_id="stopListener",
        tags=_TAGS,
        summary="Close a listener until it, or the broker, is started again",
        **described(answer=Anything, problems=(404, 422)),
    )
    async def stop_listener(id: Id, drain: Drain = False) -> Response:
        return answer(await listeners.stop(id, drain=drain))

    @router.post(
        "/listeners/{id}:restart",
        operation_id="restartListener",
        tags=_TAGS,
        summary="Close a listener and open it again",
        **described(answer=Anything, problems=(404, 422)),
    )
    async def restart_listener(id: Id, drain: Drain = False) -> Response:
        return answer(await listeners.restart(id, drain=drain))


def add_settings(router: APIRouter, settings: ShowSettings) -> None:
    """Add ``GET /config``."""

    @router.get(
        "/config",
        operation_id="getConfig",
        tags=["System"],
        summary="Every setting in force, its source, and what the files say where that differs; secrets are masked",
        **described(answer=Anything),
    )
    async def get_config() -> Response:
        return answer(await settings())


def add_reload(router: APIRouter, reload: ReloadConfig) -> None:
    """Add ``POST /config:reload``."""

    @router.post(
        "/config:reload",
        operation_id="reloadConfig",
        tags=["System"],
        summary="Read the configuration again and put in force what has changed; when something is wrong, nothing",
        **described(answer=Anything, problems=(422,)),
    )
    async def reload_config(drain: Drain = False) -> Response:
        return answer(await reload(drain=drain))
