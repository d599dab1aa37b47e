"""``sluice status``: the state of the node on one page."""

from __future__ import annotations

from typing import Any

from broker.cli.command import Call, api_command
from broker.cli.output import print_line, print_members, print_table
from broker.core.kinds import counted


@api_command()
def status(call: Call) -> None:
    """Show what the broker is doing.

    Rates, the ledger, rules, streams, tables, and recent refusals.
    """
    call.show(call.api.get("/status"), _show)


def _show(status: dict[str, Any]) -> None:
    listeners = ", ".join(
        f"{item['protocol']} {item['address']}" for item in status.get("listeners", [])
    )
    print_members(
        {
            "node": f"{status.get('node')}, version {status.get('version')}, up {_duration(status.get('uptime_s'))}",
            "listens": listeners,
            "connections": status.get("connections"),
            "sessions": status.get("sessions"),
            "subscriptions": status.get("subscriptions"),
            "ledger": _ledger(status),
            "health": _health(status.get("health", {})),
        }
    )
    rates = status.get("rates", {})
    counters = status.get("counters", {})
    _part(
        "Counts",
        ("", "per second", "since start"),
        [(key, rates.get(key), counters[key]) for key in counters],
    )
    rules = status.get("rules", [])
    rule_columns = ("name", "state", "matched", "passed", "no_result", "failed", "last_error")
    _part("Rules", rule_columns, [[rule.get(column) for column in rule_columns] for rule in rules])
    _part(
        "Streams",
        ("name", "captures", "records", "size_bytes"),
        map(_stream_row, status.get("streams", [])),
    )
    table_columns = (
        "name",
        "stream",
        "format",
        "state",
        "rows",
        "dead_letters",
        "lag_records",
        "reason",
    )
    tables = status.get("tables", [])
    _part(
        "Tables",
        table_columns,
        [[table.get(column) for column in table_columns] for table in tables],
    )
    refusals = status.get("refusals", [])[:5]
    columns = ("at", "topic", "stage", "name", "reason", "text")
    _part(
        "Recently refused",
        columns,
        [[refusal.get(column) for column in columns] for refusal in refusals],
    )
    if steps := status.get("next_steps"):
        print_line("")
        print_table(("try next", ""), [(step["command"], step["label"]) for step in steps])


def _part(title: str, columns: Any, rows: Any) -> None:
    rows = list(rows)
    if rows:
        print_line("")
        print_line(title, style="bold")
        print_table(columns, rows)


def _health(health: dict[str, Any]) -> str:
    alarms = ", ".join(health.get("alarms", []))
    text = f"{health.get('says', '–')}{'; alarms: ' + alarms if alarms else ''}"
    if health.get("overloaded"):
        text += f"; overloaded since {health['overloaded_since']}, because {'; '.join(health['overloaded_because'])}"
    return text


def _ledger(status: dict[str, Any]) -> str:
    ledger = status.get("ledger", {})
    reasons = _by_reason(status.get("dropped", {}))
    text = f"received {ledger.get('received', 0):,} = accepted {ledger.get('accepted', 0):,}"
    text += f" + dropped {ledger.get('dropped', 0):,}{f' ({reasons})' if reasons else ''}"
    residual = ledger.get("residual", 0)
    text += f"; {residual:,} not accounted for" if residual else ""
    return text + (
        f"; {counted(lost, 'row')} lost by actions ({_by_reason(status['lost_rows'])})"
        if (lost := ledger.get("lost_rows"))
        else ""
    )


def _by_reason(counts: dict[str, int]) -> str:
    return ", ".join(f"{reason} {count:,}" for reason, count in counts.items() if count)


def _stream_row(stream: dict[str, Any]) -> list[Any]:
    count = sum(
        int(shard["next_offset"]) - int(shard["first_offset"]) for shard in stream.get("shards", [])
    )
    return [stream.get("name"), stream.get("captures"), count, stream.get("size_bytes")]


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    days, rest = divmod(int(seconds), 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, whole = divmod(rest, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (whole, "s")]
    return " ".join(f"{count} {unit}" for count, unit in parts if count) or "0 s"
