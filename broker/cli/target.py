"""The broker that a command talks to, and the token for it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

URL_VARIABLE = "SLUICE_URL"
TOKEN_VARIABLE = "SLUICE_API_TOKEN"
DEFAULT_URL = "http://127.0.0.1:18083"


@dataclass(frozen=True, slots=True)
class Target:
    """Address of the management API, and the token to show it; ``token`` does not print."""

    url: str
    token: str | None

    def __repr__(self) -> str:
        return f"Target({self.url!r})"


def find_target(url: str | None, data_dir: Path, environ: Mapping[str, str]) -> Target:
    """The URL: as given, else ``SLUICE_URL``, else the node that runs on ``data_dir``, else the default address.

    The token: ``SLUICE_API_TOKEN``, else what ``data_dir/api.token`` holds. The file's token is shown to the node that
    runs on that directory alone, not to whatever listens at another address.
    """
    running = running_node(data_dir)
    named = url or environ.get(URL_VARIABLE)
    address = _with_scheme(named) if named else running or DEFAULT_URL
    token = environ.get(TOKEN_VARIABLE)
    if not token and address == running:
        token = _kept_token(data_dir)
    return Target(address, token or None)


def running_node(data_dir: Path) -> str | None:
    """The address that the node running on a directory wrote down."""
    try:
        node = json.loads((data_dir / "run" / "node.json").read_text())
        address = node["api"]
        pid = node["pid"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not isinstance(address, str) or not address or not _is_alive(pid):
        return None
    return _with_scheme(address)


def _is_alive(pid: object) -> bool:
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _kept_token(data_dir: Path) -> str | None:
    try:
        return (data_dir / "api.token").read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _with_scheme(address: str) -> str:
    return address.rstrip("/") if "://" in address else f"http://{address.rstrip('/')}"
