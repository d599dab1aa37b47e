"""Texts of the dashboard that are computed: run in Node, which reads the sources as they are."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from ui.web import build

HOUR_S, DAY_S = 3600, 86_400
GIB = 2**30
STEP_S = 600
GREW, OTHERS = "the data of the broker grew by", "Other programs took"


def said(function: str, *arguments: Any) -> str:
    """What a function of ``format.ts`` returns."""
    call = f"import {{ {function} }} from './src/parts/format.ts'; console.log({function}(...{json.dumps(arguments)}))"
    node = build._home() / "bin" / "node"
    command = [str(node), "--input-type=module", "--eval", call]
    done = subprocess.run(command, cwd=build.WEB, capture_output=True, text=True, check=True)
    return str(done.stdout).strip()


def history(hours: float, own_per_day: float, all_per_day: float) -> dict[str, Any]:
    """The last hours of a data directory and of the free bytes of its disk, which change by so much a day."""
    times = range(0, int(hours * HOUR_S) + 1, STEP_S)
    own: list[float | None] = [50 * GIB + own_per_day * at / DAY_S for at in times]
    free: list[float | None] = [500 * GIB - all_per_day * at / DAY_S for at in times]
    own[3] = None
    return {
        "step_s": STEP_S,
        "series": [
            {"name": "disk_free_bytes", "mean": free},
            {"name": "data_directory_bytes", "mean": own},
        ],
    }


@pytest.mark.parametrize(
    ("hours", "own", "all_of_it", "text"),
    [
        (5, 90 * GIB, 90 * GIB, "How fast the broker fills it is known after 6 h."),
        (24, 0, 0, "In the last 1 d the data of the broker did not grow."),
        (24, -9 * GIB, 0, "In the last 1 d the data of the broker did not grow."),
        (
            12,
            0,
            200 * GIB,
            "In the last 12 h the data of the broker did not grow. Other programs took 200 GiB a day.",
        ),
        (
            24,
            90 * GIB,
            90 * GIB,
            "In the last 1 d the data of the broker grew by 90 GiB a day: at this rate the disk is full in 1 day.",
        ),
        (
            24,
            20 * GIB,
            30 * GIB,
            f"In the last 1 d {GREW} 20 GiB a day: at this rate the disk is full in 5 days. {OTHERS} 10 GiB a day.",
        ),
        (
            6,
            400 * GIB,
            400 * GIB,
            "In the last 6 h the data of the broker grew by 400 GiB a day: at this rate the disk is full in 6 h.",
        ),
    ],
)
def test_when_the_disk_is_full_by_what_the_broker_stores(
    hours: float, own: float, all_of_it: float, text: str
) -> None:
    assert said("diskOutlook", history(hours, own, all_of_it), 100 * GIB, 1000 * GIB) == text


def test_without_a_history_no_forecast_is_made() -> None:
    assert said("diskOutlook", None, GIB, GIB) == "How fast the broker fills it is known after 6 h."
    assert said("diskOutlook", {"step_s": 600, "series": []}, GIB, GIB).endswith("known after 6 h.")
