"""The built-in features by name, loaded as a plugin would be.

The broker imports no feature: it starts without Spark's or Kafka's packages, and this list shows what is built in.
"""

from __future__ import annotations

from broker.core.kinds import load

__all__ = ["load"]

SCHEMA_VALIDATION = "schema_validation.feature:SchemaValidationFeature"
TRANSFORMS = "transforms.feature:TransformsFeature"
RULES = "rules.feature:RulesFeature"
LAKE = "bridges.spark.broker_side.feature:LakeFeature"
BRIDGES = "bridges.feature:BridgesFeature"
BACKTEST = "rules.trials.backtest_run:run"

# Settings model of a section that holds objects only.
NO_SETTINGS = "broker.config.model:Settings"
# The settings model of each feature's section of the configuration.
SETTINGS = {
    "schema_registry": "schema_validation.settings:SchemaRegistrySettings",
    "schema_validation": NO_SETTINGS,
    "message_transformation": NO_SETTINGS,
    "rule_engine": "rules.settings:RulesSettings",
    "lake": "bridges.spark.broker_side.settings:LakeSettings",
}

API_CONTEXT = "ui.api.context:ApiContext"
API_APPLICATION = "ui.api.application:create_app"
API_SERVER = "ui.api.server:ApiServer"
API_LISTENER = "ui.api.listening:bind"
API_FACES = "ui.api.cells:Faces"
API_FILES_OF_FRONT = "ui.api.cell_files:FilesOfFront"
API_CELL_LISTENER = "ui.api.cell_calls:bind_socket"
API_CERTIFICATE = "ui.api.listening:Certificate"
