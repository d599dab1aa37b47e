"""MQTT clients of pages: WebSockets of the API, whose bytes a listener serves as one of its connections.

A page cannot open other addresses, and a node may have no listener for WebSocket. The client has the address of its
browser, and is authenticated and authorized as any client of the listener. Its user also needs the right to publish.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

from fastapi import FastAPI
from starlette.websockets import WebSocket, WebSocketDisconnect

from broker.admin.rights import Actor, Need
from broker.core.errors import SluiceError
from ui.api.context import ApiContext
from ui.api.live import FORBIDDEN, RIGHTS_CHANGED, Ending, closed
from ui.api.problems import ApiProblem
from ui.api.security import identify

PATH: Final = "/mqtt"
# Maximum number of clients of pages at a time.
MAX_CLIENTS: Final = 64
# Seconds between two checks of the rights of an open connection.
CHECK_S: Final = 5.0
_SUBPROTOCOL: Final = "mqtt"
_READ_BYTES: Final = 64 * 1024
_NEED: Final = Need("messages", "change", "publishMessage")
# Close codes of the WebSocket: only binary frames carry MQTT; the node takes no connection now.
_NOT_BINARY: Final = 1003
_TRY_LATER: Final = 1013


class PageClients:
    """Carries the bytes of WebSockets to a listener, and back."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._count = 0

    async def serve(self, websocket: WebSocket) -> None:
        """One client, from its request to its end. ``listener`` of the query names the listener."""
        offered = websocket.scope.get("subprotocols", [])
        await websocket.accept(subprotocol=_SUBPROTOCOL if _SUBPROTOCOL in offered else None)
        try:
            actor = _permitted(websocket)
            if self._count >= MAX_CLIENTS:
                raise ApiProblem(429, "too_many_requests", f"all {MAX_CLIENTS} clients are in use")
        except ApiProblem as error:
            await closed(websocket, Ending(4000 + error.status, str(error)))
            return
        self._count += 1
        try:
            await self._carry(websocket, actor)
        finally:
            self._count -= 1

    async def _carry(self, websocket: WebSocket, actor: Actor) -> None:
        own, served = socket.socketpair()
        peer = websocket.client
        listeners: Any = self._context.services["listeners"]
        try:
            await listeners.adopt(
                websocket.query_params.get("listener"),
                served,
                peer.host if peer else None,
                peer.port if peer else None,
            )
        except SluiceError as error:
            own.close()
            served.close()
            await closed(websocket, Ending(_TRY_LATER, str(error)))
            return
        reader, writer = await asyncio.open_connection(sock=own)
        try:
            ending = await _first(
                _to_listener(websocket, writer),
                _to_page(reader, websocket),
                _until_rights_change(websocket, actor),
            )
        finally:
            writer.close()
        await closed(websocket, ending)


def _permitted(websocket: WebSocket) -> Actor:
    """The user of a page, who may publish on every topic.

    Raises:
        ApiProblem: 401; 403 with the missing right.
    """
    actor = identify(websocket)
    refusal = actor.refusal(_NEED)
    if refusal is None and actor.topics is not None:
        refusal = "an MQTT client needs rights without a scope of topics"
    if refusal is not None:
        raise ApiProblem(403, "forbidden", refusal)
    return actor


async def _to_listener(websocket: WebSocket, writer: asyncio.StreamWriter) -> Ending:
    with suppress(WebSocketDisconnect, ConnectionError):
        while True:
            message = await websocket.receive()
            if message["type"] == "websocket.disconnect":
                break
            data = message.get("bytes")
            if data is None:
                return Ending(_NOT_BINARY, "expected binary frames that carry MQTT")
            writer.write(data)
            await writer.drain()
    return Ending(1000, "")


async def _to_page(reader: asyncio.StreamReader, websocket: WebSocket) -> Ending:
    with suppress(WebSocketDisconnect, ConnectionError, RuntimeError):
        while data := await reader.read(_READ_BYTES):
            await websocket.send_bytes(data)
    return Ending(1000, "")


async def _until_rights_change(websocket: WebSocket, actor: Actor) -> Ending:
    while True:
        await asyncio.sleep(CHECK_S)
        try:
            if _permitted(websocket) != actor:
                return Ending(RIGHTS_CHANGED, "your rights changed; connect again")
        except ApiProblem as error:
            return Ending(FORBIDDEN, str(error))


async def _first(*parts: Coroutine[Any, Any, Ending]) -> Ending:
    """The result of the part that ends first; the others are cancelled."""
    tasks = [asyncio.create_task(part, name="MQTT client of a page") for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def add_mqtt_clients(app: FastAPI, base: str, context: ApiContext) -> None:
    """Add the WebSocket of MQTT clients, where the node has listeners."""
    if "listeners" in context.services:
        app.add_api_websocket_route(base + PATH, PageClients(context).serve)
