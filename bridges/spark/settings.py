"""Settings of lakehouse tables: section ``lake``."""

from __future__ import annotations

from pydantic import Field

from bridges.spark.catalog import CatalogSettings
from bridges.spark.store import StoreSettings
from broker.config.model import Settings


class LakeSettings(Settings):
    """How tables are filled. The tables themselves are under ``lake.tables``."""

    directory: str | None = Field(
        default=None,
        description="Directory of tables without a path of their own, or a URL in one of the `stores`. Default: 'lake' "
        "in the data directory.",
    )
    stores: list[StoreSettings] = Field(default_factory=list, description="Object stores that tables may be in.")
    run_spark: bool = Field(
        default=True, description="Whether the broker runs the job. Off where 'sluice lake run' or a cluster runs it."
    )
    master: str = Field(
        default="local[2,4]", min_length=1, description="Spark's master; 'local[CORES,ATTEMPTS]' is this machine."
    )
    max_rows_per_trigger: int = Field(default=500_000, ge=1, le=50_000_000, description="Maximum rows per micro-batch.")
    driver_memory: str = Field(
        default="1g", pattern=r"^[1-9][0-9]*[mg]$", description="Memory of Spark's driver, such as '512m' or '2g'."
    )
    catalogs: list[CatalogSettings] = Field(
        default_factory=list, description="Iceberg catalogs that tables may be registered in."
    )
