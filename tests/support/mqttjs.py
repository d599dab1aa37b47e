"""MQTT.js, the client that browsers and Node.js use: the library, fetched once, and a run of it as a process."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.support.npm import modules

_SCRIPT = Path(__file__).with_name("mqttjs_exchange.js")
_DEADLINE_S = 60


def library() -> Path:
    """Where Node.js finds the module ``mqtt``."""
    return modules("mqtt", "5.16.0")


def exchange(url: str, version: int) -> dict[str, Any]:
    """Let MQTT.js say and hear what its script asks of it; what it saw, by the names that the script gives."""
    environ = os.environ | {"NODE_PATH": str(library())}
    done = subprocess.run(
        ["node", str(_SCRIPT), url, str(version)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen
