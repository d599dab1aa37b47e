"""The management API over real HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.plain_http import NO_TLS
from tests.ui.api_node import Node, Running
from tests.ui.browser import ARGUMENTS, CHROMIUM, Tabs, observe
from ui.api.pages import DIST


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


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        assert CHROMIUM, "no browser: apt-get install chromium-headless-shell"
        assert (DIST / "index.html").is_file(), "the dashboard is not built: make ui"
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def complaints() -> list[str]:
    """What the browser writes to its console, and requests to other servers."""
    return []


@pytest.fixture(scope="module")
def tabs(browser: Any) -> Iterator[Tabs]:
    tabs = Tabs(browser)
    yield tabs
    tabs.close()


@pytest.fixture
def page(tabs: Tabs, complaints: list[str]) -> Iterator[Any]:
    page = tabs.open()
    observe(page, complaints)
    yield page
    tabs.forget(page)
