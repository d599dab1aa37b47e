"""A change of the number of cells that is killed at every step, as a process: each time the rest is made, and the
result compared with that of a change that was not killed.

Arguments: a data directory, a directory to work in, and the number of cells. Prints the number of kills.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from broker.cluster.directories import cell_directory, kept_count
from broker.cluster.resize import Resize
from broker.storage.rocksdb.store import RocksStore

# What has names that are made at random.
_RANDOM = (b"klinks/", b"kvalues/node/origin")
Content = list[dict[bytes, bytes]]


def _killed_after(steps: int) -> None:
    """End this process as kill -9 does, behind so many steps that change something on disk."""
    left = [steps]

    def stepping(change: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **named: Any) -> Any:
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return change(*arguments, **named)

        return step

    RocksStore.commit = stepping(RocksStore.commit)  # type: ignore[method-assign]
    for name in ("replace", "unlink", "mkdir"):
        setattr(Path, name, stepping(getattr(Path, name)))
    shutil.rmtree = stepping(shutil.rmtree)  # type: ignore[assignment]


def _in_child(act: Callable[[], None]) -> int:
    """Run something in a process of its own; its status as ``os.wait`` gives it."""
    child = os.fork()
    if not child:
        try:
            act()
        except Exception as error:  # noqa: BLE001  the parent reports it
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def _resize(data_dir: Path, count: int) -> None:
    with Resize(data_dir, count) as change:
        change.plan()
        change.run()


def _content(data_dir: Path) -> Content:
    """All that the stores of a data directory hold. They are opened in a process of its own: RocksDB has threads,
    which a later child would lack."""
    file = data_dir.with_suffix(".content")

    def write() -> None:
        file.write_bytes(pickle.dumps(_read(data_dir)))

    assert not _in_child(write)
    content: Content = pickle.loads(file.read_bytes())
    return content


def _read(data_dir: Path) -> Content:
    stores = []
    for cell in range(kept_count(data_dir) or 0):
        store = RocksStore(cell_directory(data_dir, cell))
        entries = store.entries(messages=True)
        stores.append({key: value for key, value in entries if not key.startswith(_RANDOM)})
        store.close()
    assert not (data_dir / "cells" / "change").exists()
    return stores


def _difference(one: Content, other: Content) -> str:
    for cell, (left, right) in enumerate(zip(one, other, strict=True)):
        for key in sorted(left.keys() | right.keys()):
            if left.get(key) != right.get(key):
                return f"cell {cell}: {key!r}: {left.get(key)!r}, {right.get(key)!r}"
    return ""


def main() -> int:
    data_dir, work, count = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    whole = work / "whole"
    shutil.copytree(data_dir, whole)
    assert not _in_child(lambda: _resize(whole, count))
    expected = _content(whole)
    steps = 0
    while True:
        cut_off = work / f"cut-off-{steps}"
        shutil.copytree(data_dir, cut_off)

        def killed(cut_off: Path = cut_off, steps: int = steps) -> None:
            _killed_after(steps)
            _resize(cut_off, count)

        status = _in_child(killed)
        if status == 0:
            break
        assert os.WIFSIGNALED(status), (steps, status)
        assert not _in_child(lambda cut_off=cut_off: _resize(cut_off, count)), steps  # type: ignore[misc]
        assert not (difference := _difference(expected, _content(cut_off))), (steps, difference)
        shutil.rmtree(cut_off)
        steps += 1
    print(steps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
