"""Each list with thousands of rows, in a real browser on a real broker.

A page draws a part of them, the server searches, and a key is painted soon.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from time import time_ns
from typing import Any, Final, NamedTuple

import pytest

from broker.admin.audit_log import AuditLog, AuditRecord
from broker.auth.bans import Bans
from broker.core.subscription import Subscription
from broker.core.topic import TopicFilter
from broker.observe.settings import AuditLogSettings
from broker.storage.rocksdb.store import RocksStore
from broker.streams.queues import StoredValues
from tests.support import raw
from tests.support.mqtt_server import MovedClock
from tests.support.mqtt_server import running as mqtt_running
from tests.support.node import Node, eventually
from tests.support.node import running as serving
from tests.support.processor import is_within
from tests.ui.browser import check_look, set_look, sign_in, tasks_of, typed
from tests.ui.test_dashboard_declared import DECLARED, PATHS

pytestmark = pytest.mark.timeout(600)

COUNT: Final = 10_000
MOST_ELEMENTS: Final = 3_000
"""Of any page."""
MOST_ROWS: Final = 60
"""Drawn at a time."""
CONFIG: Final = (
    "overload.enable = false\nlake.run_spark = false\nmqtt.max_shared_subscriptions = 20000\n"
    "authorization.no_match = allow\n"
)
SAVED: Final = {
    "users": {"name": "one", "password": "a long password"},
    "accounts": {"name": "one", "role": "viewer", "password": "a long password"},
    "tokens": {"name": "one", "role": "viewer"},
    # about one client, since each publish is compared with rules about all of them
    "access/rules": {
        "name": "one",
        "permission": "allow",
        "who": {"clientid": "one"},
        "topics": ["a/#"],
    },
    "schemas": {"name": "one", "type": "json", "source": "{}"},
}
"""One of each is created by the API; the others are its line in the file, with another name."""


class Long(NamedTuple):
    """The least number of rows of a list, 0 where it does not count them; the filter that finds its last one, by this
    text, which the row shows as ``shown``. Without a filter, the list has none on the server.
    """

    rows: int = COUNT
    filter: str = ""
    text: str = ""
    shown: str = ""
    view: str = ""


PAST_ALARMS: Final = 1_000
LAST: Final = COUNT - 1
LONG: Final[dict[str, Long]] = {
    **{path: Long(COUNT, "Name", f"one-{LAST:05}", f"one-{LAST:05}") for path in SAVED},
    "secrets": Long(1_000, "Name", "one-00999", "one-00999"),
    "bans": Long(COUNT, "Name", f"banned-{LAST:05}", f"banned-{LAST:05}"),
    "groups": Long(COUNT, "Name", f"crew-{LAST:05}", f"crew-{LAST:05}"),
    "sessions": Long(COUNT + 2, "clientid", f"client-{LAST:05}", f"client-{LAST:05}"),
    "clients": Long(COUNT + 2, "clientid", f"client-{LAST:05}", f"client-{LAST:05}"),
    "subscriptions": Long(2 * COUNT, "filter", f"fleet/{LAST:05}/commands", f"client-{LAST:05}"),
    "retained": Long(COUNT, "filter", f"kept/{LAST:05}", f"kept/{LAST:05}"),
    "delayed": Long(COUNT),
    "refused": Long(50, "filter", f"refused/{LAST:05}", f"refused/{LAST:05}"),
    "alarms": Long(PAST_ALARMS, view="/history"),
    "audit-log": Long(0, "name", f"changed-{LAST:05}", f"changed-{LAST:05}"),
    "captures": Long(100),
}
SHORT: Final = {
    "schema-registries": "external systems of one broker",
    "validations": "each acts on messages; the list is that of schemas",
    "transforms": "each acts on messages; the list is that of schemas",
    "rules": "each acts on messages; test_dashboard_lists.py has 300",
    "rewrites": "each acts on messages; the list is that of access rules",
    "auto-subscriptions": "each acts on clients; the list is that of access rules",
    "authentication": "a chain of few",
    "authorization/sources": "a chain of few",
    "streams": "each has files",
    "connectors": "each has a connection",
    "actions": "each has a buffer",
    "sources": "each has a connection",
    "listeners": "each has a socket",
    "alarm-receivers": "few",
    "settings": "as many as there are",
    "login-failures": "1,000 at most, of addresses that one host does not have",
    "connector-types": "as many as there are",
    "backtests": "20 at most",
    "retained-deletions": "1,000 at most, of ten minutes",
    "jobs": "20 at most",
    "quarantine": "one a stream",
    "saturation": "only what overloads a broker adds one",
    "cells": "one a process",
    "cluster/machines": "one a machine",
    "cluster/slots": "one a process",
}
"""Lists that have no thousands of rows, and why."""


def test_each_list_is_filled_or_says_why_it_is_short() -> None:
    assert sorted([*LONG, *SHORT]) == sorted(PATHS)


def stock(data_dir: Path) -> None:
    """Store what clients and administrators would have left: sessions, bans, past alarms and audit entries."""
    with ThreadPoolExecutor() as pool:  # this thread has a loop, that of Playwright
        pool.submit(lambda: asyncio.run(_stock(data_dir))).result()


async def _stock(data_dir: Path) -> None:
    store = RocksStore(data_dir)
    async with mqtt_running(store, clock=MovedClock(time_ns())) as node:  # else sessions expire
        hub = node.server.hub
        bans = Bans(node.writer, node.clock)
        node.alarms.load(StoredValues(node.writer), asyncio.get_running_loop().call_later)
        audit = AuditLog(node.writer, node.clock, AuditLogSettings())
        for number in range(COUNT):
            session = hub.life.new_session(
                f"client-{number:05}", hub.zones.default, is_durable=True
            )
            session.expiry_s = 86_400
            subscription = Subscription(TopicFilter.parse(f"fleet/{number:05}/commands"), 1)
            hub.subscriptions.add(session, subscription, is_new=True)
            hub.subscriptions.changed(session)
            hub.life.detached(session, is_will_due=False)
            bans.create({"as": "clientid", "who": f"banned-{number:05}"})
            audit.record(
                AuditRecord(
                    actor="ann",
                    origin="api",
                    operation="putRule",
                    kind="rule",
                    name=f"changed-{number:05}",
                )
            )
            if number % 1000 == 999:
                await node.written()
        for number in range(PAST_ALARMS):
            node.alarms.activate(f"logins_limited:{number}", "logins fail")
            node.alarms.deactivate(f"logins_limited:{number}")
        node.alarms.stop()
        await node.written()
    store.close()


def repeat(data_dir: Path) -> None:
    """Add lines to the file of the API, each that of an existing object with another name."""
    file = data_dir / "api.hocon"
    lines = file.read_text().splitlines()
    more = []
    for line in lines:
        key, is_line, text = line.partition(".one = ")
        if is_line:
            spec = json.loads(text)
            more += [
                f"{key}.one-{number:05} = {json.dumps(spec | {'name': f'one-{number:05}'})}"
                for number in range(1, COUNT)
            ]
    file.write_text("\n".join([*lines, *more, ""]))


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A broker whose lists are long."""
    directory = tmp_path_factory.mktemp("long") / "data"
    with serving(directory, config=CONFIG) as node:
        for path, spec in SAVED.items():
            node.call("POST", f"/{path}", spec)
        deny = {"name": "deny", "topics": ["refused/#"], "strategy": "all_pass"}
        checks = [{"type": "sql", "sql": "SELECT 1 AS one WHERE 1 = 2"}]
        node.call("POST", "/validations", deny | {"failure_action": "drop", "checks": checks})
        with node.client() as http:
            for number in range(1_000):
                http.put(f"/secrets/one-{number:05}", json={"value": "x"}).raise_for_status()
    repeat(directory)
    stock(directory)
    node = Node(directory, config=CONFIG).start(timeout_s=300)
    try:
        with (
            closing(socket.create_connection(node.mqtt)) as sender,
            closing(socket.create_connection(node.mqtt)) as reader,
        ):
            for link, client_id in ((sender, "filler"), (reader, "reader")):
                link.sendall(raw.connect(4, client_id))  # at once: a silent one is disconnected
            publish(sender)
            subscribe(reader)
            with node.client() as http:
                for number in range(100):
                    spec = {"name": f"c{number:02}", "filter": "none/#"}
                    http.post("/captures", json=spec).raise_for_status()
                    http.post(f"/captures/{spec['name']}:stop").raise_for_status()
            yield node
    finally:
        node.stop()


def _answers(link: socket.socket, end: bytes) -> None:
    answers = b""
    while not answers.endswith(end):
        received = link.recv(65_536)
        assert received, "the broker closed the connection"
        answers += received


def publish(link: socket.socket) -> None:
    """Publish retained, delayed and refused messages, a thousand at a time."""
    for number in range(COUNT):
        for topic in (
            f"kept/{number:05}",
            f"$delayed/3600/later/{number:05}",
            f"refused/{number:05}",
        ):
            link.sendall(raw.publish(4, topic, b"{}", retain=topic[0] == "k"))
        if number % 1000 == 999:
            link.sendall(raw.PINGREQ)
            _answers(link, raw.PINGRESP)


def subscribe(link: socket.socket) -> None:
    for start in range(0, COUNT, 1000):
        filters = [
            (f"$share/crew-{number:05}/none/{number}", 0) for number in range(start, start + 1000)
        ]
        link.sendall(raw.subscribe(4, 1 + start, *filters))
    link.sendall(raw.PINGREQ)
    _answers(link, raw.PINGRESP)


@pytest.mark.heavy
@pytest.mark.parametrize("path", [path for path in PATHS if path not in SHORT])
def test_a_long_list_draws_a_part_and_the_server_searches_it(
    page: Any, crowded: Node, complaints: list[str], path: str
) -> None:
    rows, name, text, shown, view = LONG[path]
    sign_in(page, crowded)
    with tasks_of(page) as opening:
        page.goto(f"{crowded.url}/{path}{f'?view={view}' if view else ''}")
        page.wait_for_selector("main section.card tbody tr:not([aria-busy])")
        total = page.locator("main h1 .total")
        eventually(
            lambda: (
                not rows
                or int(re.sub(r"\D", "", total.inner_text() or "0")) >= rows
                or page.wait_for_timeout(50)
            ),
            what=f"{rows} rows of {path}",
        )
    elements = page.evaluate("document.querySelectorAll('*').length")
    drawn = page.locator("main tbody tr").count()
    per_key_ms = 0.0
    if name:
        labels = {
            one["name"]: one["label"]
            for resource in DECLARED["resources"]
            if resource["path"] == path
            for one in resource["lists"][0]["filters"]
        }
        field = page.get_by_label(labels.get(name, name), exact=True)
        if not field.is_visible():
            page.get_by_text("More filters").click()
        field.focus()
        per_key_ms = typed(page, text, f"main tbody tr:only-child >> text={shown}")
    print(f"{path}: {max(opening):.0f} ms, {elements=} {drawn=} {per_key_ms=:.0f}")
    assert drawn <= MOST_ROWS
    assert elements < MOST_ELEMENTS
    assert max(opening) < 200
    assert is_within(per_key_ms / 1000, 0.1)
    for width, scheme in ((390, "dark"), (1280, "light")):
        set_look(page, width, scheme)
        check_look(page, width, scheme)
    assert complaints == []
