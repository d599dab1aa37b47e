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
        summary="List listeners",
        **described(answer=ObjectList),
    )
    async def list_listeners() -> Response:
        """Returns MQTT listeners in the order in which they open, with their state and connections."""
        return answer(whole_list(listeners.list()))

    _add_switches(router, listeners)

    @router.get(
        "/listeners/{id}",
        operation_id="getListener",
        tags=_TAGS,
        summary="Show a listener",
        **described(answer=Anything, problems=(404, 422)),
    )
    async def get_listener(id: Id) -> Response:
        """Returns the settings and the state of the listener."""
        return answer(listeners.get(id))

    @router.post(
        "/listeners/{id}",
        operation_id="createListener",
        tags=_TAGS,
        summary="Create a listener",
        **described(body=ListenerSpec, answer=Anything, status=201, problems=(409,)),
    )
    async def create_listener(id: Id, request: Request) -> Response:
        """Adds a listener and opens it. The identifier is its type and name: `tcp:plant`."""
        return answer(await listeners.create(id, await read_object(request)), 201)

    @router.patch(
        "/listeners/{id}",
        operation_id="patchListener",
        tags=_TAGS,
        summary="Change settings of a listener",
        **described(body=ListenerSpec, answer=Anything, problems=(404, 409)),
    )
    async def patch_listener(id: Id, request: Request, drain: Drain = False) -> Response:
        """JSON Merge Patch (RFC 7396) of its settings. Open connections stay."""
        return answer(await listeners.patch(id, await read_object(request), drain=drain))

    @router.delete(
        "/listeners/{id}",
        operation_id="deleteListener",
        tags=_TAGS,
        summary="Delete a listener",
        **described(status=204, problems=(404, 409, 422)),
    )
    async def delete_listener(id: Id, drain: Drain = False) -> Response:
        """Closes the listener and its connections. With `drain` they get time to end."""
        await listeners.delete(id, drain=drain)
        return Response(status_code=204)


def _add_switches(router: APIRouter, listeners: Listeners) -> None:
    @router.post(
        "/listeners/{id}:start",
        operation_id="startListener",
        tags=_TAGS,
        summary="Start a listener",
        **described(answer=Anything, problems=(404, 422)),
    )
    async def start_listener(id: Id) -> Response:
        """Opens a listener that was stopped."""
        return answer(await listeners.start(id))

    @router.post(
        "/listeners/{id}:stop",
        operation_id="stopListener",
        tags=_TAGS,
        summary="Stop a listener",
        **described(answer=Anything, problems=(404, 422)),
    )
    async def stop_listener(id: Id, drain: Drain = False) -> Response:
        """Closes the listener until it is started again or the broker restarts. With `drain` its connections stay open
        for a while.
        """
        return answer(await listeners.stop(id, drain=drain))

    @router.post(
        "/listeners/{id}:restart",
        operation_id="restartListener",
        tags=_TAGS,
        summary="Restart a listener",
        **described(answer=Anything, problems=(404, 422)),
    )
    async def restart_listener(id: Id, drain: Drain = False) -> Response:
        """Closes the listener and opens it again, with its settings."""
        return answer(await listeners.restart(id, drain=drain))


def add_settings(router: APIRouter, settings: ShowSettings) -> None:
    """Add ``GET /config``."""

    @router.get(
        "/config",
        operation_id="getConfig",
        tags=["System"],
        summary="Show the settings in force",
        **described(answer=Anything),
    )
    async def get_config() -> Response:
        """Returns every setting with its value and source, and the value in the files where that differs. Secrets are
        masked.
        """
        return answer(await settings())


def add_reload(router: APIRouter, reload: ReloadConfig) -> None:
    """Add ``POST /config:reload``."""

    @router.post(
        "/config:reload",
        operation_id="reloadConfig",
        tags=["System"],
        summary="Reload the configuration",
        **described(answer=Anything, problems=(422,)),
    )
    async def reload_config(drain: Drain = False) -> Response:
        """Reads the configuration files again and applies what changed. Nothing changes when any of it is wrong."""
        return answer(await reload(drain=drain))
