"""``sluice import emqx --dry-run``: what becomes of each item of an EMQX configuration, and why."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from broker.cli import exit_codes
from broker.cli.main import main

EXPORTED = """
actions {
  kafka_producer {
    orders {
      connector = plant
      enable = true
      parameters {
        buffer { mode = memory, per_partition_limit = "2GB", segment_bytes = "100MB" }
        compression = no_compression
        kafka_ext_headers = []
        max_batch_bytes = "896KB"
        max_inflight = 10
        message { key = "${.clientid}", timestamp = "${.timestamp}", value = "${.}" }
        partition_strategy = random
        query_mode = async
        required_acks = leader_only
        topic = orders
      }
      resource_opts { health_check_interval = "15s", request_ttl = "45s", buffer_mode = memory_only }
    }
  }
  disk_log { lines { connector = log, parameters { template = "${.}", write_mode = async } } }
  pgsql { rows { connector = db, parameters { sql = "insert into t values (${a})" } } }
  redis { cache { connector = cache, parameters { command_template = ["SET", "a", "b"] } } }
}
connectors {
  kafka_producer {
    plant {
      authentication { mechanism = plain, username = alice, password = "wonder:land" }
      bootstrap_hosts = "127.0.0.1:9092"
      min_metadata_refresh_interval = "3s"
      resource_opts { health_check_interval = "15s", start_timeout = "5s" }
      socket_opts { nodelay = true, recbuf = "1MB" }
      ssl { ciphers = [], depth = 10, enable = false, verify = verify_peer }
    }
  }
  kafka_consumer { plant { authentication = none, bootstrap_hosts = "127.0.0.1:9092" } }
  disk_log { log { filepath = "rows.log", max_file_number = 3, max_file_size = "10MB" } }
  pgsql { db { server = "127.0.0.1:5432", database = d, username = u, password = "file://PASSWORD_FILE" } }
  redis { cache { server = "127.0.0.1:6379" } }
  http = nonsense
}
sources {
  kafka_consumer {
    incoming {
      connector = plant
      parameters { topic = in, key_encoding_mode = none, value_encoding_mode = none, offset_reset_policy = latest }
    }
  }
}
rule_engine {
  ignore_sys_message = true
  rules {
    rule_x1 {
      id = rule_x1
      metadata { created_at = 1700000000000 }
      name = "hot meters"
      sql = "SELECT payload.temp AS temp, clientid FROM \\"meters/#\\" WHERE payload.temp > 30"
      actions = ["kafka_producer:orders", "redis:cache",
                 { function = republish, args { topic = "hot/${clientid}", payload = "${.}", qos = 1 } },
                 { function = "mine:act", args {} }]
    }
    reads { sql = "SELECT value FROM \\"$bridges/kafka_consumer:incoming\\"", actions = [] }
    broken { sql = "SELECT FROM", actions = [] }
  }
}
schema_registry { schemas { room { type = json, source = "{\\"type\\": \\"object\\"}" } } }
schema_validation { validations = [{ name = v, topics = ["meters/#"], strategy = all_pass, failure_action = drop,
  log_failure { level = warning }, checks = [{ type = json, schema = room }] }] }
rewrite = [{ action = all, source_topic = "a/#", re = "^a/(.+)$", dest_topic = "b/$1" }]
auto_subscribe { topics = [{ topic = "c/${clientid}", qos = 1 }] }
mqtt { max_clientid_len = 512, max_qos_allowed = 1, max_topic_levels = 0, upgrade_qos = false, max_inflight = 99999999 }
node { name = "emqx@127.0.0.1", cookie = secret, data_dir = "/opt/emqx/data" }
cluster { name = emqxcl }
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    password = tmp_path / "data" / "secrets" / "db"
    password.parent.mkdir(parents=True)
    password.write_text("pass")
    made = tmp_path / "cluster.hocon"
    made.write_text(EXPORTED.replace("PASSWORD_FILE", str(password)))
    return made


def reported(file: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    """The items of the report by their place in the file."""
    data = str(file.parent / "data")
    assert (
        main(["import", "emqx", str(file), "--dry-run", "--json", "--data-dir", data])
        == exit_codes.DONE
    )
    return {item["item"]: item for item in json.loads(capsys.readouterr().out)["items"]}


def test_each_item_is_reported(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = reported(file, capsys)
    assert {name: item["result"] for name, item in found.items()} == {
        "schema_registry.schemas.room": "imported",
        "connectors.kafka_producer.plant": "changed",
        "connectors.kafka_consumer.plant": "changed",
        "connectors.disk_log.log": "imported",
        "connectors.pgsql.db": "changed",
        "connectors.redis.cache": "not supported",
        "actions.kafka_producer.orders": "changed",
        "actions.disk_log.lines": "imported",
        "actions.pgsql.rows": "not supported",
        "actions.redis.cache": "not supported",
        "sources.kafka_consumer.incoming": "imported",
        "schema_validation.validations.v": "imported",
        "rule_engine.rules.rule_x1": "changed",
        "rule_engine.rules.reads": "changed",
        "rule_engine.rules.broken": "not supported",
        "rewrite[1]": "imported",
        "auto_subscribe.topics[1]": "imported",
        "rule_engine.ignore_sys_message": "not supported",
        "mqtt.max_clientid_len": "changed",
        "mqtt.max_qos_allowed": "changed",
        "mqtt.max_topic_levels": "not supported",
        "mqtt.upgrade_qos": "not supported",
        "mqtt.max_inflight": "not supported",
        "node.name": "changed",
        "node.cookie": "not supported",
        "node.data_dir": "not supported",
        "cluster": "not supported",
    }
    assert all(
        bool(item["reason"]) == (item["result"] == "not supported") for item in found.values()
    )
    assert all(item["becomes"] for item in found.values() if not item["reason"])


def test_changes_and_reasons_are_named(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = reported(file, capsys)
    assert found["connectors.kafka_consumer.plant"]["becomes"] == "connectors/plant-kafka-consumer"
    action = "; ".join(found["actions.kafka_producer.orders"]["changes"])
    assert "request_ttl 45s, the default of EMQX, left out: rows do not expire" in action
    assert "buffer_mode memory_only left out: rows wait on disk" in action
    assert "idempotence off, since required_acks is leader_only" in action
    assert "parameters.buffer left out" in action
    rule = "; ".join(found["rule_engine.rules.rule_x1"]["changes"])
    for expected in (
        "metadata left out",
        "kafka_producer:orders named kafka:orders",
        "redis:cache left out",
        "mine:act",
    ):
        assert expected in rule
    assert (
        "type redis does not exist here; expected one of: file, http, kafka"
        in found["connectors.redis.cache"]["reason"]
    )
    assert "table is required" in found["actions.pgsql.rows"]["reason"]
    assert found["mqtt.max_clientid_len"]["becomes"] == "mqtt.max_client_id_bytes = 512"
    assert found["mqtt.max_qos_allowed"]["becomes"] == "mqtt.maximum_qos = 1"
    assert "mqtt.max_inflight" in found["mqtt.max_inflight"]["reason"]
    assert found["node.name"]["becomes"] == 'node.name = "emqx@127.0.0.1"'


def test_the_report_for_people_shows_no_secret_and_says_what_to_do(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["import", "emqx", str(file), "--dry-run", "--data-dir", str(file.parent / "data")])
        == exit_codes.DONE
    )
    shown = capsys.readouterr().out
    assert "wonder:land" not in shown
    assert "Add to sluice.conf, then run 'sluice config reload':" in shown
    assert "run without --dry-run to import them" in shown
    assert sorted(path.name for path in (file.parent / "data").iterdir()) == ["secrets"], (
        "a dry run writes nothing"
    )


def test_an_archive_of_an_export_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive, text = (
        tmp_path / "emqx-export.tar.gz",
        b'rewrite = [{ source_topic = "a/#", dest_topic = b }]',
    )
    with tarfile.open(archive, "w:gz") as made:
        member = tarfile.TarInfo("emqx-export/cluster.hocon")
        member.size = len(text)
        made.addfile(member, io.BytesIO(text))
    assert list(reported(archive, capsys)) == ["rewrite[1]"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a = {", "line 1"), (None, "cannot be read"), ("no archive", "cannot be read")],
)
def test_a_file_that_cannot_be_read_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, expected: str
) -> None:
    file = tmp_path / ("export.tar.gz" if text == "no archive" else "emqx.conf")
    if text is not None:
        file.write_text(text)
    assert main(["import", "emqx", str(file), "--dry-run"]) == exit_codes.USAGE
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("text", ["actions = 1", "actions.http = [1]", "rule_engine.rules = [x]", "rewrite = {a = 1}",
                                  "connectors.http.a.resource_opts = 5", "actions.http.a.parameters = x", "mqtt = 7",
                                  "rule_engine.rules.a { sql = 5, actions = 7 }", "auto_subscribe = 3",
                                  "schema_validation.validations = [1, {}]", "connectors.http.a.ssl = 4"])  # fmt: skip
def test_values_of_other_kinds_end_in_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    file = tmp_path / "emqx.conf"
    file.write_text(text)
    assert (
        main(["import", "emqx", str(file), "--dry-run", "--data-dir", str(tmp_path / "data")])
        == exit_codes.DONE
    )
