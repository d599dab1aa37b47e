"""The management API over real HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.support.plain_http import NO_TLS
from tests.ui.api_node import Node, Running


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    """One server for all tests."""
    server = Running(Node())
    yield server
    server.stop()


@pytest.fixture
def running(server: Running) -> Running:
    """The server, as new."""
    server.node.reset()
    return server


@pytest.fixture
def node(running: Running) -> Node:
    """What the server offers."""
    return running.node


@pytest.fixture
def http(running: Running) -> Iterator[httpx.Client]:
    """A client without credentials, at the server's root."""
    with httpx.Client(base_url=running.url, timeout=60, verify=NO_TLS) as client:
        yield client


@pytest.fixture
def api(running: Running) -> Iterator[httpx.Client]:
    """A client with the token, at the API's root."""
    with running.client() as client:
        yield client
