"""Channels of the live connection: each with its parameters, its data and the source of the data."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter, time
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import quote, urlencode

from pydantic import BaseModel, RootModel

from broker.admin.tails import MessageTails, publishers_of
from broker.config.spec_problems import parsed
from broker.core import jsontext
from broker.core.errors import Invalid, NotFound, Problem, Unavailable
from broker.core.kinds import Kind, kinds
from broker.core.objects import Listed, Spec
from broker.core.resources import resources
from ui.api.cell_figures import joined_by_name
from ui.api.cell_jobs import together
from ui.api.cell_joins import labelled_series, parts_added
from ui.api.context import ApiContext
from ui.api.filters import FILTERS, ListFilter, state_of
from ui.api.json_bodies import plain
from ui.api.models.live import (
    ListParameters,
    LiveAlarm,
    LiveAlarms,
    LiveJobs,
    LiveList,
    LiveMetrics,
    LiveObject,
    LiveTail,
    MetricsParameters,
    NoParameters,
    ObjectParameters,
    TailParameters,
)
from ui.api.parameters import encode_cursor
from ui.api.resources import pattern_of
from ui.api.status import Status

if TYPE_CHECKING:
    from broker.observe.metrics_history import MetricsHistory
    from ui.api.cells import Faces

# Members in which kinds have the reason for an object's state, in order of preference.
_REASONS: Final = ("state_reason", "status_reason", "reason")
# Maximum bytes of all objects in the rows of a list; later rows have no object.
MAX_OBJECT_BYTES: Final = 1024 * 1024
# Share of the event loop's time that a long search may take; it pauses in between.
SEARCH_SHARE: Final = 0.02
# Objects of another cell of which this one has a part too, as a page of the API has at most.
_MOST_PARTS: Final = 1000
# Age of the oldest value of a metric in another cell that counts as its latest.
_LATEST_MS: Final = 3000
# Estimated overhead of a member in addition to its text.
_MEMBER_BYTES: Final = 150


class Source(Protocol):
    """Source of the data of a channel with its parameters, shared by all watchers. Used on the event loop."""

    lingers: bool
    """True if it resumes after a while without calls; else it is closed with its last watcher."""

    @property
    def size_bytes(self) -> int:
        """The size of the data that it keeps."""
        ...

    def delta(self) -> bytes | None:
        """The changes since the last call as a JSON object, or None.

        Raises:
            broker.core.errors.SluiceError: there is nothing more to show; the text says why.
        """
        ...

    def snapshot(self) -> bytes:
        """All that there was to show when ``delta`` was called last."""
        ...

    def close(self) -> None:
        """It is watched no more."""
        ...


class State:
    """A source over a state that can be read at any time; a delta has the members that changed."""

    lingers: bool = True

    def __init__(self, look: Callable[[], Mapping[str, Any]]) -> None:
        self._look = look
        self._members: dict[str, bytes] = {}
        self.size_bytes = 0
        self.delta()

    def delta(self) -> bytes | None:
        """The members that changed, null for one that is gone."""
        texts = self._texts()
        changed = {name: text for name, text in texts.items() if self._members.get(name) != text}
        changed |= dict.fromkeys(self._members.keys() - texts.keys(), b"null")
        self._members = texts
        self.size_bytes = sum(len(name) + len(text) + _MEMBER_BYTES for name, text in texts.items())
        return _object(changed) if changed else None

    def snapshot(self) -> bytes:
        """All members."""
        return _object(self._members)

    def close(self) -> None:
        """There is nothing to close."""

    def _texts(self) -> dict[str, bytes]:
        return {name: jsontext.encode(plain(value)) for name, value in self._look().items()}


Shown = Callable[[Listed, int, int], Sequence[Mapping[str, Any]]]


def _own(matching: Listed, start: int, end: int) -> Sequence[Mapping[str, Any]]:
    """The objects of a window as this process has them."""
    return matching[start:end]


class Rows(State):
    """The rows of a list in a window, and how many there are in all.

    A search that takes more than one step continues in a task, and its rows are shown when it ends. The first search
    shows the rows that it has found so far.
    """

    def __init__(
        self,
        wanted: ListParameters,
        objects: Callable[[], Listed],
        row: Callable[[int, Mapping[str, Any]], tuple[str, Spec]],
        shown: Shown,
    ) -> None:
        shape: Any = RootModel.__class_getitem__(FILTERS.get(wanted.kind, ListFilter))
        checked: Any = parsed(
            shape, wanted.filters, "channel lists cannot be subscribed", pointer="/filters"
        )
        self._filter: ListFilter = checked.root
        self._wanted = wanted
        self._objects = objects
        self._row = row
        self._shown = shown
        self.lingers = wanted.position == 0  # of a list that is scrolled, there are many
        self._found = objects()[:0]
        self._is_whole = False
        self._task: asyncio.Task[None] | None = None
        self._again_s = 0.0
        self._head = b""
        super().__init__(self._window)

    def delta(self) -> bytes | None:
        """The rows that changed, also when only the total did."""
        head = self._head
        changed = super().delta()
        return None if changed is None and head == self._head else self._framed(changed or b"{}")

    def snapshot(self) -> bytes:
        """All rows of the window."""
        return self._framed(super().snapshot())

    def close(self) -> None:
        """Search no more."""
        if self._task is not None:
            self._task.cancel()

    def _framed(self, rows: bytes) -> bytes:
        return b'{%b,"rows":%b}' % (self._head, rows)

    def _texts(self) -> dict[str, bytes]:
        texts = {}
        left = MAX_OBJECT_BYTES
        for name, row in self._look().items():
            text = jsontext.encode(plain(row)) if left else b""
            left = max(0, left - len(text))
            texts[name] = text if left else jsontext.encode({**row, "object": None})
        return texts

    def _window(self) -> Mapping[str, Spec]:
        if self._task is not None and self._task.done():
            self._task = self._task.result()  # None, or raises what went wrong
        if self._task is None and perf_counter() >= self._again_s:
            steps = self._filter.search(self._objects())
            first_rows = next(steps)
            more = next(steps, None)
            if more is None:
                self._found = first_rows
                self._is_whole = True
            else:
                self._found = self._found if self._is_whole else more
                self._task = asyncio.get_running_loop().create_task(self._finish(steps, more))
        self._head = jsontext.encode(
            {"total": len(self._found), "total_is_estimate": not self._is_whole}
        )[1:-1]
        start = self._wanted.position
        shown = self._shown(self._found, start, start + self._wanted.limit)
        return dict(self._row(at, spec) for at, spec in enumerate(shown, start))

    async def _finish(self, steps: Iterator[Listed], matching: Listed) -> None:
        began_s = perf_counter()
        for so_far in steps:
            matching = so_far
            await asyncio.sleep(0)
        self._found = matching
        self._is_whole = True
        self._again_s = perf_counter() + (perf_counter() - began_s) / SEARCH_SHARE


class Messages(State):
    """The messages of a tail: those since the last look, and how many there were since the first."""

    lingers: bool = False

    def __init__(
        self, tails: MessageTails, wanted: TailParameters, faces: Faces | None = None
    ) -> None:
        self._tails = tails
        self._shown = self._shown_of_others = 0
        self._tail = tails.open(
            wanted.filter,
            wanted.messages_per_s,
            wanted.bytes_per_s,
            publishers=publishers_of(pattern_of(wanted.clientid), wanted.address),
        )
        self._others = None if faces is None else faces.tailed(wanted.model_dump())
        super().__init__(self._taken)

    def close(self) -> None:
        """Close the tail."""
        self._tails.close(self._tail)
        if self._others is not None:
            self._others.close()

    def _taken(self) -> Spec:
        if not self._tail.is_open:
            raise Unavailable("the broker has closed the tail")
        messages: list[Any] = [self._tails.show(message) for message in self._tail.take()]
        self._shown += len(messages)
        status = self._tails.status(self._tail, self._shown)
        shown, skipped = status["shown"], status["skipped"]
        if self._others is not None:
            of_others = self._others.take()
            messages = sorted([*messages, *of_others], key=lambda message: str(message["at"]))
            self._shown_of_others += len(of_others)
            shown += self._shown_of_others
            skipped += self._others.skipped
        return {
            "messages": messages,
            "matched": shown + skipped,
            "shown": shown,
            "skipped": skipped,
        }


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel. ``every_s`` is the least time between two deltas. ``open`` gets the checked parameters. ``resource``
    is what it reads, by the name that rights have for it; empty where the parameter ``kind`` names it.

    Raises (``open``):
        broker.core.errors.SluiceError: there is nothing to show.
    """

    text: str
    parameters: type[BaseModel]
    data: type[Any]
    every_s: float
    open: Callable[[Any], Source]
    resource: str = ""

    def about(self, parameters: Mapping[str, Any]) -> str:
        """The kind or resource that it reads with these parameters."""
        path = parameters.get("kind")
        return self.resource or next((kind.name for kind in kinds() if kind.path == path), "node")


def channels_of(context: ApiContext) -> dict[str, Channel]:
    """The channels over what the server offers, by name."""
    objects = _Objects(context)
    faces = context.faces

    def own_status() -> Any:
        return context.status()

    status = own_status
    if faces is not None:
        (verb,) = (verb for each in resources() for verb in each.verbs if verb.id == "getStatus")
        status = faces.watched("/api/v1/status", verb.sums, own_status)

    def own_jobs() -> Any:
        return {"items": context.jobs.known()}

    jobs = own_jobs
    if faces is not None:
        jobs = faces.watched("/api/v1/jobs", ("items",), own_jobs)
    channels = {
        "status": Channel(
            "What the node is doing, as `GET /status` shows it.",
            NoParameters,
            Status,
            1.0,
            lambda _: State(status),
            "node",
        ),
        "lists": Channel(
            "The objects of a kind in a window, and how many there are.",
            ListParameters,
            LiveList,
            1.0,
            objects.list,
        ),
        "object": Channel(
            "One object, with its state.", ObjectParameters, LiveObject, 0.5, objects.one
        ),
        "jobs": Channel(
            "Jobs with their progress.",
            NoParameters,
            LiveJobs,
            0.5,
            lambda _: State(lambda: {job["id"]: job for job in together(jobs()["items"])}),
            "job",
        ),
    }
    if (history := context.history) is not None:

        def latest_of(names: Sequence[str]) -> Callable[[], Mapping[str, Any]]:
            if faces is None:
                return lambda: history.latest(names)
            return _latest_of_all(history, names, faces)

        channels["metrics"] = Channel(
            "Rates and gauges of the last second, by name of the metric.",
            MetricsParameters,
            LiveMetrics,
            0.5,
            lambda wanted: State(latest_of(wanted.names)),
            "metric",
        )
    if (alarms := context.alarms) is not None:

        def own_alarms() -> Any:
            return {"items": alarms.active()}

        active = own_alarms
        if faces is not None:
            active = faces.watched("/api/v1/alarms?limit=1000", ("items",), own_alarms)
        channels["alarms"] = Channel(
            "The active alarms. A delta has those that were raised or have changed, and null for those that cleared.",
            NoParameters,
            LiveAlarms,
            0.5,
            lambda _: State(lambda: {alarm["name"]: _alarm(alarm) for alarm in active()["items"]}),
            "alarm",
        )
    if (tails := context.tails) is not None:
        channels["tail"] = Channel(
            "Messages on the topics of a filter, sampled. A frame has those since the frame before.",
            TailParameters,
            LiveTail,
            0.5,
            lambda wanted: Messages(tails, wanted, faces),
            "message",
        )
    return channels


def _latest_of_all(
    history: MetricsHistory, names: Sequence[str], faces: Faces
) -> Callable[[], Mapping[str, Any]]:
    """A function that gives the latest values of the series of all cells, each with its cell as a label."""

    def target() -> str:
        begin_ms = round(time() * 1000) - _LATEST_MS
        query = urlencode({"from": begin_ms, "names": names}, doseq=True)
        return f"/api/v1/metrics/history?{query}"

    others = faces.latest(target)

    def look() -> Mapping[str, Any]:
        values = history.latest(names)
        for series in values.values():
            for value in series:
                value["labels"] |= {"cell": str(faces.place.number)}
        for cell, answer in sorted(others().items()):
            for series in labelled_series(answer, cell)["series"]:
                if points := [point for point in series["mean"] if point is not None]:
                    value = {"labels": series["labels"], "value": points[-1]}
                    values.setdefault(series["name"], []).append(value)
        return values

    return look


def _alarm(alarm: Mapping[str, Any]) -> Spec:
    return {member: alarm[member] for member in LiveAlarm.model_fields}


class _Objects:
    """The channels of objects."""

    def __init__(self, context: ApiContext) -> None:
        self._services: Mapping[str, Any] = context.services
        self._section_of = context.section_of
        self._kinds = {kind.path: kind for kind in kinds() if kind.path in context.services}
        self._faces = context.faces

    def list(self, wanted: ListParameters) -> Rows:
        """The rows of a kind."""
        kind = self._kind(wanted.kind)
        service = self._services[wanted.kind]
        saved = self._saved_of(kind, service)

        def row(position: int, shown: Mapping[str, Any]) -> tuple[str, Spec]:
            name = str(shown[kind.key])
            reason = next(
                (str(shown[member]) for member in _REASONS if shown.get(member) is not None), None
            )
            states = {"state": state_of(shown), "reason": reason}
            version = {"etag": shown["etag"], "fixed_by": None} if "etag" in shown else saved(name)
            return name, {"position": position, **states, **version, "object": shown}

        return Rows(wanted, self._listed(kind, service), row, self._joined(kind, wanted))

    def one(self, wanted: ObjectParameters) -> State:
        """An object."""
        kind = self._kind(wanted.kind)
        service = self._services[wanted.kind]
        saved = self._saved_of(kind, service)

        others = self._others_of(kind, lambda: f"/{quote(wanted.name, safe='')}")

        def look() -> Spec:
            elsewhere = {} if others is None else others()
            try:
                shown = service.get(wanted.name)
            except NotFound:
                parts = elsewhere.values() if kind.is_summed else ()
                whole = next(iter(parts_added(parts, kind.key)), None)
                return {"object": whole, "etag": None, "fixed_by": None}
            if kind.is_summed:
                (shown,) = parts_added([shown, *elsewhere.values()], kind.key)
            elif elsewhere:
                (shown,) = joined_by_name([dict(shown)], elsewhere, kind.key)
            return {"object": shown, **saved(wanted.name)}

        return State(look)

    def _listed(self, kind: Kind, service: Any) -> Callable[[], Listed]:
        """A function that gives all objects of a kind; of those of which each cell has a part, with the parts that
        other cells had in their latest answers."""

        def own() -> Listed:
            return Listed.of(service.list(), kind.key)

        if self._faces is None or not kind.is_summed:
            return own
        others = self._faces.latest(lambda: f"/api/v1/{kind.path}?limit={_MOST_PARTS}")

        def all_parts() -> Listed:
            here = own()
            parts: dict[str, list[Mapping[str, Any]]] = {name: [] for name in here.names}
            own_names = set(here.names)
            for answer in others().values():
                for item in answer["items"]:
                    parts.setdefault(item[kind.key], []).append(item)

            def show(name: str) -> Mapping[str, Any]:
                own_part = here.only([name]) if name in own_names else ()
                return parts_added([*own_part, *parts[name]], kind.key)[0]

            return Listed(sorted(parts), show)

        return all_parts

    def _joined(self, kind: Kind, wanted: ListParameters) -> Shown:
        """A function that gives the objects of a window, as all cells have them."""
        before = ""

        def rest() -> str:
            asked = {name: value for name, value in wanted.filters.items() if value is not None}
            asked["limit"] = wanted.limit
            if before:
                asked["cursor"] = encode_cursor(wanted.position - 1, before)
            return f"?{urlencode(asked, doseq=True)}"

        others = None if kind.is_summed else self._others_of(kind, rest)
        if others is None:
            return _own

        def joined(matching: Listed, start: int, end: int) -> Sequence[Mapping[str, Any]]:
            nonlocal before
            before = matching.names[start - 1] if 0 < start <= len(matching) else ""
            return joined_by_name(map(dict, matching[start:end]), others(), kind.key)

        return joined

    def _others_of(
        self, kind: Kind, rest: Callable[[], str]
    ) -> Callable[[], Mapping[int, Any]] | None:
        """A function that gives the latest answers of the other cells about objects of a kind, None for one that the
        first cell alone has; ``rest`` follows the path of the kind."""
        is_joined = kind.at == "home" or kind.reads_at == "running" or kind.is_summed
        if self._faces is None or not is_joined:
            return None
        return self._faces.latest(lambda: f"/api/v1/{kind.path}{rest()}")

    def _saved_of(self, kind: Kind, service: Any) -> Callable[[str], Spec]:
        """A function from a name to the version that is saved, and the file that fixes it."""
        section = self._section_of(kind)
        if section is None:
            return lambda name: {"etag": str(service.saved_version(name).etag), "fixed_by": None}
        return lambda name: {
            "etag": str(section.version(name).etag),
            "fixed_by": section.fixed_by(name),
        }

    def _kind(self, path: str) -> Kind:
        if path in self._kinds:
            return self._kinds[path]
        problem = Problem(
            f"kind: expected one of {', '.join(self._kinds)}, got {path!r}", "/parameters/kind"
        )
        raise Invalid("there is no such kind of objects", [problem])


def _object(members: Mapping[str, bytes]) -> bytes:
    return b"{%b}" % b",".join(
        b"%b:%b" % (jsontext.encode(name), text) for name, text in members.items()
    )
