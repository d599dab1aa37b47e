"""What all tests have in common."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir

import httpx
import paho.mqtt.client as paho
import pytest

from broker.config.allowed import AllowedSettings, confine
from tests.support import network, node
from tests.support.examples import load_profile

pytest_plugins = ["tests.support.starts", "tests.support.tiers", "tests.support.durations"]

os.environ["SPARK_CONF_DIR"] = str(Path(__file__).parent / "support/spark_conf")

gc.disable()  # collections among what collecting tests imports find next to nothing, and take a tenth of the time

_paho_pair = paho._socketpair_compat


class _Waker(socket.socket):
    """One of the two sockets with which paho wakes its own loop, and which it leaves to the finalizer of its client.
    In a cycle the collector may come to them first, and Python's own would warn then, in some later test."""

    def __del__(self) -> None:
        self.close()


def _wakers() -> tuple[socket.socket, socket.socket]:
    one, two = _paho_pair()
    return _Waker(fileno=one.detach()), _Waker(fileno=two.detach())


paho._socketpair_compat = _wakers

# A request of a test has a minute, as all that a test waits for: five seconds are too few beside other tests.
for _part in ("connect", "read", "write", "pool"):
    setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, _part, 60.0)  # the one that each signature has

SCRATCH = [Path(gettempdir())]


@pytest.fixture(autouse=True)
def below_the_temporary_directory() -> None:
    """Objects of a test read and write there, unless a broker runs in this process, which has bounds of its own."""
    if node.in_this_process:
        return
    confine(AllowedSettings(secret_directories=SCRATCH, directories=SCRATCH), None)


@pytest.fixture(scope="module", autouse=True)
def descriptors_are_closed() -> Iterator[None]:
    """A file of tests leaves next to none open: clients that wait with ``select`` fail from number 1024 on."""
    before = _descriptors()
    yield
    assert _descriptors() < before + 300


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def pytest_configure(config: pytest.Config) -> None:
    """Choose how many examples property tests try, and how brokers are started."""
    load_profile(heavy=config.getoption("tier") == "heavy")
    node.are_forks = config.getoption("tier") == "full"
    if config.getoption("tier") in ("full", "heavy") and os.geteuid() == 0:
        with suppress(OSError):  # where there is no iproute2, tests with networks say so
            network.have_outside()


def pytest_collection_finish() -> None:
    """What was imported and collected stays until the end: no garbage collection needs to look at it again."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """What the collector does not see when the interpreter ends is reported as leaked by DuckDB, in a hundred lines."""
    gc.unfreeze()
