"""The streams of a store that no broker has open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker.storage.store import Store
from broker.storage.writer import Writer
from broker.streams.catalogue import Catalogue, LogKeys
from broker.streams.settings import StreamSpec


def catalogue_of(
    store: Store, *specs: StreamSpec, change: Callable[[Catalogue], object] = lambda _: None
) -> Catalogue:
    """The catalogue with these streams opened, and then changed; all of it is committed."""

    async def opened() -> Catalogue:
        writer = Writer(store, asyncio.get_running_loop())
        catalogue = Catalogue(LogKeys(writer))
        for spec in specs:
            catalogue.open(spec)
        change(catalogue)
        await writer.close()
        return catalogue

    return asyncio.run(opened())
