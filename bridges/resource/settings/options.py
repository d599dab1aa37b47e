"""``resource_opts``: how a resource is watched, and how an action buffers, batches and retries. Names are EMQX's."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field, model_validator

from broker.config.model import Settings
from broker.config.units import Duration, Size

_INFINITY: Final = float("inf")


class HealthOptions(Settings):
    """Options that connectors, actions and sources share."""

    health_check_interval: Duration = Field(
        default=15.0,
        ge=0.001,
        le=3600,
        description="Interval between health checks while nothing is sent.",
    )
    health_check_interval_jitter: Duration = Field(
        default=0.0, ge=0, le=3600, description="Maximum random addition to each interval."
    )
    health_check_timeout: Duration = Field(
        default=60.0, gt=0, le=3600, description="Time limit of a health check."
    )


class ConnectorOptions(HealthOptions):
    """``resource_opts`` of a connector."""

    start_after_created: bool = Field(
        default=True, description="Whether it connects when created and when the broker starts."
    )
    start_timeout: Duration = Field(
        default=5.0, gt=0, le=3600, description="Time limit of an attempt to connect."
    )
    reconnect_interval: Duration = Field(
        default=0.5,
        gt=0,
        le=3600,
        description="Pause after a failed attempt to connect; doubles up to health_check_interval.",
    )


class SourceOptions(HealthOptions):
    """``resource_opts`` of a source."""

    start_after_created: bool = Field(
        default=True, description="Whether it reads when created and when the broker starts."
    )


class ActionOptions(HealthOptions):
    """``resource_opts`` of an action."""

    start_after_created: bool = Field(
        default=True, description="Whether it sends when created and when the broker starts."
    )
    buffer_mode: Literal["memory_only", "disk"] = Field(
        default="disk",
        description="Where rows are buffered: on disk, committed before PUBACK leaves, or in memory, lost at a crash.",
    )
    max_buffer_bytes: Size = Field(
        default=256 * 1024 * 1024, ge=1024, le=1024**4, description="Maximum size of the buffer."
    )
    max_buffer_records: int = Field(
        default=10_000_000, ge=1, le=10**12, description="Maximum rows in the buffer."
    )
    overflow: Literal["drop_oldest", "refuse"] = Field(
        default="drop_oldest",
        description="What a full buffer does: drop the oldest rows, or refuse the publish (reason code 0x83).",
    )
    request_ttl: Duration = Field(
        default=_INFINITY,
        gt=0,
        description="Maximum time in the buffer; older rows are dropped. A duration, or infinity.",
    )
    batch_size: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Maximum rows per batch. Default: the connector type's.",
    )
    batch_time: Duration | None = Field(
        default=None,
        ge=0,
        le=3600,
        description="Maximum time that a batch waits to fill. Default: the connector type's.",
    )
    batch_bytes: Size = Field(
        default=4 * 1024 * 1024,
        ge=1,
        le=1024**3,
        description="Maximum size of the payloads of a batch; a larger row is sent alone.",
    )
    worker_pool_size: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Number of lanes; rows of one key share a lane and stay in order. Default: the connector type's.",
    )
    dispatch_strategy: Literal["per_clientid", "per_key", "random"] = Field(
        default="per_key",
        description="What selects the lane: the client, the key of the connector's record, or nothing (any lane).",
    )
    inflight_window: int = Field(
        default=100,
        ge=1,
        le=100_000,
        description="Maximum batches in flight, over all lanes; 1 keeps one order.",
    )
    query_mode: Literal["async", "sync"] = Field(
        default="async", description="sync is the same as inflight_window = 1."
    )
    request_timeout: Duration = Field(
        default=30.0,
        gt=0,
        le=3600,
        description="Time limit of a batch; without an answer it is sent again.",
    )
    retry_interval: Duration = Field(
        default=0.2,
        gt=0,
        le=3600,
        description="Pause before the first retry; doubles up to resume_interval.",
    )
    resume_interval: Duration | None = Field(
        default=None,
        gt=0,
        le=3600,
        description="Maximum pause between retries. Default: a third of request_ttl, at most health_check_interval.",
    )
    max_retries: int | None = Field(
        default=None,
        ge=0,
        le=10**9,
        description="Maximum retries of a row before it is discarded. Default: no limit.",
    )
    missing_target: Literal["give_up", "wait"] | None = Field(
        default=None,
        description="Whether rows for a missing topic, table or file wait or are discarded. Default: wait if on disk.",
    )

    @model_validator(mode="after")
    def _fits(self) -> ActionOptions:
        if self.dispatch_strategy == "random" and self.inflight_window == 1:
            raise ValueError(
                "inflight_window 1 keeps one order, and dispatch_strategy random keeps none; choose one"
            )
        return self

    @property
    def is_on_disk(self) -> bool:
        """True if the buffer outlives the process."""
        return self.buffer_mode == "disk"
