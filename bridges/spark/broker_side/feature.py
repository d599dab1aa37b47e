"""Lakehouse tables as a feature of the broker."""

from __future__ import annotations

import asyncio
from pathlib import Path

from bridges.spark.broker_side.local import LocalSpark
from bridges.spark.broker_side.service import LakeTableService
from bridges.spark.broker_side.settings import LakeSettings
from bridges.spark.broker_side.table_spec import Places
from broker.config.secret_text import reference_problems
from broker.core.errors import ConfigError
from broker.core.feature import Feature, Services

SECTION = "lake.tables"
_LOOK_S = 1.0


class LakeFeature(Feature):
    """Tables, and the job that fills them."""

    name = "lake"

    def __init__(self, services: Services, settings: LakeSettings | None = None) -> None:
        self.settings = settings or LakeSettings()
        data_dir = services.node.data_dir or Path()
        places = Places.of_settings(self.settings, data_dir)
        self._section = services.storage.section(SECTION)
        self.spark = LocalSpark(self.settings, places.scratch, data_dir / "logs" / "lake.log")
        self.service = LakeTableService(services, self._section, places, self.spark)
        self._watching: asyncio.Task[None] | None = None
        self.services = (self.service,)
        services.contributors.append(self.service)

    def start(self) -> None:
        """Load the tables of the configuration."""
        problems = [f"lake: {problem.message}" for problem in reference_problems(self.settings)]
        if problems := problems + self.service.load(self._section.load()):
            raise ConfigError(problems)

    async def connect(self, api_url: str, token: str) -> None:
        """Keep the job running whenever there is a table."""
        self._watching = asyncio.create_task(self._watch(), name="watch of lake tables")
        if self.settings.run_spark:
            await self.spark.start(api_url, token)

    async def disconnect(self) -> None:
        """End the job in order."""
        if self._watching is not None:
            self._watching.cancel()
        await self.spark.stop()

    async def _watch(self) -> None:
        while True:
            self.service.look()
            await asyncio.sleep(_LOOK_S)
