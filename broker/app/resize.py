"""Another number of cells for a data directory that no broker uses, checked with its configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from broker.app.build import section_models
from broker.cluster.resize import Plan, Resize
from broker.config.root import Config, load_config
from broker.connection.settings import MqttSettings


def homes_of(config: Config) -> Mapping[str, str]:
    """The connectors of the sources that any cell may run, by the identifiers of these."""
    specs = [spec for layer in config.objects["sources"] for spec in layer.objects]
    return {
        f"{spec['type']}:{spec['name']}": spec["connector"]
        for spec in specs
        if spec["type"] != "http_server"
    }


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
    config = load_config(section_models(), data_dir=data_dir, environ=environ)
    with Resize(data_dir, count, homes_of(config), note) as change:
        plan = change.plan(config.get("mqtt", MqttSettings).max_session_log_bytes)
        if not dry_run:
            change.run()
        return plan
