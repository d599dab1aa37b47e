"""One Spark session and one stream server for all tests of this folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bridges.spark.stream_server import TOKEN, StreamServer

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def server() -> Iterator[StreamServer]:
    """A running broker side, fresh for each test."""
    running = StreamServer()
    running.start()
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def api_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The token of ``StreamServer`` for readers in this process, which tests of other folders share."""
    monkeypatch.setenv("SLUICE_API_TOKEN", TOKEN)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A local Spark as the lake job makes it."""
    from bridges.spark.driver.java import find_java
    from bridges.spark.driver.session import start_session

    paths = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), str(ROOT)]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    find_java(tmp_path_factory.mktemp("java")).apply(os.environ)
    has_address = "SPARK_LOCAL_IP" in os.environ
    with pytest.MonkeyPatch.context() as started_with:
        started_with.setenv("SLUICE_API_TOKEN", TOKEN)
        session = start_session(
            "local[2,4]", driver_memory="1g", work_dir=tmp_path_factory.mktemp("spark")
        )
    if not has_address:
        # of this session alone: clusters that later tests start have hosts of their own
        os.environ.pop("SPARK_LOCAL_IP", None)
    yield session
    session.stop()
