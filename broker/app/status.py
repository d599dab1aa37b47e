"""Activity of the node in the form of ``GET /status`` (the shape is in ``ui.api.status``)."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from broker.app.version import product_version
from broker.core.times import rfc3339
from broker.observe.ledger import DROPPED, RECEIVED, RESENT, ledger
from broker.observe.metrics import Counter, Metrics
from broker.observe.rates import Sampler

if TYPE_CHECKING:
    from broker.app.build import Node

# Names of the API, and the metrics they are the sums of.
_COUNTERS = {
    "received": RECEIVED,
    "delivered": ("messages_sent",),
    "dropped": (DROPPED, RESENT),
    "bytes_received": ("bytes_received",),
    "bytes_sent": ("bytes_sent",),
}
# Members of refused messages in the status; the list has more.
_OF_REFUSALS: Final = ("id", "at", "topic", "clientid", "stage", "name", "reason", "text")
# Maximum number of rules, streams and tables in the status; lists have all.
MAX_RULES = 20


class NodeStatus:
    """Reads the status; keeps what rates are computed from."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._sampler = Sampler(node.clock)

    def read(self) -> dict[str, Any]:
        """The status of this instant."""
        node = self._node
        books = ledger(node.metrics)
        rules = [_rule(shown) for shown in node.rules.service.busiest(MAX_RULES)]
        streams = [_stream(shown) for shown in node.streams.list()]
        tables = node.lake.states.statuses()
        lost_rows = node.bridges.lost_rows()
        counters = {name: _total(node.metrics, metrics) for name, metrics in _COUNTERS.items()}
        counters |= {
            f"rules_{name}": count for name, count in node.rules.service.outcomes().items()
        }
        counters["rows"] = sum(table.get("rows") or 0 for table in tables)
        return {
            "node": node.identity.name,
            "version": product_version(),
            "started_at": rfc3339(node.started_ns),
            "uptime_s": round((node.clock.now_ns() - node.started_ns) / 1e9, 1),
            "listeners": node.listeners,
            "counters": counters,
            "rates": {name: round(rate, 1) for name, rate in self._sampler.rates(counters).items()},
            "dropped": books.dropped_by_reason,
            "lost_rows": lost_rows,
            "connections": int(node.metrics.value("connections")),
            "sessions": int(node.metrics.value("sessions")),
            "subscriptions": int(node.metrics.value("subscriptions")),
            "rules": rules,
            "rule_states": node.rules.service.states(),
            "streams": streams,
            "tables": tables,
            "refusals": [_refusal(row) for row in node.refused.newest_first()],
            "health": {**node.health.status(), **node.store_health.disk()},
            "ledger": {
                "received": books.received,
                "accepted": books.accepted,
                "dropped": books.dropped,
                "residual": books.residual,
                "lost_rows": sum(lost_rows.values()),
            },
            "changes": node.sections.changes,
            "next_steps": _next_steps(node, rules, streams, tables),
        }


def _total(metrics: Metrics, names: tuple[str, ...]) -> int:
    return sum(
        metric.value for metric in metrics if isinstance(metric, Counter) and metric.name in names
    )


def _rule(shown: Mapping[str, Any]) -> dict[str, Any]:
    counts = shown.get("metrics", {})
    return {
        "name": shown["name"],
        "state": shown.get("state", "running"),
        "matched_per_s": counts.get("matched.rate", 0.0),
        "matched": counts.get("matched", 0),
        "passed": counts.get("passed", 0),
        "no_result": counts.get("failed.no_result", 0),
        "failed": counts.get("failed.exception", 0),
        "sql": shown["sql"],
        "last_error": shown.get("last_error"),
    }


def _refusal(row: Mapping[str, Any]) -> dict[str, Any]:
    shown = {member: row[member] for member in _OF_REFUSALS}
    return shown | {"client_id": row["clientid"]}


def _stream(shown: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": shown["name"],
        "captures": shown["kind"],
        "shards": shown["positions"],
        "size_bytes": shown["bytes"],
    }


def _next_steps(
    node: Node,
    rules: list[dict[str, Any]],
    streams: list[dict[str, Any]],
    tables: list[dict[str, Any]],
) -> list[dict[str, str]]:
    """Suggested commands for the existing objects, of installed tools."""
    steps: list[dict[str, str]] = []
    directory = f"--data-dir {node.data_dir}"
    sluice = _sluice()
    if (
        plain := next(
            (listener for listener in node.listeners if listener["protocol"] == "mqtt"), None
        )
    ) is not None:
        host, port = plain["address"].rsplit(":", 1)
        message = """demo/attic/telemetry -m '{"seq": 1, "temp": 21.5}'"""
        own = f"{sluice} publish {message} {directory}"
        publish = (
            f"mosquitto_pub -h {host} -p {port} -q 1 -t {message}"
            if _is_installed("mosquitto_pub")
            else own
        )
        steps = [
            {"label": "Publish a message", "command": publish},
            {
                "label": "Watch what passes the gate",
                "command": f"mosquitto_sub -h {host} -p {port} -v -t '#'",
            },
        ]
    if rules:
        steps.append(
            {
                "label": "Show a rule",
                "command": f"{sluice} rules show {rules[0]['name']} {directory}",
            }
        )
    if streams:
        steps.append(
            {
                "label": "Show a stream",
                "command": f"{sluice} streams show {streams[0]['name']} {directory}",
            }
        )
    for table in tables[:1]:
        steps += [
            {
                "label": "Prove that nothing is missing",
                "command": f"{sluice} audit {table['name']} {directory}",
            },
            {
                "label": "See what a replay would do",
                "command": f"{sluice} replay {table['name']} --from 0 --to 100 --dry-run {directory}",
            },
            {
                "label": "Read the table with another engine",
                "command": f"duckdb -c \"SELECT * FROM delta_scan('{table.get('path')}') LIMIT 10\"",
            },
        ]
    return [step for step in steps if _is_installed(step["command"].partition(" ")[0])]


@cache
def _is_installed(tool: str) -> bool:
    return shutil.which(tool) is not None


@cache
def _sluice() -> str:
    """Command to run: the full path in an environment that is not activated."""
    return "sluice" if shutil.which("sluice") else str(Path(sys.executable).with_name("sluice"))
