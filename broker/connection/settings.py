"""Settings of the MQTT server, section ``mqtt``."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from broker.auth.client_attributes import ClientAttributeSettings
from broker.auth.expressions import ExpressionText
from broker.codec.properties import MOST_USER_PROPERTIES
from broker.config.model import Settings
from broker.config.units import Duration, Size

CertificateName = Literal["disabled", "cn", "dn"]


# Settings that are read once, when the broker starts; the others can change while it runs.
FIXED_SETTINGS: Final = frozenset(
    (
        "retry_interval", "max_waiting_messages", "max_waiting_bytes", "max_cached_plans",
        "max_cached_plan_bytes", "client_attrs_init", "clientid_override",
    )
)  # fmt: skip


class MqttSettings(Settings):
    """Limits per client and per session."""

    max_packet_size_before_connect: Size = Field(default=96 * 1024, ge=128)
    """Maximum size of a CONNECT, its will included, in bytes."""
    max_packet_size: Size = Field(default=1024 * 1024, ge=128, le=268_435_460)
    """Maximum size of a packet from a connected client, in bytes."""
    max_connections: int = Field(default=0, ge=0)
    """Maximum concurrent connections, of all listeners together; 0 is as many as the system gives file descriptors
    for."""
    max_publish_rate: float = Field(default=0, ge=0)
    """Maximum publishes per second of one client; 0 is no limit."""
    max_publish_bytes_rate: Size = Field(default=0, ge=0)
    """Maximum bytes per second that one client publishes; 0 is no limit."""
    publish_rate_burst: Duration = Field(default=1, gt=0)
    """Burst that these rates allow, in seconds of the rate; also for the rates of listeners."""
    publish_rate_exceeded: Literal["pause", "disconnect"] = "pause"
    """Action when a client exceeds these rates: `pause` stops reading from it until it is within them again,
    `disconnect` closes its connection (0x96)."""
    max_inflight: int = Field(default=32, ge=1, le=65_535)
    """Maximum QoS 1 and 2 messages in flight to a client: sent and not yet acknowledged."""
    receive_maximum: int = Field(default=65_535, ge=1, le=65_535)
    """QoS 1 and 2 messages an MQTT 5 client may send before they are acknowledged. Some client libraries send all they
    have queued after a reconnect, whatever the server says; a small value locks them out. Memory is bounded by the
    store's backlog instead."""
    max_queued_messages: int = Field(default=1000, ge=1)
    """Maximum QoS 1 and 2 messages waiting in memory for one session; then the oldest is dropped or, for a session that
    outlives its connection, the rest waits on disk."""
    max_queued_bytes: Size = Field(default=16 * 1024 * 1024, ge=1024)
    """Maximum bytes of messages that wait in memory for one session."""
    queue_full: Literal["drop_oldest", "drop_newest", "disconnect"] = "drop_oldest"
    """Action when that queue is full, for sessions that end with their connection: drop the oldest message, drop the
    new one, or drop the new one and close the connection (0x97)."""
    slow_subscriber: Literal["slow_publishers", "drop"] = "slow_publishers"
    """Action when the queue of a connected client is nearly full: its publishers wait for their acknowledgements until
    it has room, so that it gets every message that was acknowledged (`slow_publishers`), or messages are dropped once
    it is full (`drop`)."""
    subscriber_ack_timeout: Duration = Field(default=30, gt=0)
    """Seconds in which a client with a full queue must acknowledge something for its publishers to wait; then messages
    are dropped until it acknowledges again."""
    max_withheld_bytes: Size = Field(default=128 * 1024 * 1024, ge=64 * 1024)
    """Memory of all messages whose acknowledgements wait for slow clients, in bytes: topic and payload, and 512 for
    each. Above it, publishers of such messages are not read from until theirs have left. A publisher with as much of
    its own, or any when there is twice as much, is disconnected (0x97)."""
    max_stored_messages: int = Field(default=1_000_000, ge=1)
    """Maximum QoS 1 and 2 messages waiting on disk for one session that outlives its connection; then the oldest are
    dropped."""
    max_stored_bytes: Size = Field(default=1024 * 1024 * 1024, ge=1024)
    """Maximum bytes of messages that wait on disk for one session."""
    max_session_log_bytes: Size = Field(default=8 * 1024 * 1024 * 1024, ge=64 * 1024)
    """Maximum bytes of all messages that wait on disk for sessions, each of which is there once; then the sessions
    furthest behind lose their oldest."""
    queue_qos0: bool = False
    """Queue QoS 0 messages for disconnected clients whose session outlives the connection, in memory and within
    `max_unsent_messages` and `max_unsent_bytes`."""
    queue_high_watermark: Size = Field(default=0, ge=0)
    """Bytes waiting for one session above which it is logged and the alarm `session_queue_high` is active; 0 is off."""
    queue_watch_interval: Duration = Field(default=30, gt=0)
    """Seconds between two counts of the messages that wait for all sessions."""
    slow_subscriber_wait: Duration = Field(default=0.1, ge=0)
    """Seconds that publishers are held back at most, so that a subscriber can catch up, before it loses messages; 0
    switches this off."""
    max_unsent_messages: int = Field(default=1000, ge=1)
    """Maximum QoS 0 messages buffered for a client that reads too slowly, or that older QoS 1 and 2 messages wait for;
    above it the oldest are dropped."""
    max_unsent_bytes: Size = Field(default=1024 * 1024, ge=1024)
    """Bytes a slow client leaves unread before it loses QoS 0 messages."""
    max_session_expiry: Duration = Field(default=7 * 86_400, ge=0)
    """Maximum seconds that a session lasts without a connection: an MQTT 5 client that asks for more gets this value
    in CONNACK; sessions of 3.1 and 3.1.1 clients that do not start clean last so long."""
    retry_interval: Duration = Field(default=0, ge=0)
    """Seconds after which 3.1 and 3.1.1 clients are sent again, while connected, what they have not acknowledged; 0 is
    only when they reconnect. MQTT 5 clients never get a message twice on one connection."""
    keep_alive_factor: float = Field(default=1.5, ge=1, le=10)
    """A silent client is cut off after keep alive × this."""
    max_keep_alive: int = Field(default=0, ge=0, le=65_535)
    """Maximum keep alive in seconds; 0 is no limit."""
    keep_alive_above_max: Literal["refuse", "shorten"] = "refuse"
    """Treatment of a client below MQTT 5 that asks for a longer keep alive: refuse it (return code 2), or disconnect it
    when it is silent for the maximum, which MQTT 3 cannot report to it. MQTT 5 clients receive the maximum in CONNACK.
    A client below MQTT 5 with keep alive 0 (off) is always accepted, with the maximum."""
    connect_timeout: Duration = Field(default=10, gt=0)
    """Seconds from the TCP connection to the CONNECT."""
    topic_alias_maximum: int = Field(default=64, ge=0, le=65_535)
    """Topic aliases an MQTT 5 client may use; 0 forbids them."""
    topic_alias_maximum_out: int = Field(default=64, ge=0, le=65_535)
    """Maximum topic aliases used towards an MQTT 5 client that accepts as many; 0 sends every topic in full. The first
    topics get one; a busy one gets that of one no longer used."""
    maximum_qos: int = Field(default=2, ge=0, le=2)
    """Highest QoS that clients may publish with, and that subscriptions are granted. A client that publishes above it
    is disconnected (0x9B)."""
    retain_available: bool = True
    """Support retained messages. If `false`, clients that publish one are disconnected (0x9A), nothing is retained, and
    messages retained earlier are kept and not sent."""
    wildcard_subscription_available: bool = True
    """Allow filters with `+` and `#`. If `false`, a client that subscribes to one is disconnected (0xA2); below MQTT 5
    the subscription fails. The same holds for the two settings that follow."""
    subscription_identifier_available: bool = True
    """Allow subscription identifiers of MQTT 5 clients (else 0xA1)."""
    shared_subscription_available: bool = True
    """Allow shared subscriptions, `$share/NAME/FILTER` (else 0x9E)."""
    check_payload_format: bool = False
    """Check that payloads whose Payload Format Indicator says that they are text are UTF-8; others are refused
    (0x99)."""
    response_information: str = ""
    """Response Information for MQTT 5 clients that ask for it, such as `responses/${clientid}`, where the client
    identifier is put in; nothing when empty."""
    max_client_id_bytes: int = Field(default=1024, ge=23, le=65_535)
    """Maximum length of a client identifier, in bytes of UTF-8, also of one from a certificate or from
    `clientid_override`."""
    session_takeover: Literal["same_user", "any_user"] = "same_user"
    """Users that may resume the session of a client identifier, where clients are authenticated: only the user that it
    belongs to (`same_user`; others are refused, 0x87) or every user."""
    max_sessions: int = Field(default=250_000, ge=1)
    """Maximum sessions, with and without a connection. A client without a session is refused above it (0x97)."""
    max_topic_levels: int = Field(default=128, ge=1, le=65_535)
    """Maximum levels of a topic name or filter."""
    max_topic_bytes: int = Field(default=65_535, ge=1, le=65_535)
    """Maximum length of a topic name or filter, in bytes of UTF-8."""
    max_subscriptions: int = Field(default=10_000, ge=1)
    """Maximum subscriptions of one session."""
    max_shared_subscriptions: int = Field(default=1000, ge=1)
    """Maximum shared subscriptions of one session; SUBACK 0x97 above it."""
    max_subscription_bytes: Size = Field(default=16 * 1024 * 1024, ge=1024)
    """Memory of the subscriptions of one session, in bytes: 300 each, with 2 for each character of the filter and 100
    for each level. SUBACK 0x97 above it."""
    max_subscription_bytes_total: Size = Field(default=1024 * 1024 * 1024, ge=1024)
    """The same for all sessions together, in bytes."""
    max_inbound_bytes_total: Size = Field(default=256 * 1024 * 1024, ge=0)
    """Memory of the records by which resends of clients that are not connected are recognised, in bytes: 600 for each
    client, 120 for each QoS 1 or 2 message, 70 for each open QoS 2 packet identifier. Above it, the records of the
    client that left first are deleted."""
    max_inbound_bytes_connected: Size = Field(default=256 * 1024 * 1024, ge=0)
    """Memory of the same records of connected clients together, in bytes: 120 for each QoS 1 or 2 message, 70 for each
    open QoS 2 packet identifier. Above it, records of acknowledged messages are deleted early, and a client that opens
    a QoS 2 packet identifier while 64 of its own are open is disconnected (0x97)."""
    max_will_payload: Size = Field(default=64 * 1024, ge=0)
    """Maximum payload of a will, in bytes."""
    max_will_bytes_total: Size = Field(default=256 * 1024 * 1024, ge=0)
    """Memory of all wills, in bytes of topics, payloads and properties. A CONNECT with a will is refused above it
    (0x97)."""
    max_topic_alias_bytes: Size = Field(default=256 * 1024, ge=0)
    """Topics behind the aliases that one client sets, in bytes. The client is disconnected above it (0x97)."""
    max_topic_alias_bytes_total: Size = Field(default=256 * 1024 * 1024, ge=0)
    """The same for all clients together, in bytes."""
    max_user_property_bytes: Size = Field(default=16 * 1024, ge=0)
    """Names and values of the user properties of one packet from a client, those of its will included, in bytes."""
    max_user_property_bytes_total: Size = Field(default=256 * 1024 * 1024, ge=0)
    """Memory of the user properties that connected clients sent with their CONNECT, in bytes. A CONNECT with user
    properties is refused above it (0x97)."""
    max_user_properties: int = Field(default=100, ge=0, le=MOST_USER_PROPERTIES)
    """Maximum user properties of one packet from a client, those of its will included."""
    peer_cert_as_username: CertificateName = "disabled"
    """Use the common name (`cn`) or the subject (`dn`) of the client's certificate as the user name, if it presents
    one."""
    peer_cert_as_clientid: CertificateName = "disabled"
    """The same for the client identifier."""
    client_attrs_init: list[ClientAttributeSettings] = Field(default_factory=list)
    """Attributes of clients, worked out at CONNECT before they are authenticated."""
    clientid_override: ExpressionText = "disabled"
    """An expression that gives clients another identifier, after the attributes; `disabled` is none."""
    max_waiting_messages: int = Field(default=10_000, ge=1)
    """Messages made inside the broker (by rules, wills, the API) that may wait for another process to check or code
    them; more are refused. Clients are not read from while theirs wait."""
    max_waiting_bytes: Size = Field(default=64 * 1024 * 1024, ge=1024)
    """Bytes of the payloads of such messages."""
    max_cached_plans: int = Field(default=65_536, ge=16)
    """Topics whose plans are kept in memory."""
    max_cached_plan_bytes: Size = Field(default=64 * 1024 * 1024, ge=64 * 1024)
    """Memory of these plans, in bytes. Topics of more than 1,024 bytes are planned for each message."""
