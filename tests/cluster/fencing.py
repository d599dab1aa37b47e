"""What is promised of a commit log whose owners change, and a process that wants to be one:
``python -m tests.cluster.fencing ADDRESSES WHO FILE``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Final

from broker.cluster.nats import log as nats_log
from broker.cluster.nats.line import Servers
from broker.cluster.nats.log import NatsLog, StreamSettings
from broker.core.errors import Unavailable
from broker.core.hosts import split_address
from broker.storage.commit_log import Fenced, Mark, unpacked

CLUSTER: Final = "plant"
CELL: Final = 0
_PAUSE_S: Final = 0.3
_GIVE_UP_S: Final = 15.0


def written(messages: Iterable[bytes], epoch: int = 0) -> list[str]:
    """The values of the groups of a log, each once, in the order of their owners. ``epoch``: the one before the log."""
    number = 0
    parts = b""
    values = []
    for payload in messages:
        kind, flag, its_epoch, its_number, _ = nats_log._HEAD.unpack_from(payload)
        if kind == nats_log._CLAIM:
            assert its_epoch == epoch + 1, "an epoch is claimed twice"
            epoch, number, parts = its_epoch, 0, b""
            continue
        assert its_epoch == epoch, "a group of an older owner is behind a claim"
        assert its_number == number + 1, "a group is missing, or there twice"
        parts += payload[nats_log._HEAD.size :]
        if flag:  # more of it follows
            continue
        number += 1
        [(_, value, _)] = unpacked(parts)
        assert value is not None
        values.append(value.rstrip(b"\0").decode())
        parts = b""
    assert len(set(values)) == len(values), "a group is there twice"
    return values


def own(servers: Servers, who: str, file: Path) -> None:
    """Claim the cell when no groups have come for a while, write groups until another owner has claimed it, and begin
    again. ``file`` gets the value of each group that was acknowledged."""
    numbers = count()
    log = NatsLog(servers, CLUSTER, CELL, who, _GIVE_UP_S)
    applied = Mark()
    with file.open("a", buffering=1) as acknowledged:
        while True:
            try:
                before, applied = applied, _end(log, applied)
                if applied != before:
                    time.sleep(_PAUSE_S)
                    continue
                mark = log.claim(applied)
                if mark is None:
                    continue
                applied = mark
                while True:
                    value = f"{who}-{next(numbers)}"
                    log.append([(b"k", value.encode(), False)])
                    acknowledged.write(f"{value}\n")
                    time.sleep(0.001)
            except (Fenced, Unavailable):
                # what was on its way may still arrive: who asks again is another owner
                log.close()
                who = f"{who}+"
                log = NatsLog(servers, CLUSTER, CELL, who, _GIVE_UP_S)


def _end(log: NatsLog, applied: Mark) -> Mark:
    for entry in log.follow(applied):
        applied = entry.mark
    return applied


def messages(servers: Servers) -> list[bytes]:
    """All of the log.

    Raises:
        Unavailable: it cannot be read at present.
    """
    log = NatsLog(servers, CLUSTER, CELL, "reader")
    found: list[bytes] = []
    try:
        end = log.state()["state"]["last_seq"]
        while len(found) < end:
            some = log._read(len(found) + 1)
            if not some:
                raise Unavailable("a server that has not all of it yet was asked")
            found += [payload for _, payload in some]
    finally:
        log.close()
    return found


def make(servers: Servers, replicas: int) -> None:
    """The stream, without a group."""
    log = NatsLog(servers, CLUSTER, CELL, "maker")
    log.make(StreamSettings(replicas, 1 << 30))
    log.close()


if __name__ == "__main__":
    addresses, name, path = sys.argv[1:]
    own(Servers([split_address(one) for one in addresses.split(",")]), name, Path(path))
