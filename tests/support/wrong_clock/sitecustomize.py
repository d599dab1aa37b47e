"""The clock of a process, and of those that it starts, is wrong by as many seconds as the file that
``SLUICE_TEST_CLOCK`` names says. What counts the seconds since something goes on as before."""

from __future__ import annotations

import os
import time

_FILE = os.environ["SLUICE_TEST_CLOCK"]
_LOOK_S = 0.2
_time, _time_ns = time.time, time.time_ns
_wrong_by_s = 0
_looked_s = float("-inf")


def _wrong_by() -> int:
    global _wrong_by_s, _looked_s
    if (now_s := time.monotonic()) - _looked_s > _LOOK_S:
        _looked_s = now_s
        with open(_FILE) as file:
            _wrong_by_s = int(file.read())
    return _wrong_by_s


time.time = lambda: _time() + _wrong_by()
time.time_ns = lambda: _time_ns() + _wrong_by() * 1_000_000_000
