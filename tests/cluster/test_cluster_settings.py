"""The section ``cluster``: the order of its machines, and a sentence for each error."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from broker.cluster.settings import ClusterSettings

TLS = {"certfile": "a.pem", "keyfile": "a.key", "cacertfile": "ca.pem"}

THREE = {"machines": {name: {"address": f"10.0.0.{at}:7946"} for at, name in enumerate("abc", 1)}}


def section(**changes: Any) -> dict[str, Any]:
    machines = {
        "b": {"address": "10.0.0.2:7946", "cells": 3},
        "a": {"address": "10.0.0.1:7946", "cells": 2, "mqtt": "a.example:1883"},
    }
    return {"name": "plant", "machine": "a", "machines": machines, "tls": TLS, **changes}


def test_cells_are_numbered_in_the_order_of_the_names() -> None:
    settings = ClusterSettings.model_validate(section())
    assert [(machine.name, machine.first, machine.size) for machine in settings.layout] == [
        ("a", 0, 2), ("b", 2, 3),
    ]  # fmt: skip
    elsewhere = ClusterSettings.model_validate(section(machine="b"))
    assert elsewhere.digest == settings.digest
    assert ClusterSettings.model_validate(section(name="other")).digest != settings.digest


def test_there_is_no_cluster_by_default() -> None:
    settings = ClusterSettings.model_validate({})
    assert not settings.machine
    assert not settings.layout


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"machine": "c"}, "machine: expected one of a, b; got 'c'"),
        ({"machine": ""}, "machine: expected one of a, b; got ''"),
        ({"machines": {}}, "machine: expected one of none; got 'a'"),
        ({"machines": {"A": {"address": "h:1"}}}, "expected names of small letters, digits and '-', got 'A'"),
        ({"machines": {"a": {}}}, "machines.a.address: expected HOST:PORT, got nothing"),
        ({"machines": {"a": {"address": "nowhere"}}}, "nowhere"),
        ({"machines": {name: {"address": "h:1", "cells": 40} for name in "ab"}}, "at most 64 cells in all, got 80"),
        ({"tls": {**TLS, "keyfile": ""}}, "tls.keyfile: expected a file; machines need certificates"),
        ({"tsl": {}}, "tsl"),
        ({**THREE, "nats": {"run": True, "port": 6222}}, "nats.route_port: expected another port than nats.port, 6222"),
        ({**THREE, "nats": {"run": True, "port": 7946}},
         "machines.a.address: expected another port than nats.port, 7946"),
        ({**THREE, "nats": {"run": True, "route_port": 7946}},
         "machines.a.address: expected another port than nats.route_port, 7946"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError) as error:
        ClusterSettings.model_validate(section(**changes))
    assert why in str(error.value)
