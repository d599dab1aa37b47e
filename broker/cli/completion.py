"""Completion in a shell: names of objects come from the running broker, within the time between two keys."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

_WORDS: Final = "COMP_WORDS"  # bash's; zsh and fish set the other
_WORDS_OF_ZSH: Final = "_TYPER_COMPLETE_ARGS"
_TIMEOUT_S: Final = 0.25
# Names that are offered; with more letters there are fewer.
_MOST: Final = 200


def completed_words() -> Sequence[str]:
    """The words of the line that a shell asks to complete, none where no shell asks."""
    line = os.environ.get(_WORDS) or os.environ.get(_WORDS_OF_ZSH) or ""
    return line.split()[1:] if is_completing() else ()


def is_completing() -> bool:
    """True if a shell asks for completions of a line."""
    return "_SLUICE_COMPLETE" in os.environ


class Names:
    """Completes an argument by the objects at a path of the API; by nothing where no broker answers in time."""

    def __init__(self, path: str, member: str = "name") -> None:
        self._path = path
        self._member = member

    def __call__(self, ctx: Any, _parameter: Any, incomplete: str) -> list[str]:
        """The names that begin so."""
        import http.client  # with TLS and mail headers a tenth of the time that --help takes

        from broker.cli.command import DATA_DIR, DATA_DIR_VARIABLE
        from broker.cli.target import find_target

        data_dir = ctx.params.get("data_dir") or os.environ.get(DATA_DIR_VARIABLE) or DATA_DIR
        target = find_target(ctx.params.get("url"), Path(data_dir), os.environ)
        try:
            items = _items(target.url, self._path, target.token)
        except (OSError, ValueError, KeyError, http.client.HTTPException):
            return []
        names = (str(item.get(self._member, "")) for item in items)
        return [name for name in names if name and name.startswith(incomplete)][:_MOST]


def _items(url: str, path: str, token: str | None) -> list[dict[str, Any]]:
    """The first page of a list. Without the API's own client, which takes longer to import than to ask."""
    import http.client

    address = urlsplit(url)
    kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
    connection = kind(address.hostname or "", address.port, timeout=_TIMEOUT_S)
    try:
        connection.request(
            "GET",
            f"/api/v1{path}?limit=500",
            headers={"Authorization": f"Bearer {token}"} if token else {},
        )
        items: list[dict[str, Any]] = json.loads(connection.getresponse().read())["items"]
    finally:
        connection.close()
    return items
