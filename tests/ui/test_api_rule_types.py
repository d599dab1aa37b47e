"""Types and lineage of rules over HTTP and on the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from broker.cli import exit_codes
from broker.cli.main import main
from rules.feature import RulesFeature
from schema_validation.feature import SchemaValidationFeature
from tests.support.features import make_services
from tests.ui.api_node import TOKEN, Node, Running

READING = {
    "type": "object",
    "required": ["t"],
    "properties": {"t": {"type": "number"}, "site": {"enum": ["north", "south"]}},
    "additionalProperties": False,
}
SQL = "SELECT payload.t * 1.8 + 32 AS f, clientid FROM \"meters/#\" WHERE payload.site = 'north'"


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[httpx.Client]:
    services = make_services()
    schemas, rules = SchemaValidationFeature(services), RulesFeature(services)
    schemas.start()
    rules.start()
    schemas.schemas.create({"name": "reading", "type": "json", "source": json.dumps(READING)})
    schemas.validations.create(
        {
            "name": "meters",
            "topics": ["meters/#"],
            "strategy": "all_pass",
            "failure_action": "drop",
            "checks": [{"type": "json", "schema": "reading"}],
        }
    )
    rules.service.create({"name": "warm", "sql": SQL, "actions": [{"type": "console"}]})
    node = Node()
    node.context.section = services.storage.section
    node.context.services = {"schemas": schemas.schemas, "rules": rules.service}
    running = Running(node)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLUICE_URL", running.url)
    monkeypatch.setenv("SLUICE_API_TOKEN", TOKEN)
    with running.client() as client:
        yield client
    running.stop()


def test_a_rule_is_checked_without_being_saved(api: httpx.Client) -> None:
    found = api.post("/rules:check", json={"sql": SQL}).json()
    assert found["columns"] == [
        {"name": "f", "type": "double", "spark_type": "DOUBLE"},
        {"name": "clientid", "type": "string", "spark_type": "STRING"},
    ]
    assert found["spark_schema"] == "f DOUBLE, clientid STRING"
    assert found["arrow_schema"][0] == {"name": "f", "type": "double", "nullable": True}
    assert found["warnings"] == []
    assert found["lineage"]["columns"][0]["from"] == [
        {"column": "payload", "path": "t", "type": "double"}
    ]


def test_mistakes_have_a_place_and_a_suggestion(api: httpx.Client) -> None:
    body = {
        "name": "r",
        "sql": "SELECT\n  payload.tt AS t\nFROM 'meters/#'\nWHERE payload.site = 'nord'",
        "actions": [],
    }
    for answer in (
        api.post("/rules:check", json={"sql": body["sql"]}),
        api.post("/rules", json=body),
    ):
        assert (answer.status_code, answer.json()["code"]) == (422, "type_check")
        assert [
            (one["line"], one["column"], one["suggestion"]) for one in answer.json()["errors"]
        ] == [
            (2, 3, "did you mean 't'?"),
            (4, 7, "did you mean 'north'?"),
        ]
        assert [one["fix"] for one in answer.json()["errors"]] == [
            {"line": 2, "column": 3, "name": "tt", "by": "t"},
            {"line": 4, "column": 7, "name": "nord", "by": "north"},
        ]
    assert api.post("/rules:check", json={"sql": "SELECT FROM"}).status_code == 422
    assert api.post("/rules:check", json={}).json()["errors"][0]["pointer"] == "/sql"


@pytest.mark.parametrize(
    ("sql", "fix"),
    [
        ("SELECT a, uper(b) FROM 'm'", {"line": 1, "column": 11, "name": "uper", "by": "upper"}),
        ("SELECT a, UPER(b) FROM 'm'", {"line": 1, "column": 11, "name": "UPER", "by": "upper"}),
        ("SELCT a FROM 'm'", {"line": 1, "column": 1, "name": "SELCT", "by": "SELECT"}),
        ("SELECT a\nFORM 'm'", {"line": 2, "column": 1, "name": "FORM", "by": "FROM"}),
        (
            "SELECT * FROM '$events/client_conected'",
            {
                "line": 1,
                "column": 15,
                "name": "$events/client_conected",
                "by": "$events/client/connected",
            },
        ),
        (
            "SELECT cleintid FROM 'm'",
            {"line": 1, "column": 8, "name": "cleintid", "by": "clientid"},
        ),
    ],
)
def test_a_misspelt_name_has_a_fix_as_data(
    api: httpx.Client, sql: str, fix: dict[str, Any]
) -> None:
    answer = api.post("/rules:check", json={"sql": sql}).json()
    problems = answer.get("errors") or answer["warnings"]
    assert [problem.get("fix") for problem in problems] == [fix]


def test_fields_are_listed_by_source(api: httpx.Client, capsys: pytest.CaptureFixture[str]) -> None:
    found = api.post("/rules:fields", json={"from": ["meters/#"]}).json()
    fields = {field["path"]: (field["type"], field["nullable"]) for field in found["fields"]}
    assert fields["payload.t"] == ("double", False)
    assert fields["payload.site"] == ("string", True)
    assert fields["clientid"] == ("string", False)
    assert fields['pub_props."Content-Type"'] == ("string", True)
    assert found["is_open"] is False
    other = api.post(
        "/rules:fields", json={"from": ["$events/client/connected", "$rules/warm"]}
    ).json()["fields"]
    assert {"proto_ver", "f"} <= {field["path"] for field in other}
    assert main(["rules", "fields", "meters/#"]) == 0
    assert "payload.t" in capsys.readouterr().out


def test_sql_is_formatted(api: httpx.Client, capsys: pytest.CaptureFixture[str]) -> None:
    sql = 'select payload.t as t -- warm\nfrom "meters/#" where payload.t>20 and qos=1'
    laid_out = (
        'SELECT payload.t AS t -- warm\nFROM "meters/#"\nWHERE payload.t > 20\n  AND qos = 1\n'
    )
    assert api.post("/rules:format", json={"sql": sql}).json() == {"sql": laid_out}
    assert api.post("/rules:format", json={"sql": "select"}).json()["code"] == "sql_syntax"
    assert main(["rules", "format", "--sql", sql]) == 0
    assert capsys.readouterr().out == laid_out


def test_lineage_is_served(api: httpx.Client) -> None:
    found = api.get("/rules/warm/lineage").json()
    assert [(one["name"], one["expression"]) for one in found["columns"]] == [
        ("f", "payload.t * 1.8 + 32"),
        ("clientid", "clientid"),
    ]
    assert found["conditions"] == [
        {
            "clause": "WHERE",
            "expression": "payload.site = 'north'",
            "from": [{"column": "payload", "path": "site", "type": "string"}],
        }
    ]
    assert api.get("/rules/cold/lineage").status_code == 404


@pytest.mark.usefixtures("api")
def test_commands_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "lineage", "warm"]) == 0
    shown = capsys.readouterr().out
    assert "payload.t * 1.8 + 32" in shown
    assert "WHERE payload.site = 'north'  (from payload.site string)" in shown
    assert main(["rules", "check", "--sql", "SELECT clientId AS c FROM 'meters/#'"]) == 0
    shown = capsys.readouterr().out
    assert "spark schema: c STRING" in shown
    assert "warning: line 1, column 8: what the rule reads has no column 'clientId'" in shown
    assert (
        main(["rules", "check", "--sql", "SELECT payload.tt AS c FROM 'meters/#'"])
        == exit_codes.CHECK_SAID_NO
    )
    assert "did you mean 't'?" in capsys.readouterr().err
    assert main(["rules", "lineage", "cold"]) == exit_codes.NOT_FOUND
    assert "sluice rules ls" in capsys.readouterr().err


@pytest.mark.usefixtures("api")
def test_commands_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "lineage", "warm", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rule"] == "warm"
    Path("a.sql").write_text("SELECT payload.t AS t -- in degrees\nFROM 'meters/#'")
    assert main(["rules", "check", "a.sql", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["spark_schema"] == "t DOUBLE"
    Path("b.conf").write_text(
        '[{name = one, sql = "SELECT 1 AS n FROM \'x\'"}, {name = two, sql = "SELECT x FROM"}]'
    )
    assert main(["rules", "check", "b.conf", "--json"]) == exit_codes.CHECK_SAID_NO
    assert json.loads(capsys.readouterr().err)["code"] == "sql_syntax"
    assert main(["rules", "check"]) == exit_codes.USAGE


@pytest.mark.usefixtures("api")
def test_applying_a_rule_tells_its_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    Path("rule.conf").write_text(
        "name = r, sql = \"SELECT clientId AS c FROM 'meters/#'\", actions = [{type = console}]"
    )
    assert main(["rules", "apply", "-f", "rule.conf"]) == 0
    assert (
        "warning: line 1, column 8: what the rule reads has no column 'clientId'"
        in capsys.readouterr().err
    )
