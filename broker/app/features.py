"""The built-in features by name, loaded as a plugin would be.

The broker imports no feature: it starts without Spark's or Kafka's packages, and this list shows what is built in.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

SCHEMA_VALIDATION = "schema_validation.feature:SchemaValidationFeature"
TRANSFORMS = "transforms.feature:TransformsFeature"
RULES = "rules.feature:RulesFeature"
LAKE = "bridges.spark.feature:LakeFeature"
BRIDGES = "bridges.feature:BridgesFeature"
BACKTEST = "rules.backtest_run:run"

SETTINGS = {
    "schema_registry": "schema_validation.settings:SchemaRegistrySettings",
    "schema_validation": "schema_validation.settings:SchemaValidationSettings",
    "message_transformation": "transforms.settings:TransformsSettings",
    "rule_engine": "rules.settings:RulesSettings",
    "lake": "bridges.spark.settings:LakeSettings",
}
"""The settings model of each feature's section of the configuration."""

API_CONTEXT = "ui.api.context:ApiContext"
API_APPLICATION = "ui.api.application:create_app"
API_SERVER = "ui.api.server:ApiServer"
API_LISTENER = "ui.api.listening:bind"


def load(name: str) -> Any:
    """The object that ``module:attribute`` names."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
