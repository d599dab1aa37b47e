"""Another number of cells for a data directory that no broker uses, checked with its configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from broker.app.build import section_models
from broker.cluster.resize import Plan, Resize
from broker.config.root import load_config
from broker.connection.settings import MqttSettings


def resized(
    data_dir: Path,
    count: int,
    environ: Mapping[str, str],
    note: Callable[[str], None],
    *,
    dry_run: bool,
) -> Plan:
    """Change the number of cells; what it moves. A dry run changes nothing.

    Raises:
        ConfigError: it cannot be changed, with every reason; nothing was changed.
    """
    with Resize(data_dir, count, note=note) as change:
        config = load_config(section_models(), data_dir=data_dir, environ=environ)
        plan = change.plan(config.get("mqtt", MqttSettings).max_session_log_bytes)
        if not dry_run:
            change.run()
        return plan
