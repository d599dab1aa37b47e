"""What each test starts, read from the code that it reaches, so that no marker can be forgotten.

A test whose fixtures or functions reach ``tests.support.kafka_server`` is marked ``kafka``. A process that no code
of the tests names is heard of when it starts: it fails a test without a marker.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

import pytest

STARTS: Final = {
    "playwright": "browser",
    "pyspark.sql.SparkSession": "spark",
    "bridges.spark.driver.session": "spark",
    "tests.support.kafka_server": "kafka",
    "tests.support.processes.ServerProcess": "servers",
    "subprocess": "process",
    "broker.streams.ranges_process.RangesProcess": "process",
    "tests.support.lateness": "timed",
    "tests.support.processor.takes_less_than": "timed",
}
"""Modules and classes, and the marker of a test that reaches one."""
KINDS: Final = ("browser", "spark", "kafka", "servers", "process")
"""What a test can start; a test with several counts as the first of them."""
_LOAD_GLOBAL: Final = dis.opmap["LOAD_GLOBAL"]
_LOAD_NAME: Final = dis.opmap["LOAD_NAME"]
_TESTS: Final = str(Path(__file__).parents[1])
_markers: dict[int, tuple[Any, frozenset[str]]] = {}
"""Markers of functions and classes by identity, with the object, so that no other one gets its identity."""
_watched: list[pytest.Item] = []
_reached_from: dict[int, tuple[Any, list[Any]]] = {}
"""What the code of a function or class names, by identity in the same way: most tests reach the same functions."""


def markers_of(item: pytest.Function) -> frozenset[str]:
    """The markers of a test, by its own code and that of its fixtures."""
    definitions = item._fixtureinfo.name2fixturedefs.values()
    functions = [
        item.obj,
        *(definition.func for fixtures in definitions for definition in fixtures),
    ]
    return frozenset().union(*(_markers_of(function) for function in functions))


def _markers_of(start: Any) -> frozenset[str]:
    """The markers of all that ``start`` reaches, by a walk over functions and classes of ``tests``."""
    if id(start) in _markers:
        return _markers[id(start)][1]
    markers: set[str] = set()
    waiting, seen = [start], {id(start): start}
    while waiting:
        value = waiting.pop()
        name = _name(value)
        markers |= _of_name(name)
        for reached in _all_reached(value) if name.startswith("tests.") else ():
            if id(reached) in _markers:
                markers |= _markers[id(reached)][1]
            elif id(reached) not in seen:
                seen[id(reached)] = reached
                waiting.append(reached)
    found = frozenset(markers)
    # what reaches nothing that starts something has no part that does
    for value in (start,) if found else seen.values():
        _markers[id(value)] = value, found
    return found


@cache
def _of_name(name: str) -> frozenset[str]:
    """The markers of a module, class or function by itself."""
    return frozenset(
        marker for place, marker in STARTS.items() if f"{name}.".startswith(f"{place}.")
    )


def _name(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, ModuleType):
        return value.__name__
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"


def _all_reached(value: Any) -> list[Any]:
    if id(value) not in _reached_from:
        _reached_from[id(value)] = value, list(_reached(value))
    return _reached_from[id(value)][1]


def _reached(value: Any) -> Iterator[Any]:
    """The objects that the code of a function, or of a class with its bases, names."""
    members = (*value.__bases__, *vars(value).values()) if isinstance(value, type) else (value,)
    for function in (function for member in members for function in _functions(member)):
        if function is not value:
            yield function
        elif isinstance(function, FunctionType):
            yield from _named(function)


def _named(function: FunctionType) -> Iterator[Any]:
    names = set(_names(function.__code__))
    globals_ = set(_loaded(function.__code__))
    values = [function.__globals__[name] for name in globals_ if name in function.__globals__]
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # empty
            values.append(cell.cell_contents)
    for value in values:
        if isinstance(value, ModuleType):
            yield value
            yield from (vars(value)[name] for name in names if name in vars(value))
        yield from _functions(value)
    yield from (sys.modules.get(name, name) for name in names)  # imports within the function


def _functions(value: Any) -> Iterator[Any]:
    """The functions and classes in a value: itself, a property, a bound method, a table of them."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        for member in value:
            yield from _functions(member)
        return
    if isinstance(value, property):
        value = value.fget
    if isinstance(value, type):
        yield value
    elif callable(value):
        function = inspect.unwrap(getattr(value, "__func__", value))
        if isinstance(function, FunctionType):
            yield function
    elif type(value).__module__.startswith("tests."):
        yield type(value)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _loaded(code: CodeType) -> Iterator[str]:
    """The names of variables among those of ``_names``, without attributes; ``dis`` takes ten times as long."""
    above = 0
    for operation, low in zip(code.co_code[::2], code.co_code[1::2], strict=True):
        argument = above | low
        above = argument << 8 if operation == dis.EXTENDED_ARG else 0
        if operation == _LOAD_GLOBAL:
            yield code.co_names[argument >> 1]  # the lowest bit says whether it is called
        elif operation == _LOAD_NAME:
            yield code.co_names[argument]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _loaded(constant)


def pytest_configure() -> None:
    """Fail a test that starts a process and has no marker."""

    def hear(event: str, _arguments: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen" and _watched and _is_started_by_tests():
            pytest.fail(
                f"{_watched[-1].nodeid} starts a process, which STARTS of tests/support/starts.py does not know"
            )

    sys.addaudithook(hear)


def _is_started_by_tests() -> bool:
    """Whether a test asks for the process; a broker in the test's process may start helpers of its own."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_TESTS):
            return True
        if file.startswith(str(Path(_TESTS).parent)) and "/.venv/" not in file:
            return False
        frame = frame.f_back
    return False


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Watch the test if it has none of the markers."""
    _watched[:] = [] if any(item.get_closest_marker(kind) for kind in KINDS) else [item]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """End the watch."""
    _watched.clear()
