"""What a server would pass to the API, small and working, and the real API served from it over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from math import inf
from threading import Thread
from typing import Any, cast

import httpx

from broker.admin.api_settings import ApiSettings
from broker.app.loops import loop_factory
from broker.core.errors import (
    AlreadyExists,
    InUse,
    Invalid,
    NotFound,
    Problem,
    ReadOnly,
    Unavailable,
)
from broker.core.kinds import kinds
from broker.core.message import Message
from broker.core.objects import MemorySection, Spec, Version
from broker.core.stage import Outcome, Refusal
from tests.support.plain_http import NO_TLS
from tests.support.waiting import threads_shown
from ui.api.application import create_app
from ui.api.context import ApiContext
from ui.api.server import ApiServer
from ui.api.status import Status

TOKEN = "a-token-of-the-tests"
ROWS: list[Spec] = [
    {"meter": f"m{n}", "kwh": n + 0.5, "at": "2026-01-01T00:00:00Z"} for n in range(30)
]


class Shelf:
    """An ``ObjectService`` on a memory section, as small as one can be; ``broken`` in a spec makes it invalid."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.empty()

    def empty(self) -> None:
        """Forget everything."""
        self.section = MemorySection()
        self.users: dict[str, list[str]] = {}
        self.fixed: set[str] = set()
        self.is_store_full = False

    def list(self) -> Sequence[Spec]:
        return [{**spec, "state": "running"} for spec in self.section.load()]

    def get(self, name: str) -> Spec:
        found = next((spec for spec in self.list() if spec["name"] == name), None)
        if found is None:
            raise NotFound(self.kind, name)
        return found

    def create(self, spec: Spec) -> Spec:
        self._check(spec)
        if any(known["name"] == spec["name"] for known in self.section.load()):
            raise AlreadyExists(self.kind, spec["name"])
        self.section.save({spec["name"]: spec})
        return self.get(spec["name"])

    def replace(self, name: str, spec: Spec) -> Spec:
        self._check(spec)
        self.get(name)
        self.section.save({name: spec})
        return self.get(name)

    def delete(self, name: str) -> None:
        self.get(name)
        if name in self.fixed:
            raise ReadOnly(f"{self.kind} {name!r} is fixed by sluice.conf; change it there")
        if name in self.users:
            raise InUse(self.kind, name, self.users[name])
        self.section.save({name: None})

    def saved_version(self, name: str) -> Version:
        return self.section.version(name)

    def patched(self, name: str, patch: Spec) -> Spec:
        return {**self.get(name), **patch}

    def reorder(self, names: Sequence[str]) -> None:
        self.section.reorder(names)

    def enable(self, name: str, enabled: bool) -> Spec:
        return self.replace(name, {**self.get(name), "enable": enabled})

    def metrics(self, name: str) -> Spec:
        self.get(name)
        return {"matched": 0}

    def reset_metrics(self, name: str) -> None:
        self.get(name)

    def _check(self, spec: Spec) -> None:
        if self.is_store_full:
            raise Unavailable("the data directory is full", retry_after_s=4.2)
        if "broken" in spec:
            place = Problem("no function 'uper'", "/sql", 2, 8, "did you mean 'upper'?")
            raise Invalid(f"{self.kind} {spec['name']!r}", [place], code="rule.unknown_function")


class EchoingShelf(Shelf):
    """A shelf whose verbs answer with what they were sent, or do as ``do`` says."""

    do = ""
    calls = 0

    def empty(self) -> None:
        super().empty()
        self.do, self.calls = "", 0

    def test(self, body: Spec) -> Any:
        do = self.do
        self.calls += 1
        while self.do == "run for ever":
            pass
        if do == "fail":
            raise KeyError("nobody foresaw this")
        if do == "refuse":
            raise Invalid("it does not parse", [Problem("expected FROM", "/sql", 1, 9)])
        if do == "answer half a surrogate":
            return {"text": "\ud800"}
        if do == "answer odd values":
            return {
                "bytes": b"\xff",
                "list": (b"",),
                "time": datetime(2026, 1, 1, tzinfo=UTC),
                7: None,
            }
        return {"echo": body}

    test_many = test_cases = fields = format = render = explain = evaluate = preview = check = (
        decode
    ) = encode = test
    validate = test


class RuleShelf(EchoingShelf):
    """A shelf whose objects are saved by force, too, and that explains them as it is told."""

    def backtests(self) -> list[dict[str, Any]]:
        return []

    def follow_backtests(self, on_change: object) -> None:
        """It runs none."""

    def delete(self, name: str, *, force: bool = False) -> None:
        super().delete(name)

    def lineage(self, name: str) -> Spec:
        return self.get(name)


class SchemaShelf(EchoingShelf):
    """A shelf whose objects are prepared elsewhere before they are saved, and that have no users."""

    def prepare(self, spec: Spec, name: str | None = None) -> Callable[[], Spec]:
        return lambda: spec

    def create(self, spec: Spec, prepared: Any = None) -> Spec:
        return super().create(spec)

    def replace(self, name: str, spec: Spec, *, force: bool = False, prepared: Any = None) -> Spec:
        return super().replace(name, spec)

    def delete(self, name: str, *, force: bool = False, permanent: bool = False) -> None:
        super().delete(name)

    def prepare_infer(self, body: Spec) -> Callable[[], Spec]:
        return lambda: body


class BridgeShelf(EchoingShelf):
    """A shelf whose objects are switched and tested one by one."""

    async def start(self, name: str) -> Spec:
        return self.get(name)

    stop = restart = start

    async def test(self, name: str) -> Spec:  # type: ignore[override]  # those of other shelves take a body
        self.get(name)
        return {"ok": True, "steps": []}

    async def probe(self, spec: Spec) -> Spec:
        return {"ok": True, "steps": []}

    def pause(self, name: str) -> Spec:
        return self.get(name)

    resume = pause

    def types(self) -> list[Spec]:
        return [{"name": "file"}]

    async def drain(self, name: str, timeout_s: float = 30.0) -> Spec:
        return {"name": name, "left": 0, "drained": True}

    async def dead_letters(self, name: str, limit: int) -> Spec:
        return {"action": name, "waiting": 0, "items": []}

    async def redrive(self, name: str, limit: int) -> Spec:
        return {"action": name, "sent": 0, "waiting": 0, "problem": None}

    def purge(self, name: str) -> Spec:
        return {"action": name, "purged": 0}


class Pipeline:
    """A publisher that keeps what it is given and refuses what is on ``refused/...``."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def publish(self, message: Message) -> Outcome:
        self.messages.append(message)
        if message.topic.startswith("refused/"):
            return Outcome(
                0,
                Refusal(
                    "validation", "meters", "validation_failed", 0x99, "/t: 'x' is not a number"
                ),
            )
        return Outcome(2)

    async def publish_and_wait(self, message: Message) -> Outcome:
        return self.publish(message)


class Logs:
    """A stream called ``readings``."""

    was_on_event_loop: bool | None = None

    def positions(
        self,
        name: str,
        at_us: int | None = None,
        until_s: float = inf,
        *,
        needs_all: bool = False,
    ) -> Spec:
        assert needs_all, "positions for readers lack no shard"
        self._known(name)
        self.was_on_event_loop = asyncio._get_running_loop() is not None
        shard = {"shard": 0, "first_offset": "7", "next_offset": str(2**53 + 1)}
        return {
            "stream": name,
            "kind": "rows",
            "shards": [shard if at_us is None else {**shard, "at_offset": str(at_us)}],
            "ranges_url": "http://127.0.0.1:9",
            "ticket": "t i/cket",
            "expires_at": "2026-01-01T00:00:00Z",
            "epoch": "e-3",
            "log": 17,
        }

    def page(self, stream: str, *_: Any, **__: Any) -> Any:
        self._known(stream)
        return {"items": []}

    def _known(self, name: str) -> None:
        if name != "readings":
            raise NotFound("stream", name)


class Tables:
    """A table called ``meters`` that remembers the job's report."""

    def __init__(self) -> None:
        self.reports: dict[str, Spec] = {}
        self.rows = ROWS

    def report(self, name: str, report: Spec) -> None:
        self._known(name)
        self.reports[name] = report

    def history(self, name: str, limit: int, member: str | None) -> Any:
        self._known(name)
        return {"versions": []}

    def plan_replay(
        self,
        name: str,
        start: object,
        end: object,
        rule: str | None,
        records: object = (),
        into: object = None,
    ) -> Any:
        self._known(name)
        return {
            "ranges": [] if start == end else [{"shard": 0, "start": start, "end": end}],
            "records": 7,
            "rule": rule,
            "recreates": False,
        }

    def replay_order(
        self, name: str, plan: Any, rule: str | None, into: str | None, rate: int | None
    ) -> Any:
        return {**plan, "rate": rate, "into": into} if plan["ranges"] else {}

    async def replay(
        self,
        id: str,
        name: str,
        order: Any,
        advance: Callable[[int], bool],
        is_paused: Callable[[], bool],
    ) -> Any:
        advance(7)
        return {**order, "rows_after": 7}

    def shadow(self, name: str) -> Any:
        self._known(name)
        return {"shadow": {"table": name, "records": 7, "done": 7, "is_complete": True}}

    def plan_diff(self, name: str) -> Any:
        return self.shadow(name)["shadow"]

    plan_swap = plan_diff

    def swap_order(self) -> Any:
        return {"swap": True}

    async def diff(self, id: str, name: str, advance: Callable[[int], bool]) -> Any:
        return {"table": name, "records": 7}

    async def swap(self, id: str, name: str, advance: Callable[[int], bool]) -> Any:
        return {**self.plan_swap(name), "version": 4}

    async def discard(self, id: str, name: str, advance: Callable[[int], bool]) -> Any:
        return {"table": name, "discarded": True}

    def plan_retype(self, name: str, column: str, kind: str) -> int:
        self._known(name)
        return 7

    async def retype(
        self, id: str, name: str, column: str, kind: str, advance: Callable[[int], bool]
    ) -> Any:
        advance(7)
        return {"table": name, "column": column, "type": kind}

    async def clean(
        self, id: str, name: str, older_than_s: float, dry_run: bool, advance: Callable[[int], bool]
    ) -> Any:
        self._known(name)
        return {
            "table": name,
            "dry_run": dry_run,
            "files": int(older_than_s),
            "dead_letter_files": 1,
        }

    def plan_compact(self, name: str) -> Any:
        self._known(name)
        return {"table": name, "dry_run": True, "files": 7, "bytes": 700, "files_after": 1}

    async def compact(self, id: str, name: str, advance: Callable[[int], bool]) -> Any:
        return {**self.plan_compact(name), "dry_run": False}

    def plan_expire(self, name: str, older_than_s: float) -> Any:
        self._known(name)
        return {
            "table": name,
            "dry_run": True,
            "snapshots": 2,
            "files": int(older_than_s),
            "bytes": 10,
        }

    async def expire(
        self, id: str, name: str, older_than_s: float, advance: Callable[[int], bool]
    ) -> Any:
        return {**self.plan_expire(name, older_than_s), "dry_run": False}

    def plan_retain(self, name: str, older_than_s: float | None) -> Any:
        self._known(name)
        return {"table": name, "dry_run": True, "rows": int(older_than_s or 3)}

    async def retain(
        self, id: str, name: str, older_than_s: float | None, advance: Callable[[int], bool]
    ) -> Any:
        return {**self.plan_retain(name, older_than_s), "dry_run": False}

    def recreate(self, name: str) -> Any:
        self._known(name)
        return {"table": name, "path": f"lake/{name}"}

    async def accept_gap(self, id: str, name: str, advance: Callable[[int], bool]) -> Any:
        self._known(name)
        return {"table": name, "records": 5}

    def preview(self, name: str, limit: int, dead_letters: bool, member: str | None) -> Any:
        self._known(name)
        return {
            "columns": list(self.rows[0]),
            "rows": self.rows[:limit],
            "total_rows": len(self.rows),
        }

    def plan_audit(self, name: str) -> int:
        self._known(name)
        return 5

    def audit_order(self, depth: Any) -> Any:
        return {"audit": depth}

    async def audit(
        self, id: str, name: str, order: Any, advance: Callable[[int], bool], is_paused: Any
    ) -> Any:
        advance(5)
        return {"complete": order["audit"]}

    def starts_audits(self, start: Callable[..., Any]) -> None:
        self.start_audit = start

    def _known(self, name: str) -> None:
        if name != "meters":
            raise NotFound("table", name)


_KINDS_OF_SHELVES: dict[str, type[Shelf]] = {
    "rules": RuleShelf,
    "schemas": SchemaShelf,
    **dict.fromkeys(("connectors", "actions", "sources"), BridgeShelf),
}


class Node:
    """What a server would pass, with handles for tests."""

    def __init__(self, verb_timeout_s: float = 10.0, **settings: Any) -> None:
        self.pipeline, self.tables, self.logs = Pipeline(), Tables(), Logs()
        self.shelves: dict[str, Shelf] = {
            kind.path: _KINDS_OF_SHELVES.get(kind.path, EchoingShelf)(kind.name) for kind in kinds()
        }
        self.context = ApiContext(
            token=TOKEN,
            services=self.shelves,
            publisher=self.pipeline,
            status=status_of_a_young_node,
            metrics_text=lambda: "# TYPE received counter\nreceived 5\n",
            streams=cast(Any, self.logs),
            lake=cast(Any, self.tables),
            lake_reads=cast(Any, self.tables),
            lake_states=cast(Any, self.tables),
            verb_timeout_s=verb_timeout_s,
            api_settings=ApiSettings(**settings),
        )

    def reset(self) -> None:
        """As new, for the next test on the same server."""
        for shelf in self.shelves.values():
            shelf.empty()
        self.pipeline.messages.clear()
        self.tables.reports.clear()
        self.tables.rows = ROWS
        self.context.status = status_of_a_young_node
        self.context.not_ready = lambda: None


def status_of_a_young_node() -> Status:
    """A node that has just started: nothing there yet."""
    return {
        "node": "sluice@test",
        "version": "0.1.0",
        "started_at": "2026-01-01T00:00:00Z",
        "uptime_s": 12.5,
        "listeners": [],
        "counters": {"received": 0, "delivered": 0, "dropped": 0},
        "rates": {},
        "dropped": {},
        "lost_rows": {},
        "connections": 0,
        "sessions": 0,
        "subscriptions": 0,
        "rules": [],
        "rule_states": {},
        "streams": [],
        "tables": [],
        "refusals": [],
        "ledger": {"received": 0, "accepted": 0, "dropped": 0, "residual": 0, "lost_rows": 0},
        "changes": 0,
        "next_steps": [],
    }


class Running:
    """The API on a thread with its own event loop, as the broker's process would have it."""

    def __init__(self, node: Node, port: int = 0) -> None:
        self.node, self._port = node, port
        self._started: Future[tuple[str, int]] = Future()
        self._thread = Thread(target=self._run, name="api under test")
        self._thread.start()
        self.host, self.port = self._started.result(timeout=60)
        self.url = f"http://{self.host}:{self.port}"

    def client(self) -> httpx.Client:
        """A client with the token, at the API's root."""
        headers = {"Authorization": f"Bearer {TOKEN}"}
        return httpx.Client(
            base_url=f"{self.url}/api/v1", headers=headers, timeout=60, verify=NO_TLS
        )

    def stop(self) -> None:
        """Stop the server; returns when its thread has ended."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)
        assert not self._thread.is_alive(), threads_shown()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=loop_factory("asyncio")) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self.loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = ApiServer(create_app(self.node.context), "127.0.0.1", self._port)
        self._started.set_result(await server.start())
        await self._stop.wait()
        await server.stop()
