"""Commands of schemas against a running broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.cli import exit_codes
from broker.cli.main import main
from tests.support.local_node import running
from tests.support.node import TOKEN

V1 = {"type": "object", "required": ["t"], "properties": {"t": {"type": "number"}}}
BREAKING = {"type": "object", "required": ["t"], "properties": {"t": {"type": "string"}}}
CONFIG = """
schema_registry {
  compatibility = full
  schemas {
    pasted { type = json, source = "{\\"type\\": \\"object\\"}" }
    bundled {
      type = protobuf
      source {
        type = bundle
        files = [ { path = "a.proto", root = true, contents = "message A { optional int32 n = 1; }" } ]
      }
    }
  }
}
"""

Sluice = Callable[..., str]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("node") / "data"
    with running(directory, config=CONFIG):
        yield directory


@pytest.fixture
def sluice(
    data_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Sluice:
    monkeypatch.setenv("SLUICE_API_TOKEN", TOKEN)
    monkeypatch.setenv("SLUICE_DATA_DIR", str(data_dir))

    def run(*arguments: str, expect: int = 0) -> str:
        code = main(arguments)
        printed = capsys.readouterr()
        assert code == expect, printed
        return printed.out + printed.err

    return run


def test_configuration_as_emqx_writes_it_is_taken(sluice: Sluice) -> None:
    shown = sluice("schemas", "ls")
    assert "pasted" in shown
    assert "bundled" in shown
    assert sluice("schemas", "compatibility").strip() == "full"


def test_a_schema_is_checked_changed_and_taken_back(sluice: Sluice, tmp_path: Path) -> None:
    spec, breaking = tmp_path / "spec.json", tmp_path / "reading.json"
    spec.write_text(json.dumps({"name": "reading", "type": "json", "source": json.dumps(V1)}))
    breaking.write_text(json.dumps(BREAKING))
    sluice("schemas", "apply", "-f", str(spec))
    told = sluice("schemas", "check", "reading", "-f", str(breaking), expect=7)
    assert "t was number and is string" in told
    assert "full  not compatible" in told
    sluice("schemas", "compatibility", "reading", "none")
    sluice("schemas", "check", "reading", "-f", str(breaking))
    spec.write_text(json.dumps({"name": "reading", "type": "json", "source": json.dumps(BREAKING)}))
    sluice("schemas", "apply", "-f", str(spec))
    assert sluice("schemas", "diff", "reading", "1", "2").strip() == "t was number and is string"
    assert "uses version 1" in sluice("schemas", "use", "reading", "1")
    assert "in use" in sluice("schemas", "versions", "reading").splitlines()[1]
    assert sluice("schemas", "users", "reading") == ""
    sluice("schemas", "rm", "reading", "--yes", "--permanent")
    sluice("schemas", "show", "reading", expect=exit_codes.NOT_FOUND)


def test_a_schema_is_learnt_from_a_file(sluice: Sluice, tmp_path: Path) -> None:
    messages = tmp_path / "messages.ndjson"
    messages.write_text('{"t": 1}\n{"t": 1.5}\nnonsense\n')
    told = sluice("schemas", "infer", "-f", str(messages))
    assert '"properties":{"t":{"type":"number"}}' in told
    assert "inferred from 2 messages, 1 were not JSON" in told
