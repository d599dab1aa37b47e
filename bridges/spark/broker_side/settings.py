"""Settings of lakehouse tables: section ``lake``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Self

from pydantic import Field, model_validator

from bridges.spark.columns.catalog import CatalogSettings
from broker.config.model import Settings
from broker.config.object_stores import StoreSettings


class LakeSettings(Settings):
    """Settings of the jobs that fill tables. The tables themselves are under ``lake.tables``."""

    directory: str | None = Field(
        default=None,
        description="Directory of tables without a path of their own, or a URL in one of the `stores`. Default: 'lake' "
        "in the data directory.",
    )
    stores: list[StoreSettings] = Field(
        default_factory=list, description="Object stores that tables may be in."
    )
    run_spark: bool = Field(
        default=True,
        description="Whether the broker runs the job. Off where 'sluice lake run' or a cluster runs it.",
    )
    master: str = Field(
        default="local[2,4]",
        min_length=1,
        description="Spark's master; 'local[CORES,ATTEMPTS]' is this machine.",
    )
    max_rows_per_trigger: int = Field(
        default=500_000, ge=1, le=50_000_000, description="Maximum rows per micro-batch."
    )
    driver_memory: str = Field(
        default="1g",
        pattern=r"^[1-9][0-9]*[mg]$",
        description="Memory of Spark's driver, such as '512m' or '2g'.",
    )
    catalogs: list[CatalogSettings] = Field(
        default_factory=list, description="Iceberg catalogs that tables may be registered in."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if twice := _first_twice(store.url.rstrip("/") for store in self.stores):
            raise ValueError(f"stores: expected each url once, got {twice!r} twice")
        if twice := _first_twice(catalog.name for catalog in self.catalogs):
            raise ValueError(f"catalogs: expected each name once, got {twice!r} twice")
        return self


def _first_twice(texts: Iterable[str]) -> str | None:
    return next((text for text, times in Counter(texts).items() if times > 1), None)
