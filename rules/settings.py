"""Settings of the rule engine: section ``rule_engine``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from broker.config.model import Settings
from broker.config.ssrf import SsrfSettings
from broker.config.units import Duration, Size


class RulesSettings(Settings):
    """Settings of the rule engine. The rules themselves are under ``rule_engine.rules``."""

    ignore_sys_message: bool = Field(default=True, description="Leave out messages on $SYS topics.")
    max_republish_depth: int = Field(
        default=16,
        ge=1,
        le=1000,
        description="How many rules in a row may republish what another one republished.",
    )
    unusable_rules: Literal["keep", "refuse"] = Field(
        default="keep",
        description="Handling of a rule of the configuration that cannot be used when the broker starts: it is "
        "kept in state failed and all others run, or the broker does not start.",
    )
    backtest_timeout: Duration = Field(
        default=300.0, gt=0, description="How long a back-test may run."
    )
    backtest_memory: Size = Field(
        default=1024**3,
        ge=64 * 1024**2,
        description="Memory that the process of a back-test may take for its work.",
    )
    backtest_max_messages: int = Field(
        default=10_000_000, ge=1, description="How many messages a back-test reads at most."
    )
    jq_function_default_timeout: Duration = Field(
        default=10.0,
        gt=0,
        description="How long a jq program that runs in a worker process may take, where the call does not say.",
    )
    jq_workers: int = Field(
        default=2,
        ge=1,
        le=64,
        description="Worker processes for jq programs that may not end; started when they are first needed.",
    )
    jq_worker_memory: Size = Field(
        default=256 * 1024**2,
        ge=64 * 1024**2,
        description="The address space of a jq worker process; a program that needs more fails, and it alone.",
    )
    jq_queue_records: int = Field(
        default=1_000_000,
        ge=1,
        description="Maximum messages of one rule that wait for jq workers, for servers that code payloads, for "
        "registries elsewhere, or since FOREACH walks a long array; a full queue takes no more, which "
        "counts as a failure of the rule and in the metric queue_dropped.",
    )
    jq_queue_bytes: Size = Field(
        default=1024**3, ge=1024**2, description="How many bytes one rule may have waiting so."
    )
    ssrf: SsrfSettings = Field(
        default_factory=SsrfSettings,
        description="Which servers the broker calls for schemas of type external_http.",
    )
    type_check: Literal["error", "warning", "off"] = Field(
        default="error",
        description="Handling of a rule whose SQL has a certain mistake by the schemas bound to its topics and the "
        "types of columns: error: it is not saved; warning: it is saved, and shown with it; off: nothing is checked.",
    )
