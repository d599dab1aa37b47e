"""Kinds of objects: each package declares its own in ``kinds.py``, and everything that handles kinds reads them here.

Routes, OpenAPI, command groups, completion, sections of the configuration, reloading and the reference pages come from
the declarations. They are read without importing what a kind needs to work: models are named and loaded when used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, Final, Literal

from broker.core.objects import Reference

# Modules of kinds, in the order in which objects refer to each other: a reload adds them in this order and removes
# them in reverse.
DECLARED_IN: Final = (
    "schema_validation.kinds",
    "transforms.kinds",
    "broker.auth.kinds",
    "broker.streams.kinds",
    "bridges.resource.kinds",
    "rules.kinds",
    "bridges.spark.broker_side.kinds",
    "broker.routing.kinds",
    "broker.admin.client_kinds",
    "broker.admin.message_kinds",
    "broker.admin.kinds",
    "broker.admin.cluster_kinds",
    "broker.admin.node_kinds",
)
# Groups of the dashboard's navigation.
Menu = Literal["Traffic", "Data", "Delivery", "Diagnose", "Administration", ""]
# The cells of a broker in which an operation runs: in the one that serves the API (``here``), in that of the client
# that it names (``client``), or in all: changes of saved values, which all accept or none (``config``), lists that
# are merged (``list``), lines as they come (``lines``), answers that are added up (``sum``), what one of them has
# (``first``), and verbs that each carries out (``each``). Of saved objects that run in one cell, changes go to all and
# each is shown as its cell has it (``home``). Those on shards of streams run in the one that serves the API once the
# others have told their positions, or in the one that has a shard (``shards``). Jobs begin in all cells, each on its
# own data, and are shown as one (``jobs``). Data of clients goes to all cells, which all must take their part
# (``parts``). Objects that each cell runs are shown with the figures of all (``running``). What the one that serves the
# API does with the help of the others needs all to be there (``together``).
At = Literal[
    "here",
    "client",
    "config",
    "home",
    "list",
    "lines",
    "sum",
    "first",
    "each",
    "shards",
    "jobs",
    "parts",
    "running",
    "together",
]
# Areas of work, by which roles have rights (``broker.admin.rights``): objects that decide what happens to messages, the
# running of the broker, its settings and security, and who may use the API.
Area = Literal["authoring", "operations", "administration", "identities"]
# Effect of a scope of topics on an operation (``ui.api.topic_scope``): none, since it neither returns messages
# nor acts on topics (``none``); to the topics of its parameters, its body and the object in its path (``named``), and
# there must be one (``required``); or only a scope of all topics permits it (``any``).
Topics = Literal["none", "named", "required", "any"]
# Kinds that others name ``<type>:<name>``.
TYPED: Final = ("action", "source")
# Verbs of a kind in addition to list and get.
EVERY_VERB: Final = frozenset(("create", "put", "delete"))


@dataclass(frozen=True, slots=True)
class Switch:
    """A verb that changes the state of an object. ``{}`` in ``text`` is the object, ``an action``; ``call`` takes the
    service and a name, and gives the object, or an awaitable of it. With ``drains`` it also takes ``drain``: whether
    connections of the object may stay until they end. ``at`` says where it runs (``broker.core.resources.Verb``)."""

    verb: str
    done: str
    text: str
    call: Callable[..., Any]
    drains: bool = False
    at: At = "config"


@dataclass(frozen=True, slots=True)
class Abilities:
    """Operations of a kind in addition to list and get.

    ``verbs``: those of ``EVERY_VERB``; ``put`` creates or replaces. ``metrics``: the type of the counters, as
    ``module:Class``, which can be reset.
    ``has_probe``: a step-by-step test, of a saved object and of one that is not saved.
    """

    verbs: frozenset[str] = EVERY_VERB
    can_patch: bool = False
    can_reorder: bool = False
    metrics: str = ""
    has_probe: bool = False
    switches: Sequence[Switch] = ()


NOTHING_ELSE: Final = Abilities()
# The columns of validations and transformations.
OF_GATES: Final = {
    "name": "name",
    "enabled": "enable",
    "topics": "topics",
    "mode": "mode",
    "on failure": "failure_action",
    "matched": "metrics/matched",
    "succeeded": "metrics/succeeded",
    "failed": "metrics/failed",
    "per second": "metrics/rate",
}
# The same on the dashboard.
PAGE_OF_GATES: Final = {
    "Topics": "topics",
    "Mode": "mode",
    "Matched": "metrics/matched",
    "Failed": "metrics/failed",
    "Per second": "metrics/rate",
}
ORDERED: Final = Abilities(can_reorder=True)
ENABLE: Final = (
    Switch(
        "enable",
        "enabled",
        "Enable {}. It stays enabled after a restart.",
        lambda service, name: service.enable(name, True),
    ),
    Switch(
        "disable",
        "disabled",
        "Disable {}. It is kept, and stays disabled after a restart.",
        lambda service, name: service.enable(name, False),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kind:
    """A kind of objects.

    ``name`` is one of them in a sentence, ``word`` what commands and operations call it. ``path`` is below
    ``/api/v1/``, ``section`` the place in configuration files (None where settings hold the objects). ``models`` are
    the specs that validate one, as ``module:Class``, or a function that gives them; several where a member decides
    which. ``view`` is the type of an object as it is shown, as ``module:Class``, ``row`` that of one in a list; without
    them both are a spec with the members of the type ``read_only``. ``named_by`` is the member that names an object.
    Names of most kinds are letters, digits, ``-``, ``_`` and ``.``; with ``has_any_name`` the service checks them, and
    paths encode them.
    ``columns`` are what lists show: members, or headings with their members; ``metrics/rate`` is a member of a member.
    ``documents`` are members that hold whole documents of other languages, which are checked by their readers.
    ``command`` are the words behind ``sluice``. ``deletion`` is a sentence about what else happens when one is deleted;
    ``none_left`` is one for the command that removes the last one. ``at`` says where its operations run that change
    what is saved; others run here, or ``reads_at``, and those about counters in all cells. With ``is_summed``, each
    cell has a part of every object, and lists and answers show the figures of all added up. A reload applies changes
    of files, or a restart where ``reloads`` is false. ``put`` are members of the spec that the command ``put`` takes
    as options; one that is a secret is read from a file, standard input or the terminal. With ``holds_secrets``,
    requests and answers have secrets, of which nothing is kept. ``recorded`` is a function, as ``module:function``,
    that gives members for the audit log that the spec does not have: from an object as it is saved, and as it is
    saved then or None; it gives None where the object counts as deleted. ``menu`` is the group of the dashboard's
    navigation that has its list, and ``page_columns`` are the columns of that list with their headings, where they
    are others than ``columns``. ``area`` decides which roles may change it, and ``topics`` how scopes of topics apply
    to operations that change or try one.
    """

    name: str
    path: str
    section: str | None
    models: Sequence[str]
    about: str
    tag: str
    columns: Mapping[str, str] | Sequence[str]
    topics: Topics
    abilities: Abilities = NOTHING_ELSE
    named_by: str = "name"
    has_any_name: bool = False
    view: str = ""
    row: str = ""
    read_only: str = ""
    documents: Sequence[str] = ()
    word: str = ""
    command: str = ""
    deletion: str = ""
    none_left: str = ""
    at: At = "config"
    reads_at: At | None = None
    is_summed: bool = False
    reloads: bool = True
    put: Sequence[str] = ()
    holds_secrets: bool = False
    recorded: str = ""
    menu: Menu = ""
    page_columns: Mapping[str, str] = field(default_factory=dict)
    area: Area = "administration"

    @property
    def one(self) -> str:
        """One of them with its article: ``an access rule``."""
        return f"{'an' if self.name[0] in 'aeio' else 'a'} {self.name}"

    @property
    def many(self) -> str:
        """``access rules``."""
        return plural(self.name)

    @property
    def short(self) -> str:
        """Word for an object of the kind in commands: ``table``."""
        return self.word or self.name

    @property
    def commands(self) -> Sequence[str]:
        """The words behind ``sluice``: ``lake``, ``tables``."""
        return (self.command or plural(self.short).replace(" ", "-")).split()

    @property
    def id(self) -> str:
        """One of them in the identifiers of operations: ``AccessRule``."""
        return _identifier(self.short)

    @property
    def ids(self) -> str:
        """``AccessRules``."""
        return _identifier(plural(self.short))

    @property
    def key(self) -> str:
        """The member that has the name of an object as it is shown."""
        return self.named_by if self.has_any_name else "name"

    def spec_models(self) -> list[type[Any]]:
        """The models that validate one."""
        loaded = [load(name) for name in self.models]
        return [
            model for entry in loaded for model in ([entry] if isinstance(entry, type) else entry())
        ]

    def as_spec(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """The writable members of an object, with defaults; secrets are stars.

        Of an object of a file that no model accepts, only the name: which members are secret is not known.
        """
        forms = [_form(model, saved) for model in self.spec_models()]
        unknown = dict(saved) if self.section is None else {self.named_by: saved.get(self.named_by)}
        # The model that has most members of the object, and few others.
        return max(
            filter(None, forms),
            key=lambda form: (len(form.keys() & saved.keys()), -len(form)),
            default=unknown,
        )

    def as_recorded(
        self, saved: Mapping[str, Any] | None, then: Mapping[str, Any] | None = None
    ) -> dict[str, Any] | None:
        """The object for the audit log: its spec, and what else ``recorded`` gives; None where it does not exist.
        ``then`` is what it becomes."""
        if saved is None or not self.recorded:
            return None if saved is None else self.as_spec(saved)
        further = load(self.recorded)(saved, then)
        return None if further is None else self.as_spec(saved) | further

    def view_models(self) -> list[type[Any]]:
        """The types of an object as it is shown, and of one in a list; none where they follow from the spec."""
        return [load(name) for name in (self.view, self.row or self.view) if name]


def _form(model: Any, saved: Mapping[str, Any]) -> dict[str, Any] | None:
    names = {field.alias or name for name, field in model.model_fields.items()}
    try:
        parsed = model.model_validate(
            {name: value for name, value in saved.items() if name in names}
        )
    except ValueError:  # pydantic's, which the command line does not import
        return None
    form: dict[str, Any] = parsed.model_dump(mode="json", by_alias=True, exclude_none=True)
    return form


def plural(name: str) -> str:
    """Plural of a name: ``schema registries``, ``sources of rules``."""
    first, of, rest = name.partition(" of ")
    many = f"{first[:-1]}ies" if first.endswith("y") and not first.endswith("ey") else f"{first}s"
    return f"{many}{of}{rest}"


def counted(number: int, name: str) -> str:
    """Number and name: ``1 row``, ``2,000 rows``."""
    return f"{number:,} {name if number == 1 else plural(name)}"


def are(number: int, name: str) -> str:
    """The same as the subject of a sentence: ``1 row is``, ``2,000 rows are``."""
    return f"{counted(number, name)} {'is' if number == 1 else 'are'}"


def _identifier(words: str) -> str:
    return "".join(word.capitalize() for word in words.replace("-", " ").split())


def load(name: str) -> Any:
    """The object that ``module:attribute`` names."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


@cache
def kinds() -> Sequence[Kind]:
    """Every kind there is, in the order in which objects refer to each other."""
    return tuple(
        kind for module in DECLARED_IN for kind in getattr(import_module(module), "KINDS", ())
    )


@cache
def kinds_in_files() -> Mapping[str, Kind]:
    """The kinds of objects in the configuration by their section; also those that have operations of another kind."""
    inner = [
        kind for module in DECLARED_IN for kind in getattr(import_module(module), "INNER_KINDS", ())
    ]
    return {kind.section: kind for kind in (*kinds(), *inner) if kind.section is not None}


@cache
def object_sections() -> Sequence[str]:
    """The places in the configuration where objects stand."""
    return tuple(kinds_in_files())


def reference_of(kind: Kind, name: str, spec: Mapping[str, Any] | None) -> Reference:
    """An object as others refer to it; ``spec`` is None where it does not exist."""
    return Reference(kind.name, f"{spec['type']}:{name}" if spec and kind.name in TYPED else name)


def kind_at(path: str) -> Kind:
    """The kind at a path of the API."""
    return next(kind for kind in kinds() if kind.path == path)


def kind_named(name: str) -> Kind:
    """The kind of that name."""
    return next(kind for kind in kinds() if kind.name == name)
