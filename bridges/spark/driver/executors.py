"""Executors on other hosts: they are sent the code of their tasks, and asked what they lack before a table is filled.

The packages that are compiled must be installed there; the wheel of the source brings them. ``lacks`` runs on the
executor, where any of them may be missing, so this module imports none.
"""

from __future__ import annotations

import importlib
import re
import sys
import time
import uuid
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridges.spark.driver.spark_errors import sentence_of
from broker.core.errors import Unavailable
from broker.core.process import ROOT
from broker.core.reader_token import reader_token

if TYPE_CHECKING:
    from bridges.spark.columns.place import Place
    from bridges.spark.driver.batch import TableSpec

_SENT = ("bridges", "broker", "pyspark_sluice", "rules", "schema_validation", "transforms")
# Beginning of files that executors must see and write; the end is that of other files of a table, so that
# cleaning removes what a driver that was killed has left.
PROBE = "probe-"
_COMPILED = ("pyarrow", "numpy", "msgspec")
_START_S = 10.0
_SETTLED_S = 1.0
# Longest wait for the first executor, and time without a further one after which all are there.
_POLL_S = 0.1
_FREE = "Try: workers with free cores and memory for spark.executor.cores and spark.executor.memory, which reach"
_ANSWER_S = 5.0
_ROUNDS = 3
_SHOWN = 3
_MINIMUM = re.compile(r"([\w.-]+)(?:\[[^]]*\])?>=([\d.]+)")


class ExecutorsLack(Unavailable):
    """Executors cannot fill a table; ``sentences`` say which one lacks what."""

    def __init__(self, sentences: list[str]) -> None:
        self.sentences = sentences
        more = len(sentences) - _SHOWN
        super().__init__(
            " ".join([*sentences[:_SHOWN], *([f"There are {more} more."] if more > 0 else [])])
        )


@dataclass(frozen=True, slots=True)
class Needs:
    """Needs of a table's tasks: modules, minimum versions, the place with the driver's probe, the stream."""

    modules: tuple[str, ...]
    versions: dict[str, str]
    place: tuple[str, dict[str, str]] = field(repr=False)
    probe: str
    url: str
    token: str
    stream: str


def send_code(context: Any, directory: Path) -> None:
    """Give executors on other hosts this version's Python code."""
    archive = directory / "sluice.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for path in (path for package in _SENT for path in (ROOT / package).rglob("*.py")):
            file.write(path, path.relative_to(ROOT))
    context.addPyFile(str(archive))


@dataclass(slots=True)
class Executors:
    """The executors of a session, and which of them were found to have what which table needs."""

    session: Any
    url: str
    token: str
    _passed: set[tuple[str, str]] = field(default_factory=set)

    @property
    def are_local(self) -> bool:
        """True if there is only the driver."""
        return bool(self.session.sparkContext._jsc.isLocal())

    def check(self, spec: TableSpec) -> None:
        """Ask the executors that were not asked yet for this table.

        Raises:
            ExecutorsLack: one lacks something, or none has started.
        """
        place = spec.place
        waiting = {
            executor for executor in self._started() if (executor, place.url) not in self._passed
        }
        probe = f"{PROBE}{uuid.uuid4().hex}.parquet"
        needs = Needs(
            (
                *_COMPILED,
                "bridges.spark.tasks.mapping",
                *(["bridges.spark.tasks.rule_run"] if spec.rule else []),
            ),
            _minimum_versions(),
            (place.url, dict(place.options)),
            probe,
            self.url,
            reader_token(self.token, spec.binding.stream),
            spec.binding.stream,
        )
        for _ in range(_ROUNDS):
            if not waiting:
                return
            tasks = len(self._identifiers())
            _write(place, probe)
            try:
                answers = self._ask(needs, tasks)
            finally:
                _remove(place, probe, tasks)
            if lacking := sorted(
                {f"host {host!r}: {lack}" for host, lacks in answers.values() for lack in lacks}
            ):
                raise ExecutorsLack(lacking)
            self._passed |= {(executor, place.url) for executor in answers}
            waiting -= answers.keys()

    def check_any(self) -> None:
        """Raise ``ExecutorsLack`` unless there is an executor."""
        if not self._identifiers():
            raise ExecutorsLack(
                [f"no executor of {self.session.sparkContext.master} is left. {self._remedy}"]
            )

    @property
    def _remedy(self) -> str:
        return (
            f"{_FREE} the driver at {self.session.sparkContext.getConf().get('spark.driver.host')}."
        )

    def _started(self) -> set[str]:
        """The identifiers of all executors, once there is one and no more come."""
        began = changed = time.monotonic()
        identifiers = self._identifiers()
        while not self.are_local and (not identifiers or time.monotonic() - changed < _SETTLED_S):
            if not identifiers and time.monotonic() - began > _START_S:
                master = self.session.sparkContext.master
                raise ExecutorsLack(
                    [f"no executor of {master} has started after {_START_S:g} s. {self._remedy}"]
                )
            time.sleep(_POLL_S)
            before = identifiers
            identifiers = self._identifiers()
            changed = changed if identifiers == before else time.monotonic()
        return identifiers

    def _identifiers(self) -> set[str]:
        listed = _items(self.session.sparkContext._jsc.sc().statusStore().executorList(True))
        return {executor.id() for executor in listed if self.are_local or executor.id() != "driver"}

    def _ask(self, needs: Needs, tasks: int) -> dict[str, tuple[str, list[str]]]:
        """The host and the lacks of each executor that got a task: Spark gives each one that is idle a task."""
        from py4j.protocol import Py4JJavaError

        context = self.session.sparkContext
        group = f"sluice {needs.probe}"
        answers: dict[int, list[str]] = {}
        context.setLocalProperty("spark.jobGroup.id", group)
        try:
            asked = context.parallelize(range(tasks), tasks).map(
                lambda number: (number, lacks(needs, number))
            )
            answers = dict(asked.collect())
        except Py4JJavaError:
            pass  # which task failed where, and why, is below
        finally:
            context.setLocalProperty("spark.jobGroup.id", None)
        reports: dict[str, tuple[str, list[str]]] = {}
        for task in self._tasks(group):
            error = task.errorMessage()
            if error.isDefined():
                reports[task.executorId()] = task.host(), [sentence_of(error.get())]
            elif task.executorId() not in reports:
                reports[task.executorId()] = task.host(), answers.get(task.index(), [])
        return reports

    def _tasks(self, group: str) -> Iterator[Any]:
        context = self.session.sparkContext
        context._jsc.sc().listenerBus().waitUntilEmpty()
        store = context._jsc.sc().statusStore()
        tracker = context.statusTracker()
        for job in tracker.getJobIdsForGroup(group):
            for stage in tracker.getJobInfo(job).stageIds:
                yield from _items(store.taskList(stage, 0, 2**31 - 1))


def _items(sequence: Any) -> Iterable[Any]:
    return [sequence.apply(place) for place in range(sequence.size())]


def _minimum_versions() -> dict[str, str]:
    """By package, what this installation asks for."""
    with suppress(metadata.PackageNotFoundError):
        matches = (_MINIMUM.match(line) for line in metadata.requires("sluicemq") or ())
        return {match[1]: match[2] for match in matches if match and match[1] in _COMPILED}
    return {}


def lacks(needs: Needs, number: int) -> list[str]:
    """The sentences about what this host lacks; ``number`` is the task's."""
    return _packages(needs) or [*_store(needs, number), *_stream(needs)]


def _packages(needs: Needs) -> list[str]:
    lacks = {}
    for module in needs.modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            name = (error.name or module).partition(".")[0]
            extra = "pyspark-sluice" if name in _COMPILED else "'sluicemq[spark]'"
            lacks[name] = (
                f"package {name!r} is missing in {sys.executable}. Try: pip install {extra}"
            )
    for name, wanted in needs.versions.items():
        version = getattr(sys.modules.get(name), "__version__", wanted)
        if _numbers(version) < _numbers(wanted):
            lacks[name] = (
                f"package {name!r}: expected version {wanted} or newer, got {version}. Try: pip install -U {name}"
            )
    return list(lacks.values())


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:3]]


def _store(needs: Needs, number: int) -> list[str]:
    from bridges.spark.columns.place import Place

    place = Place(*needs.place)
    try:
        with place.files.open_input_stream(place.path_of(needs.probe)) as file:
            file.read()
        _write(place, f"{needs.probe}-{number}.parquet")
    except FileNotFoundError:
        return [
            f"it does not see the driver's files in {place}. Try: a directory that all hosts share."
        ]
    except OSError as error:
        return [sentence_of(f"OSError: {error}", place.url)]
    return []


def _write(place: Place, name: str) -> None:
    with place.files.open_output_stream(place.path_of(name)) as file:
        file.write(b"sluice")


def _remove(place: Place, probe: str, tasks: int) -> None:
    names = [probe, *(f"{probe}-{number}.parquet" for number in range(tasks))]
    with suppress(Exception):  # of three libraries
        place.remove([place.path_of(name) for name in names])


def _stream(needs: Needs) -> list[str]:
    from pyspark_sluice.client import StreamClient
    from pyspark_sluice.errors import SourceError

    try:
        StreamClient(needs.url, needs.token, needs.stream, deadline_s=_ANSWER_S).check()
    except SourceError as error:
        return [str(error)]
    return []
