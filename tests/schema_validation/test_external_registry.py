"""Registries elsewhere: here the broker's own Confluent face over HTTP, which another node reads."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import pytest

from broker.config.ssrf import AddressGuard, SsrfSettings
from broker.core.errors import Invalid
from broker.core.objects import MemorySection
from broker.core.schema import SchemaError
from broker.core.waiting import settled
from schema_validation.confluent import ConfluentRegistry, ConfluentSpec
from schema_validation.feature import EXTERNAL, SchemaValidationFeature
from tests.support.features import make_services
from tests.support.plain_http import NO_TLS
from tests.support.waiting import until
from tests.ui.api_node import TOKEN, Node, Running

PLACE = {"type": "record", "name": "Place", "fields": [{"name": "lat", "type": "double"}]}
METER = {"type": "record", "name": "Meter", "fields": [{"name": "at", "type": "Place"}]}
AUTH = {"mechanism": "basic", "username": "sluice", "password": TOKEN}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    services = make_services()
    feature = SchemaValidationFeature(services)
    feature.start()
    node = Node()
    node.context.section = services.storage.section
    node.context.services = {"schemas": feature.schemas}
    running = Running(node)
    yield f"{running.url}/registry"
    running.stop()


@pytest.fixture(scope="module")
def number(url: str) -> int:
    """The id of a schema that refers to another."""
    with httpx.Client(base_url=url, auth=("any", TOKEN), verify=NO_TLS) as client:
        client.post(
            "/subjects/place/versions", json={"schema": json.dumps(PLACE)}
        ).raise_for_status()
        reference = {"name": "Place", "subject": "place", "version": 1}
        body = {"schema": json.dumps(METER), "references": [reference]}
        found: int = client.post("/subjects/meter/versions", json=body).json()["id"]
    return found


@pytest.fixture
def registry(url: str) -> Iterator[ConfluentRegistry]:
    made = ConfluentRegistry(
        ConfluentSpec.model_validate({"name": "kafka", "url": url, "auth": AUTH})
    )
    yield made
    made.close()


def test_a_schema_is_fetched_by_its_number_with_what_it_refers_to(
    registry: ConfluentRegistry, number: int
) -> None:
    serde = registry.serde(number)
    assert serde.decode(struct.pack("<d", 1.5)) == {"at": {"lat": 1.5}}
    assert registry.serde(number) is serde


def test_the_event_loop_never_waits_and_is_served_a_moment_later(
    registry: ConfluentRegistry, number: int
) -> None:
    async def asked() -> Any:
        with pytest.raises(SchemaError, match="is being fetched"):
            registry.serde(number)
        await until(lambda: registry.known)
        return registry.serde(number)

    assert asyncio.run(asked()).decode(struct.pack("<d", 1.5)) == {"at": {"lat": 1.5}}


def test_what_is_not_there_is_told_and_not_asked_for_at_once_again(
    registry: ConfluentRegistry,
) -> None:
    with pytest.raises(SchemaError, match="it answered 404: Schema 7 not found") as first:
        registry.serde(7)
    with pytest.raises(SchemaError) as again:
        registry.serde(7)
    assert str(first.value) == str(again.value) == registry.last_error


@pytest.mark.parametrize("lists", [{"deny_hosts": ["localhost"], "deny_cidrs": []}, {}])
def test_an_address_that_must_not_be_called_is_not(lists: dict[str, Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        spec = {"name": "inside", "url": f"http://localhost:{server.getsockname()[1]}"}
        guard = AddressGuard(SsrfSettings(enable=True, **lists))
        registry = ConfluentRegistry(ConfluentSpec.model_validate(spec), guard)
        with pytest.raises(
            SchemaError, match=r"'inside': localhost must not be called: rule_engine\.ssrf\.deny_"
        ):
            registry.serde(1)
        registry.close()
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_nobody_listening_is_one_sentence() -> None:
    registry = ConfluentRegistry(
        ConfluentSpec.model_validate({"name": "gone", "url": "http://127.0.0.1:9"})
    )
    with pytest.raises(SchemaError, match="schema registry 'gone': it cannot be reached"):
        registry.serde(1)
    registry.close()


@pytest.mark.anyio
async def test_closing_a_registry_is_an_error_for_what_waits_for_it() -> None:
    connected: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: connected.append(writer), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    spec = {"name": "silent", "url": url, "request_timeout_s": 0.5}
    registry = ConfluentRegistry(ConfluentSpec.model_validate(spec))
    waiting = [
        asyncio.create_task(settled(partial(registry.serde, number))) for number in (1, 2, 3)
    ]
    await until(lambda: len(connected) == 2)  # the third waits for its turn
    registry.close()
    ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(error) for error in ended] == [SchemaError] * 3
    assert "was closed" in str(ended[2])
    for writer in connected:
        writer.close()
    server.close()


def test_a_text_is_registered_under_a_subject(registry: ConfluentRegistry) -> None:
    first = registry.register("new-value", json.dumps(PLACE))
    assert registry.register("new-value", json.dumps(PLACE)) == first
    with pytest.raises(SchemaError, match="409"):
        registry.register(
            "new-value", json.dumps({**PLACE, "fields": [{"name": "lon", "type": "double"}]})
        )


def test_secrets_are_shown_as_stars_and_stars_keep_them() -> None:
    sections = {EXTERNAL: MemorySection()}
    feature = SchemaValidationFeature(make_services(sections))
    feature.start()
    service = feature.external
    shown = service.create(
        {"name": "kafka", "type": "confluent", "url": "http://h:8081/", "auth": AUTH}
    )
    assert (shown["url"], shown["auth"]["password"]) == ("http://h:8081", "******")
    service.replace("kafka", {**shown, "url": "http://h:8081/", "description": "as before"})
    kept = sections[EXTERNAL].load()[0]
    assert (kept["url"], kept["auth"]["password"]) == ("http://h:8081", TOKEN)
    with pytest.raises(Invalid, match="send the secret again"):
        service.replace("kafka", {**shown, "url": "http://other:8081"})
    with pytest.raises(Invalid, match="stars"):
        service.create({**shown, "name": "second"})
    reborn = SchemaValidationFeature(make_services(sections))
    reborn.start()
    assert "kafka" in reborn.schemas.registry.externals
    asyncio.run(reborn.close())
    asyncio.run(feature.close())


@pytest.mark.parametrize("url", ["ftp://h", "http://", "http://u:p@h", "http://h/#x", "h:8081"])
def test_addresses_that_cannot_be_meant_are_refused(url: str) -> None:
    feature = SchemaValidationFeature(make_services())
    with pytest.raises(Invalid):
        feature.external.create({"name": "kafka", "url": url})


def test_the_brokers_own_registry_is_called_local() -> None:
    feature = SchemaValidationFeature(make_services())
    feature.start()
    made = feature.schemas.create({"name": "place", "type": "avro", "source": json.dumps(PLACE)})
    local = feature.schemas.registry.external("local")
    assert local.serde(made["id"]).decode(struct.pack("<d", 1.5)) == {"lat": 1.5}
    assert local.register("place", json.dumps(PLACE)) == made["id"]
    asyncio.run(feature.close())
