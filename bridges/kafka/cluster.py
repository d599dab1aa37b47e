"""One Kafka cluster: how clients of aiokafka reach it, what topics it has, the steps of a test."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from logging import CRITICAL, getLogger
from typing import Any, Final, NamedTuple

from aiokafka.abc import AbstractTokenProvider
from aiokafka.admin import NewTopic
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    NodeNotReadyError,
    StaleMetadata,
    for_code,
)
from aiokafka.protocol.produce import ProduceRequest

from bridges.kafka.clients import Admin, Connection, GuardedId, first_answer
from bridges.kafka.errors import meant, said
from bridges.kafka.settings import KafkaSettings, OauthAuthentication, PasswordAuthentication
from bridges.resource.contract import Connector, Context, ProbeStep
from bridges.resource.errors import (
    BadSettings,
    BridgeError,
    ReconnectFirst,
    TargetMissing,
    TargetUnusable,
    understood,
)
from bridges.resource.probe import connect_step, resolve, resolve_step, tls_step
from bridges.resource.settings.oauth import Tokens
from bridges.resource.settings.tls import client_context
from broker.core.kinds import counted

getLogger("aiokafka").setLevel(CRITICAL)
"""The connector's state shows what aiokafka logs, in words and once."""

_MECHANISMS: Final = {
    "plain": "PLAIN",
    "scram_sha_256": "SCRAM-SHA-256",
    "scram_sha_512": "SCRAM-SHA-512",
}
_CLOSE_S: Final = 3.0
# Time limit of a test's step for one of several hosts.
_STEP_S: Final = 5.0
_PRODUCE_MS: Final = 5_000
_UNKNOWN_TOPIC: Final = 3
_TOPIC_ALREADY_EXISTS: Final = 36
# Replicas of a created topic by default, if there are as many brokers.
_COPIES: Final = 3


class TopicLayout(NamedTuple):
    """Layout of a created topic. ``replicas`` 0 means one on each broker, at most three."""

    partitions: int = 1
    replicas: int = 0
    config: Mapping[str, str] = {}


class KafkaCluster(Connector):
    """A cluster. Its own connection asks for metadata; each action and source has connections of its own."""

    def __init__(self, settings: KafkaSettings, context: Context) -> None:
        self.settings = settings
        self._context = context
        self._ssl: ssl.SSLContext | None = None
        self._admin: Admin | None = None
        self._host = ""
        """The one that answered when the connection was made."""

    async def open(self) -> None:
        """Find a broker and log in."""
        await self._resolve()
        self._ssl = await asyncio.to_thread(client_context, self.settings.ssl)
        self._host = await self._reachable()
        admin = Admin(**self.reach("admin"))
        try:
            await admin.start()
            await self._check_brokers(admin)
        except BaseException as error:
            await _closed(admin)
            if isinstance(error, Exception):
                raise meant(error, self._host) from error
            raise
        if not admin._client.cluster.brokers():  # aiokafka would wait for ever for the first one
            await _closed(admin)
            raise ReconnectFirst(f"{self.settings.bootstrap_hosts}: the cluster has no broker yet")
        self._admin = admin

    async def close(self) -> None:
        """Give up the connection."""
        admin = self._admin
        self._admin = None
        if admin is not None:
            await _closed(admin)

    async def check(self) -> None:
        """Ask the cluster for its description; raises an error if it does not answer."""
        await self._ask(lambda admin: admin.describe_cluster())

    def probe(self) -> Sequence[ProbeStep]:
        """Resolve, connect and TLS of the hosts, any of which will do; authenticate, metadata."""
        guard = self._context.guard
        hosts = self.settings.addresses
        options = self.settings.ssl

        def of_any(step: Callable[[str, int], ProbeStep]) -> ProbeStep:
            steps = [step(host, port) for host, port in hosts]
            return ProbeStep(steps[0].name, partial(_any_of, steps))

        async def authenticate() -> str:
            await self.open()
            authentication = self.settings.authentication
            return (
                "no authentication" if authentication is None else f"by {authentication.mechanism}"
            )

        async def metadata() -> str:
            description = await self._ask(lambda admin: admin.describe_cluster())
            return f"{counted(len(description['brokers']), 'broker')}, controller {description['controller_id']}"

        return [
            of_any(lambda host, port: resolve_step(host, port, guard)),
            of_any(lambda host, port: connect_step(host, port, guard)),
            *(
                [of_any(lambda host, port: tls_step(host, port, guard, options))]
                if options.enable
                else []
            ),
            ProbeStep("authenticate", authenticate),
            ProbeStep("metadata", metadata),
        ]

    def reach(self, purpose: str) -> dict[str, Any]:
        """Arguments of every client of aiokafka: where the cluster is and how to log in."""
        settings = self.settings
        name = self._context.name.partition(":")[2]
        authentication = settings.authentication
        arguments: dict[str, Any] = {
            "bootstrap_servers": self._host,
            "client_id": GuardedId(
                f"{settings.client_id or f'sluice-{name}'}-{purpose}", self._context.guard
            ),
            "metadata_max_age_ms": int(settings.metadata_max_age * 1000),
            "request_timeout_ms": int(self._context.request_timeout_s * 1000),
            "security_protocol": ("SASL_" if authentication else "")
            + ("SSL" if settings.ssl.enable else "PLAINTEXT"),
            "ssl_context": self._ssl,
        }
        if isinstance(authentication, PasswordAuthentication):
            arguments["sasl_mechanism"] = _MECHANISMS[authentication.mechanism]
            arguments["sasl_plain_username"] = authentication.username
            arguments["sasl_plain_password"] = authentication.password.reveal()
        elif isinstance(authentication, OauthAuthentication):
            arguments["sasl_mechanism"] = "OAUTHBEARER"
            arguments["sasl_oauth_token_provider"] = _Provider(authentication, self._context)
        return arguments

    async def partitions(self, topic: str, new: TopicLayout | None = None) -> Sequence[int]:
        """The numbers of a topic's partitions; ``new`` says how it is made when it is not there.

        Raises:
            TargetMissing: there is no such topic.
            TargetUnusable: the user may not see it; it cannot be made.
        """
        [description] = await self._ask(lambda admin: admin.describe_topics([topic]))
        code = description["error_code"]
        if code == _UNKNOWN_TOPIC and new is not None:
            await self._create(topic, new)
            [description] = await self._ask(lambda admin: admin.describe_topics([topic]))
            code = description["error_code"]
        if code == _UNKNOWN_TOPIC:
            raise TargetMissing(
                f"there is no topic {topic!r} in Kafka; create it, or set allow_auto_topic_creation"
            )
        if code and not description["partitions"]:
            raise meant(for_code(code)(), f"the topic {topic!r}")
        return [partition["partition"] for partition in description["partitions"]]

    async def leader(self, topic: str, partition: int) -> int | None:
        """The number of the broker that leads a partition, as the cluster says; None where it has no leader."""
        [description] = await self._ask(lambda admin: admin.describe_topics([topic]))
        leaders = {
            partition_info["partition"]: partition_info["leader"]
            for partition_info in description["partitions"]
        }
        number: int = leaders.get(partition, -1)
        return number if number >= 0 else None

    async def check_write(self, topic: str, partition: int) -> None:
        """Raise an error unless the user may write to a topic: Kafka checks that before it refuses an empty batch.

        Raises:
            TargetUnusable: the user may not.
        """
        nothing = ProduceRequest(None, 1, _PRODUCE_MS, [(topic, [(partition, b"")])])
        leader = await self.leader(topic, partition)
        answer = await self._ask(lambda admin: admin._client.send(leader, nothing))
        [(_, [(_, code, *_)])] = answer.topics
        refused = meant(for_code(code)(), f"the topic {topic!r}")
        if isinstance(refused, TargetUnusable):
            raise refused

    async def _create(self, topic: str, new: TopicLayout) -> None:
        cluster = await self._ask(lambda admin: admin.describe_cluster())
        copies = new.replicas or min(len(cluster["brokers"]), _COPIES)
        new_topic = NewTopic(topic, new.partitions, copies, topic_configs=dict(new.config))
        answer = await self._ask(lambda admin: admin.create_topics([new_topic]))
        for _, code, *reasons in answer.topic_errors:
            if code not in (0, _TOPIC_ALREADY_EXISTS):
                raise _not_made(topic, for_code(code)(), *reasons)

    async def _ask(self, work: Any) -> Any:
        if self._admin is None:
            raise ReconnectFirst("not connected")
        try:
            return await work(self._admin)
        except (NodeNotReadyError, KafkaConnectionError, StaleMetadata) as error:
            await self._reachable()  # aiokafka keeps the cause to itself, the hosts say it
            raise meant(error, self.settings.bootstrap_hosts) from error
        except Exception as error:
            raise meant(error, self.settings.bootstrap_hosts) from error

    async def _resolve(self) -> None:
        """Check that any host may be called; the cluster names the addresses of its brokers."""
        last: BridgeError = ReconnectFirst("no host")
        for host, port in self.settings.addresses:
            try:
                await resolve(host, port, self._context.guard)
            except BadSettings:
                raise
            except BridgeError as error:
                last = error
            else:
                return
        raise last

    async def _check_brokers(self, admin: Admin) -> None:
        """Raise ``BadSettings`` where the settings forbid to call a broker that the cluster names."""
        for broker in admin._client.cluster.brokers():
            try:
                await resolve(broker.host, broker.port, self._context.guard)
            except BadSettings as error:
                raise BadSettings(
                    f"the cluster names the broker {broker.host}:{broker.port}: {error}"
                ) from None
            except ReconnectFirst:
                # a name that is not known now is looked up again when it is called
                continue

    async def _reachable(self) -> str:
        """The first host that can be connected to: aiokafka would wait for one that does not answer before it asks the
        next. Raises the cause if no host can be reached."""
        return await first_answer(
            partial(self.reached, host, port) for host, port in self.settings.addresses
        )

    async def reached(self, host: str, port: int) -> str:
        """``host:port`` of a broker that can be connected to; raises why it cannot."""
        names = ("client_id", "request_timeout_ms", "security_protocol", "ssl_context")
        arguments = {
            key: value
            for key, value in self.reach("test").items()
            if key in names or key.startswith("sasl_")
        }
        where = f"{host}:{port}"
        connection = Connection(host, port, **arguments)
        try:
            await connection.connect()
        except Exception as error:
            cause = meant(error, where)
            ssl_options = self.settings.ssl
            is_unsaid = isinstance(error, KafkaError) and not isinstance(cause, BadSettings)
            if ssl_options.enable and ssl_options.certfile is None and is_unsaid:
                raise ReconnectFirst(
                    f"{cause}; it may require a client certificate: set ssl.certfile"
                ) from error
            raise cause from error
        finally:  # also where this is cancelled: the socket may be open by then
            connection.close()
        return where


class _Provider(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no types
    """Gives aiokafka the tokens of OAUTHBEARER."""

    def __init__(self, settings: OauthAuthentication, context: Context) -> None:
        self._tokens = Tokens(settings, context.guard)
        self._extensions = settings.extensions

    async def token(self) -> str:
        """A token that is good for a while."""
        return await self._tokens.token()

    def extensions(self) -> dict[str, str]:
        """SASL extensions."""
        return self._extensions


def _not_made(topic: str, error: KafkaError, why: str | None = None) -> BridgeError:
    """The error for a topic that could not be created, in Kafka's words if it has some. It is about that topic only."""
    where = f"the topic {topic!r} cannot be created"
    if error.retriable:
        return meant(error, where)
    return TargetUnusable(f"{where}: {why or said(error)}")


async def _any_of(steps: Sequence[ProbeStep]) -> str:
    """The messages of steps, one of which is enough; raises the error of the first where all fail."""

    async def run(step: ProbeStep) -> str:
        async with asyncio.timeout(_STEP_S):
            return await step.run()

    results = await asyncio.gather(*(run(step) for step in steps), return_exceptions=True)
    errors = [result for result in results if isinstance(result, BaseException)]
    if len(errors) == len(results):
        raise understood(errors[0])
    return "; ".join(
        result if isinstance(result, str) else str(understood(result)) for result in results
    )


async def _closed(client: Any) -> None:
    try:
        async with asyncio.timeout(_CLOSE_S):
            await client.close()
    except Exception:  # noqa: BLE001 - the cluster may be gone
        return
