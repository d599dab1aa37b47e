"""Writes ``docs/reference`` from the code, and the kinds that the dashboard knows: ``python -m docs.generate``.

A test holds the pages equal to what this writes, so they cannot say anything else than the code does. What stands on
which page is in the modules of ``docs.reference_pages``.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from broker.app import features
from broker.app.api import context_of
from broker.app.build import Node, section_models
from broker.app.reload import ConfigReload
from broker.config.options import ServeOptions
from broker.config.root import load_config
from broker.config.sample import sample
from docs import conformance
from docs.reference_pages.api import api
from docs.reference_pages.cli import cli
from docs.reference_pages.connectors import connectors
from docs.reference_pages.dashboard import declarations
from docs.reference_pages.functions import rule_functions, variform
from docs.reference_pages.metrics import metrics
from docs.reference_pages.objects import objects
from docs.reference_pages.settings import settings

DIRECTORY: Final = Path(__file__).parent / "reference"
DASHBOARD_KINDS: Final = Path(__file__).parent.parent / "ui" / "web" / "src" / "api" / "kinds.json"
SNAPSHOT: Final = DIRECTORY / "openapi.json"
"""The OpenAPI document as it was committed last: a test names what changes in it, and what breaks clients."""


def pages() -> dict[str, str]:
    """Every page by its file name."""
    return asyncio.run(_pages())


async def _pages() -> dict[str, str]:
    async with _node() as node:
        context = context_of(node, ConfigReload(node, ServeOptions(data_dir=node.data_dir), {}))
        document = features.load(features.API_APPLICATION)(context).openapi()
        texts = {
            "settings.md": settings(),
            "sluice.conf": sample(load_config(section_models(), data_dir=None, environ={})),
            "objects.md": objects(),
            "connectors.md": connectors(),
            "functions.md": rule_functions(node.rules.functions),
            "variform.md": variform(),
            "cli.md": cli(),
            "api.md": api(document),
            SNAPSHOT.name: json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False),
            "metrics.md": metrics(node),
            "mqtt-conformance.md": conformance.page(),
        }
    return {name: f"{text.rstrip()}\n" for name, text in texts.items()}


def dashboard_kinds() -> str:
    """Kinds and resources for the dashboard, with what the committed document says of them."""
    return declarations(json.loads(SNAPSHOT.read_text()))


@asynccontextmanager
async def _node() -> Any:
    """A node that is put together and not started."""
    with TemporaryDirectory() as directory:
        data_dir = Path(directory)
        node = Node(
            load_config(section_models(), data_dir=data_dir, environ={}), data_dir, "not used"
        )
        try:
            yield node
        finally:
            await node.writer.close()
            node.store.close()


def main() -> None:
    """Write the pages."""
    DIRECTORY.mkdir(exist_ok=True)
    for name, text in pages().items():
        (DIRECTORY / name).write_text(text)
    DASHBOARD_KINDS.write_text(dashboard_kinds())


if __name__ == "__main__":
    main()
