"""Lakehouse tables as a feature of the broker."""

from __future__ import annotations

import asyncio
from pathlib import Path

from bridges.spark.broker_side.jobs import TableJobs
from bridges.spark.broker_side.local import LocalSpark
from bridges.spark.broker_side.reads import TableReads
from bridges.spark.broker_side.service import LakeTableService
from bridges.spark.broker_side.settings import LakeSettings
from bridges.spark.broker_side.table_spec import Places
from broker.config.secret_text import reference_problems
from broker.config.ssrf import AddressGuard, SsrfSettings
from broker.core.errors import ConfigError
from broker.core.feature import Feature, Services

SECTION = "lake.tables"
_LOOK_S = 1.0
# Interval of looking up the addresses of stores and catalogs, in seconds.
_LOOK_UP_S = 30.0


class LakeFeature(Feature):
    """Tables, and the job that fills them. Of several cells, the first one has all tables."""

    name = "lake"

    def __init__(
        self,
        services: Services,
        settings: LakeSettings | None = None,
        ssrf: SsrfSettings | None = None,
    ) -> None:
        self.settings = settings or LakeSettings()
        data_dir = services.node.data_dir or Path()
        self.places = places = Places.of_settings(self.settings, data_dir)
        self._guard = AddressGuard(ssrf or SsrfSettings())
        self._section = services.storage.section(SECTION)
        self.spark = LocalSpark(self.settings, places.scratch, data_dir / "logs" / "lake.log")
        self.tables = LakeTableService(services, self._section, places, self.spark)
        self.states = self.tables.states
        self.reads = TableReads(self.tables)
        self.jobs = TableJobs(self.tables)
        self._watching: list[asyncio.Task[None]] = []
        self._is_here = services.node.cell == 0
        if self._is_here:
            self.services = (self.tables,)
            services.contributors.append(self.tables)

    def start(self) -> None:
        """Load the tables of the configuration."""
        if not self._is_here:
            return
        problems = [f"lake: {problem.message}" for problem in reference_problems(self.settings)]
        if problems := problems + self.tables.load(self._section.load()):
            raise ConfigError(problems)

    async def connect(self, api_url: str, token: str) -> None:
        """Keep the job running whenever there is a table."""
        if not self._is_here:
            return
        self._watching = [asyncio.create_task(self._watch(), name="watch of lake tables")]
        if self._guard.is_on:
            await self.places.look_up(self._guard)
            self._watching.append(
                asyncio.create_task(self._look_up(), name="addresses of stores and catalogs")
            )
        if self.settings.run_spark:
            await self.spark.start(api_url, token)

    async def disconnect(self) -> None:
        """End the job in order."""
        for task in self._watching:
            task.cancel()
        await self.spark.stop()

    async def _watch(self) -> None:
        while True:
            self.states.look()
            self.jobs.audit_when_due()
            await asyncio.sleep(_LOOK_S)

    async def _look_up(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_UP_S)
            await self.places.look_up(self._guard)
