"""Settings of the rule engine: section ``rule_engine``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from broker.config.model import Settings


class RulesSettings(Settings):
    """How rules run. The rules themselves stand under ``rule_engine.rules``."""

    ignore_sys_message: bool = Field(default=True, description="Leave out messages on $SYS topics.")
    max_republish_depth: int = Field(
        default=16, ge=1, le=1000, description="How many rules in a row may republish what another one republished."
    )
    unusable_rules: Literal["keep", "refuse"] = Field(
        default="keep",
        description="What becomes of a rule of the configuration that cannot be used when the broker starts: it is "
        "kept in state failed and all others run, or the broker does not start.",
    )
    type_check: Literal["error", "warning", "off"] = Field(
        default="error",
        description="What becomes of a rule whose SQL has a certain mistake by the schemas bound to its topics and the "
        "types of columns: error: it is not saved; warning: it is saved, and shown with it; off: nobody looks.",
    )
