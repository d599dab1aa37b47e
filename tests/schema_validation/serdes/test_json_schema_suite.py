"""The official JSON-Schema-Test-Suite through the validator and through the reference, every disagreement listed.

``suite/json_schema_tests.json.xz`` holds the files of its drafts 03 to 2020-12, as the source distribution of
jsonschema 4.26.0 carries them (``suite/LICENSE``): all that is required, and of what is optional the numbers, patterns,
references and the four formats that are asserted. ``suite/disagreements.tsv`` says for each group of tests how many
come out otherwise than the suite wants, for which validator, and why. The list is exact: one that is put right, in a
later version of either validator, fails here and leaves it.
"""

from __future__ import annotations

import csv
import lzma
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import jsonschema_specifications

from broker.core import jsontext
from schema_validation.serdes.base import SourceError
from schema_validation.serdes.json_schema import JsonSchemaSerde

SUITE = Path(__file__).parent / "suite"
DRAFTS: dict[str, Any] = {
    "draft3": jsonschema.Draft3Validator,
    "draft4": jsonschema.Draft4Validator,
    "draft6": jsonschema.Draft6Validator,
    "draft7": jsonschema.Draft7Validator,
    "draft2019-09": jsonschema.Draft201909Validator,
    "draft2020-12": jsonschema.Draft202012Validator,
}
Key = tuple[str, str]
Verdict = Callable[[Any], bool]


def _tests() -> dict[str, list[dict[str, Any]]]:
    with lzma.open(SUITE / "json_schema_tests.json.xz") as file:
        tests: dict[str, list[dict[str, Any]]] = jsontext.decode(file.read())
    return tests


def _listed(validator: str) -> dict[Key, int]:
    with (SUITE / "disagreements.tsv").open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert all(row["reason"] for row in rows)
    return {
        (row["file"], row["group"]): int(row["tests"])
        for row in rows
        if row["validator"] == validator
    }


def _groups() -> Iterator[tuple[str, str, dict[str, Any], list[dict[str, Any]]]]:
    """File, group, schema with its draft, tests. A schema that is true or false is none here."""
    for file, groups in _tests().items():
        draft = DRAFTS[file.partition("/")[0]].META_SCHEMA
        for group in groups:
            if isinstance(group["schema"], dict):
                dated = {"$schema": draft.get("$id", draft.get("id")), **group["schema"]}
                yield file, group["description"], dated, group["tests"]


def _disagreements(verdict_of: Callable[[str, dict[str, Any]], Verdict]) -> dict[Key, int]:
    found: Counter[Key] = Counter()
    for file, group, schema, tests in _groups():
        verdict = verdict_of(file, schema)
        for test in tests:
            if verdict(test["data"]) is not test["valid"]:
                found[file, group] += 1
    return dict(found)


def _ours(file: str, schema: dict[str, Any]) -> Verdict:
    try:
        made = JsonSchemaSerde(jsontext.encode(schema).decode())
    except SourceError:
        return lambda value: None  # type: ignore[return-value] # neither: the schema cannot be saved

    def verdict(value: Any) -> bool:
        fits = made.is_valid(value)
        assert bool(made.errors(value)) is not fits
        return fits

    return verdict


def _reference(file: str, schema: dict[str, Any]) -> Verdict:
    made = DRAFTS[file.partition("/")[0]](
        schema,
        registry=jsonschema_specifications.REGISTRY,
        format_checker=jsonschema.FormatChecker(),
    )

    def verdict(value: Any) -> bool:
        try:
            return bool(made.is_valid(value))
        except Exception:  # noqa: BLE001 # what it raises for references elsewhere and for patterns of other dialects
            return None  # type: ignore[return-value] # neither

    return verdict


def test_the_validator_against_the_suite() -> None:
    assert _disagreements(_ours) == _listed("jsonschema-rs")


def test_the_reference_against_the_suite() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert _disagreements(_reference) == _listed("jsonschema")


def test_the_suite_is_all_there() -> None:
    drafts = Counter(file.partition("/")[0] for file, _, _, tests in _groups() for _ in tests)
    assert {draft: drafts[draft] > 400 for draft in DRAFTS} == dict.fromkeys(DRAFTS, True)
