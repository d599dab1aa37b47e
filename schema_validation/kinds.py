"""Schemas, registries elsewhere, and validations."""

from __future__ import annotations

from broker.core.kinds import ENABLE, OF_GATES, PAGE_OF_GATES, Abilities, Kind
from broker.core.resources import Command, Parameter, Resource, Verb, trial

KINDS = (
    Kind(
        name="schema registry",
        topics="none",
        area="authoring",
        path="schema-registries",
        section="schema_registry.external",
        models=("schema_validation.confluent:ConfluentSpec",),
        read_only="schema_validation.external_service:RegistryReadOnly",
        about="A Confluent-compatible schema registry on another server. Secrets are shown as stars; stars keep them.",
        tag="Schemas",
        columns={
            "name": "name",
            "type": "type",
            "url": "url",
            "cached": "cached",
            "last error": "last_error",
        },
        menu="Administration",
    ),
    Kind(
        name="schema",
        topics="named",
        area="authoring",
        path="schemas",
        section="schema_registry.schemas",
        models=("schema_validation.spec:SchemaSpec",),
        read_only="schema_validation.service:SchemaReadOnly",
        documents=("source", "files"),
        about="What payloads are made of. Saving another source adds a version, which is used from then on.",
        tag="Schemas",
        columns={"name": "name", "type": "type", "version": "version"},
        recorded="schema_validation.versions:recorded_versions",
        menu="Data",
        page_columns={
            "Type": "type",
            "Version": "version",
            "Compatibility": "compatibility",
            "Description": "description",
        },
    ),
    Kind(
        name="validation",
        topics="named",
        area="authoring",
        path="validations",
        section="schema_validation.validations",
        models=("schema_validation.spec:ValidationSpec",),
        about="Checks for messages on topics, and what happens to messages that fail.",
        tag="Validations",
        columns=OF_GATES,
        menu="Data",
        page_columns=PAGE_OF_GATES,
        reads_at="running",
        read_only="broker.observe.gate_counters:GateReadOnly",
        abilities=Abilities(
            can_patch=True,
            can_reorder=True,
            metrics="broker.observe.gate_counters:GateMetrics",
            switches=ENABLE,
        ),
    ),
)

MODE = Kind(
    name="compatibility mode",
    topics="none",
    path="schemas/modes",
    section="schema_registry.modes",
    models=("schema_validation.modes:ModeSpec",),
    about="What a new version of a schema must be compatible with; `*` is the registry's own.",
    tag="Schemas",
    columns=("name", "compatibility"),
    has_any_name=True,
    reloads=False,
)
INNER_KINDS = (MODE,)

_NAME = Parameter(name="name", type="name", is_required=True, is_argument=True)
_VERSION = Parameter(
    name="version", text="The number of a version, 'latest', or 'current' for the one in use.", is_required=True,
    keyword="number",
)  # fmt: skip
_KNOWN = "sluice schemas ls"
_MODELS = "ui.api.models.schemas"
_TRIALS = "schema_validation.trials"
_SAVED = "Uses the version in use unless the body names another."
_UNSAVED = "The schema is part of the body and is not saved."
_TRIED = (
    trial("checkSchema", ":check", "check", f"{_MODELS}:SchemaSource", f"{_TRIALS}:SchemaCheck",
          "Check a schema. Compiles the schema. Status 422 says why it cannot be saved."),
    trial("decodeWithSchema", ":decode", "decode", f"{_MODELS}:SchemaDecode", f"{_TRIALS}:DecodedValue",
          f"Decode a payload. {_UNSAVED}"),
    trial("encodeWithSchema", ":encode", "encode", f"{_MODELS}:SchemaEncode", f"{_TRIALS}:EncodedValue",
          f"Encode a value. {_UNSAVED}"),
    trial("validateWithSchema", ":validate", "validate", f"{_MODELS}:SchemaValidate", f"{_TRIALS}:Fit",
          f"Validate a value or payload. {_UNSAVED}"),
    trial("inferSchema", ":infer", "prepare_infer", f"{_MODELS}:SchemaInference",
          "schema_validation.serdes.base:InferredSchema",
          "Infer a schema from messages. Learns from samples in the body, or from messages on a topic or in a "
          "stream."),
    trial("checkSchemaChange", "/{name}:check", "prepare_check", f"{_MODELS}:SchemaSource", f"{_TRIALS}:SchemaCheck",
          f"Check a new version of a schema. {_SAVED}", _NAME),
    trial("decodeWithRegisteredSchema", "/{name}:decode", "decode", f"{_MODELS}:RegisteredDecode",
          f"{_TRIALS}:DecodedValue", f"Decode a payload with a registered schema. {_SAVED}", _NAME),
    trial("encodeWithRegisteredSchema", "/{name}:encode", "encode", f"{_MODELS}:RegisteredEncode",
          f"{_TRIALS}:EncodedValue", f"Encode a value with a registered schema. {_SAVED}", _NAME),
    trial("validateWithRegisteredSchema", "/{name}:validate", "validate", f"{_MODELS}:RegisteredValidate",
          f"{_TRIALS}:Fit", f"Validate a value or payload with a registered schema. {_SAVED}", _NAME),
)  # fmt: skip
RESOURCES = (
    Resource(
        name="schema",
        topics="named",
        path="/schemas/{name}",
        tag="Schemas",
        service="services.schemas",
        commands="schemas",
        verbs=(
            Verb(
                id="getSchemaUsers",
                text="Show which objects use a schema. Validations, transformations and rules that name it, and "
                "schemas that refer to it.",
                call="users",
                path="/users",
                takes=(_NAME,),
                answer="schema_validation.service:SchemaUsers",
                command=Command(
                    name="users",
                    help="List what names a schema: validations, transformations, rules, other schemas.",
                    show="broker.cli.schemas:print_users",
                    known=_KNOWN,
                ),
            ),
            Verb(
                id="listSchemaVersions",
                text="List the versions of a schema. Oldest first, without their sources.",
                call="versions",
                path="/versions",
                takes=(_NAME,),
                row="schema_validation.service:SchemaVersionView",
                model="SchemaVersionPage",
                page_text="The versions of a schema, oldest first.",
                command=Command(
                    name="versions",
                    help="List the versions of a schema, oldest first.",
                    show="broker.cli.schemas:print_versions",
                    known=_KNOWN,
                ),
            ),
            Verb(
                id="getSchemaVersion",
                text="Show a version of a schema. Returns the version with its source.",
                call="version",
                path="/versions/{version}",
                takes=(_NAME, _VERSION),
                answer="schema_validation.service:SchemaVersionSource",
            ),
            Verb(
                id="diffSchemaVersions",
                text="Compare two versions of a schema. Lists fields that were added, removed or changed, with their "
                "paths.",
                call="difference",
                path="/diff",
                takes=(
                    _NAME,
                    Parameter(
                        name="before", text="A version, as in the path of one.", is_required=True
                    ),
                    Parameter(name="after", text="Another version.", default="current"),
                ),
                answer="schema_validation.service:SchemaDifference",
            ),
        ),
    ),
    Resource(
        name="schema",
        topics="named",
        path="/schemas",
        tag="Try",
        service="services.schemas",
        commands="",
        verbs=_TRIED,
    ),
    Resource(
        name="validation",
        topics="named",
        path="/validations",
        tag="Try",
        service="services.validations",
        commands="",
        verbs=(
            trial(
                "testValidations",
                ":test",
                "test",
                "ui.api.models.gates:ValidationTest",
                "schema_validation.validation_service:ValidationsTrial",
                "Run validations on one message. Returns whether the message passes, and the result of every check.",
            ),
        ),
    ),
)
