"""Lakehouse tables as a feature of the broker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bridges.spark.local import LocalSpark
from bridges.spark.service import ColumnsOf, LakeTableService, PositionsOf, RuleOf
from bridges.spark.settings import LakeSettings
from broker.core.errors import ConfigError
from broker.core.feature import Services
from broker.core.objects import ObjectService
from broker.core.stage import Gate, Tap

SECTION = "lake.tables"


class LakeFeature:
    """A ``broker.core.feature.Feature``; the job beside the broker is started once the API listens."""

    name = "lake"

    def __init__(
        self,
        services: Services,
        settings: LakeSettings | None = None,
        *,
        data_dir: Path,
        columns_of: ColumnsOf,
        positions: PositionsOf,
        rule_of: RuleOf,
    ) -> None:
        self.settings = settings or LakeSettings()
        directory = (data_dir / (self.settings.directory or "lake")).resolve()
        self._section = services.section(SECTION)
        self.service = LakeTableService(
            services, self._section, directory, columns_of=columns_of, positions=positions, rule_of=rule_of
        )
        self.spark = LocalSpark(self.settings, directory, data_dir / "logs" / "lake.log")
        self.service.watch_job(self.spark.state)
        self.service.on_change(self._run_when_needed)
        self.gates: Sequence[Gate] = ()
        self.taps: Sequence[Tap] = ()
        self.services: Sequence[ObjectService] = (self.service,)
        services.users_of_stream.append(self.service.users_of_stream)

    def start(self) -> None:
        """Load the tables of the configuration."""
        if problems := self.service.load(self._section.load()):
            raise ConfigError(problems)

    def stop(self) -> None:
        """There is nothing to give up but the job, see ``stop_job``."""

    async def start_job(self, url: str, token: str) -> None:
        """Keep the job running whenever there is a table; ``url`` and ``token`` are the management API's."""
        self._run_when_needed()
        if self.settings.run_spark:
            await self.spark.start(url, token)

    async def stop_job(self) -> None:
        """End the job in order."""
        await self.spark.stop()

    def _run_when_needed(self) -> None:
        self.spark.want(bool(self.service.list()))
