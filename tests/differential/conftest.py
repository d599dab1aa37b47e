"""The Spark of the lake's tests, for these too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.bridges.spark.conftest import spark as spark


@pytest.fixture
def interpreting(spark: Any) -> Iterator[Any]:
    """A Spark that evaluates expressions without compiling them, which for hundreds of queries takes minutes."""
    settings = {
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield spark
    for name in settings:
        spark.conf.unset(name)
