"""The vectors of variform and of transformations, through the services that the API calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from schema_validation.feature import SchemaValidationFeature
from tests.support.features import REFUSED, answered, load_vectors, make_services
from tests.support.vectors import message_fits, message_of, same
from transforms.feature import TransformsFeature
from transforms.service import TransformService

VECTORS = Path(__file__).parent / "vectors"


@pytest.fixture(scope="module")
def service() -> TransformService:
    services = make_services()
    SchemaValidationFeature(services).start()
    feature = TransformsFeature(services)
    feature.start()
    return feature.service


def _expression(vector: dict[str, Any]) -> str:
    builder = vector.get("expr_builder")
    if not builder:
        return str(vector["expr"])
    return str(
        builder["prefix"]
        + builder["repeat"] * builder["count"]
        + builder.get("middle", "")
        + builder.get("repeat2", "") * builder["count"]
        + builder["suffix"]
    )


@pytest.mark.parametrize("vector", load_vectors(VECTORS / "variform.json"), ids=lambda v: v["id"])
def test_variform_vector(service: TransformService, vector: dict[str, Any]) -> None:
    got = answered(
        service.evaluate,
        {
            "expression": _expression(vector),
            "bindings": vector["bindings"],
            "raw": bool(vector.get("raw")),
        },
    )
    wanted = vector["expect"]
    choices = wanted["one_of"] if isinstance(wanted, dict) and "one_of" in wanted else [wanted]
    assert any(_fits(choice, got) for choice in choices), got


def _fits(want: Any, got: dict[str, Any]) -> bool:
    if isinstance(want, dict) and "$error" in want:
        return got is REFUSED
    return got is not REFUSED and same(want, got["value"])


@pytest.mark.parametrize(
    "vector", load_vectors(VECTORS / "transformations.json"), ids=lambda v: v["id"]
)
def test_transformation_vector(service: TransformService, vector: dict[str, Any]) -> None:
    body = {
        "transformations": vector.get("transformations") or [vector["transformation"]],
        "message": message_of(vector),
        "schemas": vector.get("schemas", []),
        "check_references": not vector.get("bypass_reference_check", False),
    }
    got, want = answered(service.preview, body), vector["expect"]
    if "config_error" in want:
        assert got is REFUSED
        return
    assert got is not REFUSED
    assert want.get("failed", got["failed"]) == got["failed"]
    if "message" in want:
        assert got["outcome"] == "message"
        assert message_fits(want["message"], got["message"]), got
    elif "failure" in want:
        assert got["outcome"] == want["failure"]
