"""Bodies as OpenAPI shows them. They describe; what is accepted is decided by the services, with better words."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Open(BaseModel):
    """Further members are described by the feature that reads them."""

    model_config = ConfigDict(extra="allow")


class ConnectorSpec(_Open):
    """A connector: its type, and the members of that type (``GET /connector-types``)."""

    name: str
    type: str = Field(examples=["kafka"])
    enable: bool = True
    description: str = ""
    resource_opts: dict[str, Any] | None = None


class ActionSpec(_Open):
    """An action: where rules hand rows to, as ``<type>:<name>``."""

    name: str
    type: str = Field(examples=["kafka"])
    connector: str
    enable: bool = True
    description: str = ""
    parameters: dict[str, Any] | None = None
    resource_opts: dict[str, Any] | None = None
    fallback_actions: list[dict[str, Any]] | None = None
    dead_letters: dict[str, Any] | None = None


class SourceSpec(_Open):
    """A source: what rules read with ``FROM "$bridges/<type>:<name>"``."""

    name: str
    type: str = Field(examples=["kafka"])
    connector: str
    enable: bool = True
    description: str = ""
    parameters: dict[str, Any] | None = None
    resource_opts: dict[str, Any] | None = None


class ProbeResult(BaseModel):
    """A test of a connection: of each step ``name``, ``result`` (ok, failed, skipped), ``duration_ms``, ``message``."""

    ok: bool
    steps: list[dict[str, Any]]


class Drain(BaseModel):
    """How long to wait for the rows that are left to be sent, in seconds."""

    timeout_s: float = 30


class ProblemEntry(BaseModel):
    """One thing wrong, and where: a JSON pointer into the body; line and column count from 1 inside that text."""

    pointer: str | None = None
    line: int | None = None
    column: int | None = None
    message: str
    suggestion: str | None = None


class ProblemDocument(_Open):
    """An error, RFC 9457. ``code`` is stable; ``instance`` is the request's identifier."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str
    errors: list[ProblemEntry]


class Object(_Open):
    """An object as it is shown: what was sent, defaults filled in, and read-only members such as ``state``."""

    name: str


class ObjectList(BaseModel):
    """A page of objects. ``next`` goes into ``cursor`` for the page after it."""

    items: list[dict[str, Any]]
    next: str | None
    total: int
    total_is_estimate: bool


class Alarm(BaseModel):
    """Something that is or was wrong: ``message`` in a sentence, ``details`` in numbers. Times are RFC 3339 in UTC."""

    name: str
    message: str
    details: dict[str, Any]
    activated_at: str
    deactivated_at: str | None
    lasted_s: float


class AlarmList(BaseModel):
    """Alarms, newest first."""

    items: list[Alarm]
    next: None
    total: int
    total_is_estimate: bool


class FunctionList(ObjectList):
    """Functions of the rule language; ``origin`` is ``sluice`` or the plugin they are from."""

    plugins: list[dict[str, Any]]


class Order(BaseModel):
    """The names of all objects of a kind, in the order wanted."""

    order: list[str]


class EncodedPayload(BaseModel):
    """A payload with its encoding."""

    encoding: Literal["utf8", "base64", "json"] = "utf8"
    data: Any


class SchemaSpec(_Open):
    """A schema: ``json``, ``avro`` or ``protobuf`` and its source, or ``external_http`` and its parameters."""

    name: str
    type: str
    source: str | dict[str, Any] | None = Field(default=None, examples=['{"type": "object", "required": ["t"]}'])
    parameters: dict[str, Any] | None = Field(
        default=None, description="Of external_http: url and how it is called. Secrets are shown as stars."
    )


class SchemaRegistrySpec(_Open):
    """A Confluent-compatible schema registry elsewhere. Secrets are shown as stars; stars sent back keep them."""

    name: str
    type: Literal["confluent"] = "confluent"
    url: str
    auth: Literal["none"] | dict[str, Any] = "none"
    request_timeout_s: float = 5.0


class ValidationSpec(_Open):
    """Checks for messages on topics, and what to do when they fail."""

    name: str
    topics: list[str] | str
    strategy: Literal["all_pass", "any_pass"]
    failure_action: Literal["drop", "disconnect", "ignore"]
    checks: list[dict[str, Any]]
    mode: Literal["enforce", "shadow"] = "enforce"
    quarantine: str | None = None
    enable: bool = True


class TransformSpec(_Open):
    """Changes to messages on topics, all or none."""

    name: str
    topics: list[str] | str
    failure_action: Literal["drop", "disconnect", "ignore"]
    operations: list[dict[str, Any]] = []
    mode: Literal["enforce", "shadow"] = "enforce"
    quarantine: str | None = None
    enable: bool = True


class RuleTestCase(_Open):
    """An event, and what the SQL makes of it: ``{"rows": [...]}``, ``{"no_result": true}`` or ``{"error": ...}``."""

    name: str
    event: dict[str, Any]
    expect: dict[str, Any]


class RuleSpec(_Open):
    """SQL over messages and events, and what to do with its rows."""

    name: str
    language: Literal["sql", "jq"] = "sql"
    jq: str | None = Field(None, description="The program, with the language jq.", examples=["{t: .payload.t}"])
    reads: list[str] | None = Field(None, alias="from", description="What it reads, with the language jq.")
    sql: str | None = Field(None, examples=['SELECT payload.t AS t, clientid FROM "meters/#" WHERE payload.t > 20'])
    actions: list[dict[str, Any]] = []
    enable: bool = True
    description: str = ""
    tests: list[RuleTestCase] = []


class ObjectPatch(_Open):
    """Members of an object to change; null sets one back to its default (RFC 7396)."""


class RulePatch(_Open):
    """Members of a rule to change; null sets one back to its default (RFC 7396)."""


class RuleCode(BaseModel):
    """What a rule was compiled to."""

    language: Literal["python"]
    source: str


class StreamSpec(_Open):
    """A durable log; with ``topics`` it captures the messages that match, else rows of rules."""

    name: str
    topics: list[str] = []


class TableSpec(_Open):
    """A table of the lakehouse that follows a stream."""

    name: str
    stream: str
    format: Literal["delta", "iceberg"] = "delta"
    path: str = ""


class RewriteSpec(_Open):
    """A rewrite of topics that clients name; the first one whose `source_topic` matches is taken.

    `dest_topic` has `$1` for groups of `re` (RE2), `${clientid}`, `${username}` and `${client_attrs.NAME}`.
    """

    name: str
    action: Literal["publish", "subscribe", "all"] = "all"
    source_topic: str
    re: str | None = None
    dest_topic: str
    enable: bool = True


class RewriteTest(_Open):
    """A topic (`publish`) or filter (`subscribe`) to try; `rewrites` stand in place of those in force."""

    topic: str
    action: Literal["publish", "subscribe"] = "publish"
    clientid: str = "client"
    username: str | None = None
    client_attrs: dict[str, str] = {}
    rewrites: list[RewriteSpec] | None = None


class ListenerSpec(_Open):
    """Settings of a listener, those of section `listeners` in the configuration; absent ones have their defaults."""

    bind: str = "127.0.0.1:1883"
    enable: bool = True
    max_connections: int = 0


class AutoSubscriptionSpec(_Open):
    """A subscription made for every client that connects; `topic` may have `${clientid}` and the like."""

    name: str
    topic: str
    qos: Literal[0, 1, 2] = 0
    nl: bool = False
    rap: bool = False
    rh: Literal[0, 1, 2] = 0
    enable: bool = True


class RuleTest(_Open):
    """A rule's SQL and the columns of the event to run it on."""

    language: Literal["sql", "jq"] = "sql"
    jq: str | None = None
    reads: list[str] | None = Field(None, alias="from")
    sql: str | None = None
    event: dict[str, Any] = {}


class RuleCheck(_Open):
    """A rule, or its SQL alone, that need not be saved."""

    sql: str = Field(examples=['SELECT payload.t AS t, clientid FROM "meters/#" WHERE payload.t > 20'])
    actions: list[dict[str, Any]] = []


class LineageOrigin(BaseModel):
    """A column of the event; ``path`` is a place in it, as ``tags[].k``."""

    column: str
    path: str | None
    type: str


class LineageColumn(BaseModel):
    """A column of the rows: its type, the SQL that makes it, and what that reads."""

    name: str
    type: str
    spark_type: str
    expression: str
    origins: list[LineageOrigin] = Field(alias="from")


class LineageCondition(BaseModel):
    """A condition that decides whether there is a row: ``WHERE`` or ``INCASE``."""

    clause: str
    expression: str
    origins: list[LineageOrigin] = Field(alias="from")


class RuleLineage(BaseModel):
    """What the rows of a rule are made of, and on what it depends whether there are any."""

    rule: str
    columns: list[LineageColumn]
    conditions: list[LineageCondition]


class RuleExplain(_Open):
    """SQL, or the name of a rule, and the columns of the event to run it on."""

    sql: str | None = None
    name: str | None = None
    event: dict[str, Any] = {}


class Backtest(_Open):
    """New SQL for a rule, or a rule, and the messages to run it on.

    ``name`` and ``sql`` compare the SQL with the rule that runs; one alone is run beside nothing. ``from`` and ``to``
    are offsets, for every shard, or times; with more than ``limit`` messages between them the newest are read.
    """

    name: str | None = None
    sql: str | None = None
    stream: str
    start: str | int | None = Field(default=None, alias="from")
    to: str | int | None = None
    limit: int = 10_000_000
    samples: int = Field(default=10, ge=1, le=200)
    timeout_s: float = 300.0


class TemplateRender(_Open):
    """A template with ``${...}`` and the row that fills it."""

    template: str
    row: dict[str, Any] = {}


class VariformEval(_Open):
    """An expression and its variables."""

    expression: str
    bindings: dict[str, Any] = {}
    raw: bool = False


class TestMessage(_Open):
    """A message to try something on."""

    topic: str
    payload: str | EncodedPayload = ""
    qos: int = 0
    retain: bool = False


class TransformPreview(_Open):
    """Transformations and the message to run them on; schemas are registered for this call only."""

    transformations: list[dict[str, Any]]
    message: TestMessage
    schemas: list[dict[str, Any]] = []
    check_references: bool = True


class ValidationTest(_Open):
    """Validations and the message to run them on; schemas are registered for this call only."""

    validations: list[dict[str, Any]]
    message: TestMessage
    schemas: list[dict[str, Any]] = []
    check_references: bool = True


class SchemaSource(_Open):
    """A schema that is not saved."""

    type: str
    source: str | dict[str, Any] | None = None
    files: list[dict[str, Any]] | None = None
    parameters: dict[str, Any] | None = None


class RegisteredDecode(_Open):
    """A payload to decode with a registered schema, by the version in use or another."""

    payload: str | EncodedPayload
    message_type: str | None = None
    version: int | None = None


class RegisteredEncode(_Open):
    """A value to encode with a registered schema."""

    value: Any
    message_type: str | None = None
    version: int | None = None


class RegisteredValidate(_Open):
    """A value or payload to hold against a registered schema."""

    value: Any = None
    payload: str | EncodedPayload | None = None
    message_type: str | None = None
    version: int | None = None


class SchemaUsers(BaseModel):
    """Who names a schema: validations, transformations and rules, and versions of other schemas."""

    users: list[str]
    schemas: list[str]


class SchemaDifference(BaseModel):
    """What changed between two versions; each change has ``change``, ``path``, ``before``, ``after`` and ``text``."""

    before: int
    after: int
    changes: list[dict[str, Any]]


class Compatibility(BaseModel):
    """What a new version of a schema must be able to do."""

    compatibility: Literal[
        "none",
        "backward",
        "backward_transitive",
        "forward",
        "forward_transitive",
        "full",
        "full_transitive",
        "disabled",
    ]


class SchemaInference(_Open):
    """Messages to learn a schema from: ``samples``, or a ``topic`` filter, or a ``stream``."""

    type: Literal["json", "avro"] = "json"
    samples: list[Any] | None = None
    topic: str | None = None
    stream: str | None = None
    name: str = "Message"


class InferredSchema(BaseModel):
    """A schema that the messages fit; ``skipped`` messages were not JSON."""

    type: str
    source: str
    messages: int
    skipped: int
    warnings: list[str]


class SchemaDecode(SchemaSource):
    """A schema and a payload to decode with it."""

    payload: str | EncodedPayload
    message_type: str | None = None


class SchemaEncode(SchemaSource):
    """A schema and a value to encode with it."""

    value: Any
    message_type: str | None = None


class SchemaValidate(SchemaSource):
    """A schema and a value or payload to hold against it."""

    value: Any = None
    payload: str | EncodedPayload | None = None


class PublishRequest(BaseModel):
    """A message to publish, as a client would."""

    topic: str = Field(examples=["meters/1/telemetry"])
    payload: str | EncodedPayload = ""
    qos: Literal[0, 1, 2] = 0
    retain: bool = False
    user_properties: list[tuple[str, str]] = []
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: str | None = Field(default=None, description="As text in UTF-8.")
    message_expiry_interval: int | None = Field(default=None, description="Seconds.")
    payload_format_indicator: Literal[0, 1] | None = None


class Published(BaseModel):
    """What became of a message that was not refused: how many took it, and whether it is the topic's retained one.

    With QoS 1 and 2 the answer comes once it is stored for all that are to get it later.
    """

    receivers: int
    outcome: Literal["delivered", "no_subscribers"]
    retained: bool


class ShardPosition(BaseModel):
    """Where a shard begins and ends; offsets are texts, since JavaScript loses precision above 2^53."""

    shard: int
    first_offset: str
    next_offset: str
    at_offset: str | None = None


class StreamPositions(_Open):
    """Where a stream stands, and where its records are read.

    That is ``{ranges_url}/streams/{log}/{shard}?from=&to=``, with ``ticket`` as bearer. ``epoch`` changes when a stream
    is deleted and made anew.
    """

    stream: str
    kind: Literal["topics", "rows"]
    shards: list[ShardPosition]
    ranges_url: str
    ticket: str
    expires_at: str
    epoch: str
    log: int


class PipelinePreview(_Open):
    """A message to try everything on that is configured."""

    message: dict[str, Any]


class TakeAgain(_Open):
    """How many messages to take out of quarantine at most."""

    limit: int = Field(default=10_000, ge=1, le=100_000)


class Preview(_Open):
    """The newest rows of a table, newest first."""

    columns: list[str]
    rows: list[dict[str, Any]]


class UserSpec(_Open):
    """Somebody whom the broker itself knows. Without a password one is made."""

    name: str = Field(examples=["meter-7"])
    password: str | None = None
    is_superuser: bool = Field(False, description="Whether access rules do not count.")
    clientid: str | None = Field(None, description="The only client identifier the user may use.")
    description: str = ""


class UserImport(_Open):
    """Users with hashes of their passwords; what is the same for all may stand beside the list."""

    users: list[dict[str, Any]]
    algorithm: Literal["sha256", "sha512", "pbkdf2_sha256", "pbkdf2_sha384", "pbkdf2_sha512"] = "sha256"
    iterations: int | None = None
    salt_position: Literal["prefix", "suffix"] = "prefix"


class AccessRuleSpec(_Open):
    """Who may publish and subscribe to what; the first rule that is about a request decides."""

    name: str
    permission: Literal["allow", "deny"]
    who: Literal["all"] | dict[str, Any] = Field("all", examples=[{"username": "ann"}])
    action: Literal["publish", "subscribe", "all"] = "all"
    qos: list[int] = [0, 1, 2]
    retain: bool | Literal["all"] = "all"
    topics: list[str] = Field(examples=[["meters/${username}/#"]])
    enable: bool = True


class AuthenticatorSpec(_Open):
    """Who decides over clients that connect; one of each mechanism."""

    mechanism: Literal["builtin", "cinfo", "jwt"]
    enable: bool = True
    precondition: str | None = None


class RuleSourceSpec(_Open):
    """Where access rules come from; one of each type."""

    type: Literal["built_in", "file"]
    enable: bool = True


class BanSpec(_Open):
    """Whom to refuse; ``until`` is RFC 3339 or ``infinity``."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)

    kind: Literal["clientid", "username", "peerhost", "clientid_re", "username_re", "peerhost_net"] = Field(
        alias="as", description="What is looked at; `_re` is a regular expression (RE2), `_net` a network."
    )
    who: str = Field(description="The identifier, name, address, expression or network.")
    reason: str = Field(default="", description="Why; shown to people.")
    by: str = Field(default="", description="Who made it; shown to people.")
    until: str = Field(default="infinity", description="When it ends, RFC 3339, or `infinity`.")


class AccessCheck(_Open):
    """A client, and what it would do. Without ``password`` it is taken as logged in, its names verified."""

    client: dict[str, Any] = Field(examples=[{"clientid": "c1", "username": "ann"}])
    action: Literal["publish", "subscribe"] | None = None
    topic: str | None = None
    qos: Literal[0, 1, 2] = 0
    retain: bool = False


class SignInRequest(BaseModel):
    """The administrator's token, typed into the status page."""

    token: str


class Page(BaseModel):
    """A page of a list that may be long. ``next`` goes into ``cursor`` for the page after it; ``total`` is null where
    it would have to be counted."""

    items: list[dict[str, Any]]
    next: str | None
    total: int | None
    total_is_estimate: bool


class KickClients(BaseModel):
    """The identifiers of the clients to disconnect."""

    client_ids: list[str]


class SubscriptionOptions(BaseModel):
    """A topic filter, or ``$share/GROUP/FILTER``, and the options of the subscription."""

    filter: str
    qos: Literal[0, 1, 2] = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: Literal[0, 1, 2] = 0


class SubscribeClient(BaseModel):
    """Which client to subscribe to what."""

    client_id: str
    subscriptions: list[SubscriptionOptions]


class UnsubscribeClient(BaseModel):
    """Which subscriptions of which client to end, by their filters."""

    client_id: str
    filters: list[str]


class PurgeSessions(BaseModel):
    """Which sessions to delete. Without ``connected`` those whose client is away; what is left out does not matter."""

    client_id: str | None = Field(default=None, description="An identifier, or a pattern with `*`, `?` and `[abc]`.")
    username: str | None = Field(default=None, description="A user name, or a pattern.")
    zone: str | None = Field(default=None, description="A zone, or a pattern.")
    older_than_s: int | None = Field(default=None, description="Away for at least so many seconds.")
    durable: bool | None = None
    connected: bool = Field(default=False, description="True for sessions of connected clients, who are told (0x98).")
    min_queued: int | None = None
    min_queue_bytes: int | None = None
    dry_run: bool = False


class Purged(BaseModel):
    """What was purged, or would be: counts, what waited for the sessions, and some of their identifiers."""

    sessions: int
    subscriptions: int
    inflight: int
    queued: int
    queued_bytes: int
    samples: list[str]
    dry_run: bool


class RetainedCount(BaseModel):
    """How many topics have a retained message, and bytes of topics, payloads and properties."""

    messages: int
    bytes: int


class ClearRetained(BaseModel):
    """Which retained messages to delete: those whose topics match."""

    filter: str
    only_expired: bool = False
    dry_run: bool = False


class Cleared(BaseModel):
    """What was cleared, or would be, and some of the topics."""

    messages: int
    payload_bytes: int
    samples: list[str]
    dry_run: bool


class Anything(_Open):
    """An object whose members the feature describes."""
