"""Scenarios of several clients run against a broker of one process, and with ``--cells N`` against N cells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from tests.support import node

IN_CELLS: Final = frozenset(
    f"test_{name}"
    for name in (
        "client_features",
        "delayed_and_rewritten",
        "real_clients",
        "restart",
        "retained_after_kill",
        "sessions_by_zone",
        "wills_after_a_kill",
    )
)
"""Files of these. Share groups have tests of their own: members of the publisher's cell come first there."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each of these tests with the number of cells that ``--cells`` names."""
    if metafunc.module.__name__.rpartition(".")[2] not in IN_CELLS:
        return
    if metafunc.definition.get_closest_marker("one_process"):
        return
    cells = metafunc.config.getoption("cells")
    if not cells:
        return
    metafunc.parametrize(
        "workers",
        [pytest.param(cells, id=f"{cells}-cells")],
        indirect=True,
        scope="module",
    )


@pytest.fixture(scope="module", autouse=True)
def workers(request: pytest.FixtureRequest) -> Iterator[int]:
    """How many cells the broker of this test has."""
    node.default_workers = getattr(request, "param", 1)
    yield node.default_workers
    node.default_workers = 1
