"""What was acknowledged is there after ``kill -9``, once and in order."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from broker.storage.rocksdb.store import RocksStore
from broker.storage.store import LogShard

ROOT = Path(__file__).parents[3]
LOG = LogShard(16)

PUBLISH = """
import asyncio, os, sys
from pathlib import Path
from broker.core.stream import StreamRecord
from broker.storage.rocksdb.store import RocksStore
from broker.storage.store import LogShard
from broker.storage.writer import Writer

LOG = LogShard(16)

async def publish(directory, durability, number):
    store = RocksStore(Path(directory), durability)
    writer = Writer(store, asyncio.get_running_loop())
    os.write(1, b"ready\\n")
    acknowledged = number

    def acknowledge(error, upto):
        nonlocal acknowledged
        os.write(1, b"".join(b"%d\\n" % n for n in range(acknowledged, upto)))
        acknowledged = upto

    while True:
        while number < acknowledged + 300:
            for _ in range(10):
                payload = b"%d" % number
                writer.append(LOG, StreamRecord(number, "t", payload, 1, False, "c"))
                writer.put(b"latest", payload)
                number += 1
            writer.when_committed(lambda error, upto=number: acknowledge(error, upto))
            if number % 100 == 0:
                held = store.range_of(LOG)
                parts = list(store.directory(LOG, max(0, held.next_offset - 200))) or [None]
                merge = lambda parts=parts: store.merge(LOG, parts[0].first_offset, parts[-1].next_offset)
                writer.call(merge, lambda error: None)
            await asyncio.sleep(0)
        await asyncio.sleep(0)

asyncio.run(publish(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def publish_until_killed(
    directory: Path, durability: str, first: int, acknowledgements: int
) -> int:
    """The last number acknowledged before the process was killed, after so many acknowledgements."""
    command = [sys.executable, "-c", PUBLISH, str(directory), durability, str(first)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as publisher:
        assert publisher.stdout is not None
        assert publisher.stdout.readline() == b"ready\n"
        for _ in range(acknowledgements):
            publisher.stdout.readline()
        publisher.send_signal(signal.SIGKILL)
        rest = publisher.stdout.read().split(b"\n")[:-1]
        publisher.wait()
    return first + acknowledgements + len(rest) - 1


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_nothing_acknowledged_is_lost_or_doubled_by_kills(tmp_path: Path, durability: str) -> None:
    chance = random.Random(7)
    expected: list[int] = []
    for _ in range(4):
        acknowledged = publish_until_killed(
            tmp_path, durability, len(expected), chance.randrange(1, 4000)
        )
        store = RocksStore(tmp_path)
        found = [(offset, int(kept.payload)) for offset, kept in store.read(LOG, 0, 10_000_000)]
        assert found == list(zip(range(len(found)), count(), strict=False))
        assert len(found) > acknowledged
        assert store.get(b"latest") == b"%d" % found[-1][1]
        expected = [number for _, number in found]
        store.close()
