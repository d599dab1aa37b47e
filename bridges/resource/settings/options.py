"""``resource_opts``: how a resource is watched, and how an action buffers, batches and retries. Names are EMQX's."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field, model_validator

from bridges.resource.contract import ConnectorType
from broker.config.model import Settings
from broker.config.units import Duration, Size

_INFINITY: Final = float("inf")


class HealthOptions(Settings):
    """What connectors, actions and sources have in common."""

    health_check_interval: Duration = Field(
        default=15.0, ge=0.001, le=3600, description="Pause between checks while nothing is sent; a duration."
    )
    health_check_interval_jitter: Duration = Field(
        default=0.0, ge=0, le=3600, description="Up to so much is added to each pause, by chance; a duration."
    )
    health_check_timeout: Duration = Field(
        default=60.0, gt=0, le=3600, description="A check that takes longer has failed; a duration."
    )


class ConnectorOptions(HealthOptions):
    """``resource_opts`` of a connector."""

    start_after_created: bool = Field(default=True, description="Connect when it is made, and when the broker starts.")
    start_timeout: Duration = Field(
        default=5.0, gt=0, le=3600, description="An attempt to connect that takes longer has failed; a duration."
    )
    reconnect_interval: Duration = Field(
        default=0.5,
        gt=0,
        le=3600,
        description="Pause after a failed attempt to connect; it doubles up to health_check_interval; a duration.",
    )


class SourceOptions(HealthOptions):
    """``resource_opts`` of a source."""

    start_after_created: bool = Field(default=True, description="Read when it is made, and when the broker starts.")


class ActionOptions(HealthOptions):
    """``resource_opts`` of an action."""

    start_after_created: bool = Field(default=True, description="Send when it is made, and when the broker starts.")
    buffer_mode: Literal["memory_only", "disk"] = Field(
        default="disk",
        description="Where rows wait: on disk, committed before PUBACK leaves, or in memory, lost with the broker.",
    )
    max_buffer_bytes: Size = Field(
        default=256 * 1024 * 1024, ge=1024, le=1024**4, description="Rows that wait, at most; a size for the action."
    )
    max_buffer_records: int = Field(
        default=10_000_000, ge=1, le=10**12, description="Rows that wait, at most; a number of rows."
    )
    overflow: Literal["drop_oldest", "refuse"] = Field(
        default="drop_oldest",
        description="What a full buffer does: drop the oldest rows, or refuse the publish (reason code 0x83).",
    )
    request_ttl: Duration = Field(
        default=_INFINITY, gt=0, description="Rows that wait longer are dropped; a duration, or infinity."
    )
    batch_size: int | None = Field(
        default=None, ge=1, le=1_000_000, description="Rows sent together, at most; a number. Default: the type's."
    )
    batch_time: Duration | None = Field(
        default=None, ge=0, le=3600, description="A batch waits so long to fill; a duration. Default: the type's."
    )
    batch_bytes: Size = Field(
        default=4 * 1024 * 1024, ge=1, le=1024**3, description="Payloads sent together, at most, or one row; a size."
    )
    worker_pool_size: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Lanes: rows of one key go through one, in order; a number. Default: the type's.",
    )
    dispatch_strategy: Literal["per_clientid", "per_key", "random"] = Field(
        default="per_key",
        description="What picks the lane: the client, the key of the connector's record, or whichever is free.",
    )
    inflight_window: int = Field(
        default=100,
        ge=1,
        le=100_000,
        description="Batches on the way to the target at once, over all lanes; 1 keeps one order; a number.",
    )
    query_mode: Literal["async", "sync"] = Field(default="async", description="sync is the same as inflight_window 1.")
    request_timeout: Duration = Field(
        default=30.0, gt=0, le=3600, description="A batch without an answer for so long is sent again; a duration."
    )
    retry_interval: Duration = Field(
        default=0.2,
        gt=0,
        le=3600,
        description="Pause before the first retry; it doubles up to resume_interval; a duration.",
    )
    resume_interval: Duration | None = Field(
        default=None,
        gt=0,
        le=3600,
        description="The longest pause between retries; a duration. Default: a third of request_ttl, at most "
        "health_check_interval.",
    )
    max_retries: int | None = Field(
        default=None, ge=0, le=10**9, description="Rows retried so often are given up; a number. Default: no bound."
    )
    missing_target: Literal["give_up", "wait"] | None = Field(
        default=None,
        description="Rows whose topic, table or file is missing wait or are given up. Default: on disk wait.",
    )

    @model_validator(mode="after")
    def _fits(self) -> ActionOptions:
        if self.dispatch_strategy == "random" and self.inflight_window == 1:
            raise ValueError("inflight_window 1 keeps one order, and dispatch_strategy random keeps none; choose one")
        return self

    @property
    def is_on_disk(self) -> bool:
        """Whether the buffer outlives the process."""
        return self.buffer_mode == "disk"

    @property
    def longest_pause_s(self) -> float:
        """Between two retries."""
        if self.resume_interval is not None:
            return self.resume_interval
        return max(self.retry_interval, min(self.health_check_interval, self.request_ttl / 3))

    @property
    def waits_for_target(self) -> bool:
        """Whether rows wait for a target that is missing."""
        return self.is_on_disk if self.missing_target is None else self.missing_target == "wait"

    @property
    def window(self) -> int:
        """Batches on the way at once."""
        return 1 if self.query_mode == "sync" else self.inflight_window

    def batch_size_of(self, kind: ConnectorType) -> int:
        """Rows sent together."""
        return kind.batch_size if self.batch_size is None else self.batch_size

    def batch_time_of(self, kind: ConnectorType) -> float:
        """Seconds that a batch waits to fill."""
        return kind.batch_time_s if self.batch_time is None else self.batch_time

    def lanes_of(self, kind: ConnectorType) -> int:
        """Lanes; never more than batches may be on the way."""
        lanes = kind.lanes if self.worker_pool_size is None else self.worker_pool_size
        return min(lanes, self.window)
