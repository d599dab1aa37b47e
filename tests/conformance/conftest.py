"""Conformance tests run against a broker of one process, and against several cells, which have to send the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.mqtt_server import Shape, use_shape

_ONE = Shape()
_FULL = (Shape(2),)
_HEAVY = (Shape(5), Shape(2, is_tls=True), Shape(5, is_tls=True))
_OF_TIERS = {"quick": (_ONE,), "smoke": (_ONE,), "full": (_ONE, *_FULL), "heavy": (_ONE, *_HEAVY)}


def _shapes(config: pytest.Config) -> tuple[Shape, ...]:
    if cells := config.getoption("cells"):
        return (Shape(cells, config.getoption("cell_tls")),)
    return _OF_TIERS.get(config.getoption("tier"), (_ONE,))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test with each shape of a broker that its tier has."""
    shapes = [
        shape
        for shape in _shapes(metafunc.config)
        if shape == _ONE or not metafunc.definition.get_closest_marker("one_process")
    ]
    if shapes in ([], [_ONE]):
        return
    metafunc.parametrize(
        "shape",
        [
            pytest.param(
                shape,
                id=f"{shape.cells}-cells" + "-tls" * shape.is_tls,
                marks=()
                if shape == _ONE
                else pytest.mark.cells
                if shape in _FULL
                else pytest.mark.heavy,
            )
            for shape in shapes
        ],
        indirect=True,
    )


@pytest.fixture(autouse=True)
def shape(request: pytest.FixtureRequest) -> Iterator[Shape]:
    """How the broker of this test is run."""
    used = getattr(request, "param", _ONE)
    use_shape(used)
    yield used
    use_shape(_ONE)
