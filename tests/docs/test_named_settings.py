"""Pages on a subject name its settings, and no others."""

from __future__ import annotations

import re
from typing import Any

import pytest

from bridges.http.settings import HttpActionSettings, HttpSettings
from bridges.http_server.settings import HttpServerSettings, HttpServerSourceSettings
from bridges.kafka.settings import (
    KafkaActionSettings,
    KafkaSettings,
    KafkaSourceSettings,
    PublishSettings,
)
from bridges.mqtt.settings import MqttActionSettings, MqttSettings, MqttSourceSettings
from bridges.resource.settings.options import ActionOptions
from broker.auth.login_limits import LoginLimitSettings
from broker.connection.settings import MqttSettings as BrokerMqttSettings
from broker.core import jsontext
from broker.core.clock import SystemClock
from broker.core.values import Values
from broker.net.settings import ListenerSettings
from broker.observe.metric_rows import RESOLUTIONS, SERIES_BYTES
from broker.observe.metrics import Metrics
from broker.observe.metrics_history import MAX_POINTS, NAMES, MetricsHistory
from broker.observe.settings import MetricsHistorySettings
from broker.routing.delayed import DelayedSettings
from broker.routing.settings import RetainedSettings
from broker.storage.settings import StoreSettings
from schema_validation.serdes import avro, avro_schema, base, json_schema, proto_bundle, protobuf
from tests.docs.session import ROOT

KAFKA = (KafkaSettings, KafkaActionSettings, KafkaSourceSettings, PublishSettings)
LOOKED_UP = {
    "bridges": "query_mode health_check_interval_jitter health_check_timeout",
    "call-http-services": "connect_timeout max_inactive max_answer_size ssl",
    "receive-over-http": "retain schema_name",
    "kafka": "metadata_max_age new_topic_partitions new_topic_replication_factor new_topic_config key_encoding "
    "max_wait_time max_batch_bytes max_poll_records commit_interval binary_headers",
}
"""Settings that only the reference describes."""


def _page(name: str) -> str:
    return (ROOT / "docs" / "how-to" / f"{name}.md").read_text()


@pytest.mark.parametrize(
    ("page", "models"),
    [
        ("bridges", (ActionOptions,)),
        ("call-http-services", (HttpSettings, HttpActionSettings)),
        ("receive-over-http", (HttpServerSettings, HttpServerSourceSettings)),
        ("kafka", KAFKA),
    ],
)
def test_page_names_every_setting(page: str, models: tuple[Any, ...]) -> None:
    named = set(re.findall(r"[a-z_]+", _page(page)))
    every = {name for model in models for name in model.model_fields}
    assert every - named <= set(LOOKED_UP[page].split())


def test_settings_that_the_table_for_mosquitto_names_exist() -> None:
    table = (
        _page("run-beside-another-broker")
        .partition("## Mapping from mosquitto.conf")[2]
        .partition("\n## ")[0]
    )
    named = {
        name
        for line in table.splitlines()
        for name in re.findall(r"`([a-z_]+) ?[=`]", line.split("|")[-2] if "|" in line else "")
    }
    known = {
        *MqttSettings.model_fields,
        *MqttActionSettings.model_fields,
        *MqttSourceSettings.model_fields,
    }
    assert named
    assert named - known - {"publish"} == set()


def test_limits_that_the_tables_name_exist() -> None:
    pattern = r"`(?:mqtt\.)?(max_\w+|queue_\w+|publish_rate_\w+|slow_subscriber\w*)"
    named = set(re.findall(pattern, _page("limits-and-overload")))
    assert len(named) > 20
    sections = (
        BrokerMqttSettings,
        ListenerSettings,
        LoginLimitSettings,
        DelayedSettings,
        RetainedSettings,
        StoreSettings,
    )
    assert named <= {name for section in sections for name in section.model_fields}


def test_limits_of_schemas_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "schemas.md").read_text()
    table = page[page.index("## Limits") :]
    assert base.MAX_SOURCE_BYTES == 1 << 20
    assert proto_bundle.MAX_BUNDLE_BYTES == 10 << 20
    assert avro.MAX_MEMORY == 64 << 20
    for limit in (
        jsontext.MAX_DEPTH, json_schema.MAX_STEPS, avro.MAX_SMALL_VALUES, avro_schema.MAX_UNFOLDED,
        avro_schema.MAX_EMPTY, protobuf.MAX_VALUES, proto_bundle.MAX_FILES,
    ):  # fmt: skip
        assert f"{limit:,}" in table
    for name in (
        *json_schema.FORMATS,
        *(draft.removeprefix("draft ") for draft in json_schema.DRAFTS.values()),
    ):
        assert name in page


def test_page_on_the_history_of_metrics_names_each_of_them_and_its_bounds() -> None:
    page, reference = (
        _page("metrics-history"),
        (ROOT / "docs" / "reference" / "metrics.md").read_text(),
    )
    table = page.partition("## Metrics\n")[2].partition("\nThe names")[0]
    assert set(re.findall(r"`(\w+)`", table)) == {*NAMES, "qos", "reason", "stage"}
    known = {
        name.removesuffix("_total")
        for name in re.findall(r"^\| `sluice_(\w+)`", reference, re.MULTILINE)
    }
    assert set(NAMES) <= known
    rows = sum(resolution.rows for resolution in RESOLUTIONS)
    room = MetricsHistory(Metrics(), Values(), SystemClock(), MetricsHistorySettings()).most_series
    for bound in (
        f"{rows:,} rows",
        f"{round(SERIES_BYTES / 1000)} KB",
        f"{room}\nseries",
        f"{MAX_POINTS:,} in total",
    ):
        assert bound in page
