"""A connection to NATS is with a server that answers, and with this machine's own where that one does."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.cluster.nats.line import Line, Servers
from broker.core.errors import Unavailable
from tests.support.nats import Nats, nats
from tests.support.processes import free_port

ASK = ("$JS.API.INFO", b"")
SECONDS = 2.0


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nats]:
    with nats(tmp_path_factory.mktemp("nats"), 1) as servers:
        yield servers


@pytest.fixture
def silent() -> Iterator[tuple[str, int]]:
    """Takes connections, and says nothing: as a machine that stands still."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()


def answers(line: Line) -> bool:
    try:
        return "streams" in json.loads(line.ask(*ASK, SECONDS).payload)
    except Unavailable:
        return False


def test_a_silent_server_costs_its_share_of_a_question(
    servers: Nats, silent: tuple[str, int]
) -> None:
    [there] = servers.places.addresses
    line = Line(Servers([silent, there, there]), "test")
    assert answers(line)
    line.close()


def test_the_next_question_goes_elsewhere_where_all_were_too_slow(
    servers: Nats, silent: tuple[str, int]
) -> None:
    """A question too short for any server to answer does not begin with the same one again."""
    [there] = servers.places.addresses
    line = Line(Servers([silent, there]), "test")
    with pytest.raises(Unavailable):
        line.ask(*ASK, 0.0)
    assert answers(line)
    line.close()


def test_a_server_that_stops_answering_is_left(servers: Nats, tmp_path: Path) -> None:
    [there] = servers.places.addresses
    with nats(tmp_path, 1) as others:
        [first] = others.places.addresses
        line = Line(Servers([first, there]), "test")
        assert answers(line)
        assert line.first_server
        others.servers[0].freeze()
        with pytest.raises(Unavailable):
            line.ask(*ASK, 0.2)
        assert answers(line)
        assert not line.first_server
        others.servers[0].thaw()
        line.close()


def test_the_first_server_is_used_again_when_it_is_back(servers: Nats) -> None:
    [there] = servers.places.addresses
    absent = ("127.0.0.1", free_port())
    places = [absent, there]
    line = Line(Servers(places), "test")
    assert answers(line)
    assert not line.first_server
    places[0] = there
    assert answers(line)
    assert not line.first_server, "not at each question"
    line._home_at_s = 0.0
    assert answers(line)
    assert line.first_server
    line.close()
