"""Settings of lakehouse tables: section ``lake``."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from broker.config.model import Settings
from broker.config.units import Duration


class LakeSettings(Settings):
    """How tables are filled. The tables themselves stand under ``lake.tables``."""

    directory: Path | None = Field(
        default=None,
        description="Where tables without a path of their own lie; a path. Default: 'lake' in the data directory.",
    )
    run_spark: bool = Field(
        default=True, description="Run the job beside the broker. Off where 'sluice lake run' or a cluster runs it."
    )
    master: str = Field(
        default="local[2,4]", min_length=1, description="Spark's master; 'local[CORES,ATTEMPTS]' is this machine."
    )
    trigger: Duration = Field(default=1.0, gt=0, le=3600, description="Pause between micro-batches; a duration.")
    max_rows_per_trigger: int = Field(
        default=500_000, ge=1, le=50_000_000, description="Rows of a micro-batch at most; a number of rows."
    )
    driver_memory: str = Field(
        default="1g", pattern=r"^[1-9][0-9]*[mg]$", description="Memory of Spark's driver, as '512m' or '2g'."
    )
