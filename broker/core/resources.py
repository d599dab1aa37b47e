"""Resources: lists and verbs of live objects, each declared once as data in a module of ``DECLARED_IN``.

Routes and OpenAPI (``ui.api.resources``), commands with their options and completion (``broker.cli.resources``) and the
reference pages come from the declarations. They are read without importing what a verb needs to work: services, models
and printing functions are named, and loaded when they are used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Final, Literal

from broker.core.kinds import DECLARED_IN, Area, At, Menu, Topics

# Timeouts of commands: calls that open or close connections, and calls that read a log or many messages, in seconds.
SLOW_S: Final = 120
LONG_S: Final = 600
# The effect of an operation, by which roles permit it: a trial (``try``) saves nothing, and a ``job`` is long work.
Does = Literal["read", "change", "try", "job"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A filter of a list, an option of a verb, or a member of its body.

    ``type`` is ``str``, ``int``, ``float``, ``bool``, the allowed words, ``module:Class``, or one of these names:
    ``name`` of an object, ``pattern`` with ``*``, ``?`` and ``[abc]``, ``pairs`` (``NAME=VALUE``), ``record``
    (``SHARD/OFFSET``), ``time`` (in the service microseconds since 1970), ``duration`` (on the command line ``1d``,
    else seconds). With ``many`` it is a list of them. The service gets the value as the keyword ``keyword``, else
    ``name``.

    ``option`` are the words of the command line, as ``--connected/--away``, where they are not ``--`` and the name; a
    word behind them, as in ``--rule NAME``, is the one that the help has for the value. With ``is_argument`` it is that
    word alone; None where the command has no such option. ``help`` is its text, where it is not ``text``, and
    ``offered`` its default, where it is another. ``old`` is an earlier name of the option, which works for one release,
    with a warning. ``orders`` are the members by which a list can be sorted (``ordering``).
    """

    name: str
    text: str = ""
    type: Any = str
    many: bool = False
    default: Any = None
    is_required: bool = False
    least: float | None = None
    most: float | None = None
    longest: int | None = None
    shortest: int | None = None
    keyword: str = ""
    option: str | None = ""
    is_argument: bool = False
    help: str = ""
    offered: Any = None
    old: str = ""
    orders: Sequence[str] = ()

    @property
    def key(self) -> str:
        """The keyword of the service."""
        return self.keyword or self.name


def ordering(default: str, *members: str) -> Parameter:
    """The parameter that sorts a list by one of these members."""
    quoted = [f"`{member}`" for member in members]
    return Parameter(
        name="sort",
        default=default,
        text=f"{', '.join(quoted[:-1])} or {quoted[-1]}; with `-` in front, descending.",
        help=f"{', '.join(members)}; with - in front, descending.",
        orders=members,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Command:
    """The command of a verb, with the name ``Verb.word`` where it has none of its own.

    ``name`` is the word behind those of the group. ``help`` is its help, where it is not the text of the verb.
    ``columns`` are those of a list, which is the member ``rows`` where the answer is none; ``show`` is the function
    that prints another answer, as ``module:function``, and ``done`` the line that is printed instead, with the
    answer's members and the parameters in braces. ``check`` gets the answer once it is printed, and raises where it is
    a failure. ``question`` is asked first, with parameters and ``{count}`` in braces. ``counts`` is the member of the
    answer that a first, dry, request counts for it, and ``needs`` the error where such a request would select
    everything. ``follows`` is what a job is called whose end the command waits for; ``show`` then gives the text.
    ``known`` is the command that lists what exists. ``limit`` is the default of ``--limit``; None where a
    list is printed whole.
    """

    name: str = ""
    help: str = ""
    columns: Mapping[str, str] | Sequence[str] = ()
    show: str = ""
    done: str = ""
    check: str = ""
    question: str = ""
    counts: str = ""
    needs: str = ""
    rows: str = ""
    follows: str = ""
    known: str = ""
    limit: int | None = 100
    timeout_s: float = 30


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """The long work that a verb starts, counted in a ``unit``.

    ``plan`` is the method that counts them, from those parameters of the verb that it has: a number, or an answer with
    it as the member ``total``; without one the number is not known. Where it ``blocks``, it runs on a thread. With
    ``shows_plan`` a dry run returns that answer. ``passes`` are the members of the job that the verb gets in addition
    to its parameters.

    ``order`` is the method that makes the order of a job that may be paused and continues when the broker starts again:
    all that there is to do, from the ``plan`` and the parameters. Where it is empty, there is nothing to do, and the
    plan is the answer. The verb gets the name and ``passes``, no other parameters. With ``has_messages`` the result has
    messages, on any topic.
    """

    kind: str
    unit: str
    plan: str = ""
    total: str = ""
    blocks: bool = False
    shows_plan: bool = False
    passes: Sequence[str] = ("advance",)
    order: str = ""
    has_messages: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Verb:
    """Something to do with a resource: an operation of the API, and a command.

    ``text`` is the summary, then more. ``call`` is the method of the service, which gets the parameters and the members
    of the body as keywords. ``path`` follows that of the resource. A ``body`` is members, which make a model that
    ``body_text`` describes, or a model as ``module:Class``, or the name of a kind whose objects it has; where it
    is not a need (``needs_body``), a request may be without one. The service gets these as ``body_key``: as a mapping
    where the model is one of the API, as they were sent where they are objects of a kind. ``answer`` is the type of the
    answer as ``module:Class``. A list has the type of its ``row`` instead; with ``after``, the types of the values that
    a cursor is made of, the service gives pages, and with ``key``, the member that names an item, whole lists that are
    cut into pages. ``model`` is the name of the type of the body or the list, where it is another than that of the
    operation or the resource.

    ``media`` is the media type of an answer that the service streams, one of the type ``answer`` a line.

    ``reads`` says where a method that takes long is called: on a ``thread``, or on one ``shared`` by all requests that
    ask the same at a time; else on the event ``loop``.

    ``does`` says who may call it: ``read``, ``change``, ``try`` (nothing is saved), ``job`` (long work is started,
    paused or canceled; every verb with a ``job``). ``at`` says in which cells it runs, and how their answers are
    joined (``broker.core.kinds.At``). Only the members ``sums`` of an answer are added up, where it names some: the
    others are those of the first cell. A list with a ``key`` is merged in the order of the member ``merged_by``,
    with ``-`` in front descending, which may depend on the parameter ``by``; else one cell follows the other.
    ``absent`` are members of a row for a cell that does not answer. ``join`` is a function as ``module:function`` that
    makes one item of those that several cells have: from the merged page, the cells' pages and the parameters.
    ``effect`` is the kind that a dry run asks for its consequences; its name is the first parameter.
    ``exists`` is the method that raises for a dry run where that is not there. ``plan`` is the
    method that a dry run calls with the parameters to raise what the verb would:
    ``call`` itself where that ends by ``broker.core.objects.saving``, or one that returns the changes
    (``broker.config.root.PlannedReload``). ``done`` completes "It would be" in the summary.

    ``columns`` are those of a list's page where there is no command. ``offered`` says for which items pages offer a
    verb: ``connected`` where that member of the item is true, ``!ended`` where it is not, ``state=running|paused``
    where it is one of these; a member that an item lacks rules nothing out.

    ``changes`` is the kind of which it changes an object, for the audit log; its name is the first parameter.

    A verb of the tag ``Try`` has a deadline, and runs on a thread. Its method gets a body as it was sent, with the
    parameters in it, as its only argument; one called ``prepare_…`` runs on the event loop and returns the work.

    ``method`` is GET where it only reads, else POST. Without ``at`` it runs where the resource is. ``topics`` says how
    scopes of topics apply, where that is something else than for the resource.
    """

    id: str
    text: str
    call: str
    path: str = ""
    method: str = ""
    takes: Sequence[Parameter] = ()
    body: Sequence[Parameter] | str = ()
    body_text: str = ""
    body_key: str = "body"
    needs_body: bool = True
    answer: str = ""
    media: str = ""
    row: str = ""
    after: Sequence[type] = ()
    key: str = ""
    model: str = ""
    page_text: str = ""
    job: Job | None = None
    problems: Sequence[int] = ()
    outcome: str = "Done"
    takes_key: bool = False
    reads: Literal["loop", "thread", "shared"] = "loop"
    does: Does = "read"
    at: At | None = None
    sums: Sequence[str] = ()
    merged_by: str | Mapping[str, str] = ""
    absent: Mapping[str, Any] | None = None
    join: str = ""
    topics: Topics | None = None
    effect: str = ""
    exists: str = ""
    plan: str = ""
    done: str = "deleted"
    columns: Mapping[str, str] | Sequence[str] = ()
    offered: str = ""
    changes: str = ""
    command: Command | None = None

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "method", self.method or ("GET" if self.does == "read" else "POST")
        )

    @property
    def word(self) -> str:
        """The word of its command: ``ls``, ``show``, ``rm``, or the one at the end of the path."""
        named = self.command.name if self.command is not None else ""
        _, _, verb = self.path.replace(":path}", "}").partition(":")
        of_one = "rm" if self.method == "DELETE" else "show"
        return named or verb or ("ls" if self.row else of_one)

    @property
    def members(self) -> Sequence[Parameter]:
        """The members of its body that are declared here."""
        return () if isinstance(self.body, str) else self.body

    @property
    def may_be_dry(self) -> bool:
        """True if a dry run of it returns an effect."""
        return bool(self.effect or self.plan)

    @property
    def is_paged(self) -> bool:
        """True if its answer is a page of a list that may be long."""
        return bool(self.after or self.key)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Resource:
    """Something with an address: what it is called, which service has it, and its verbs.

    ``name`` is one of them in a sentence, ``page`` the beginning of the name of a list's type. ``service`` is where the
    API finds it, from ``ui.api.context.ApiContext`` on: ``traffic.clients``. ``commands`` are the words behind
    ``sluice``, and ``about`` the help of that group, ``alias`` another word for the last of them. ``named_by`` is the
    member that names one, for completion and for the address of its page. ``at`` is where its verbs run that say
    nothing else. ``menu`` is the group of the dashboard's navigation that has its list; without one, the search has it.
    ``area`` decides which roles may change it; the kind of the same name, where there is one, decides in its place.
    ``undone_at`` is the path of the resource that undoes its deletions.

    ``topics`` says how scopes of topics apply to its verbs; ``named`` is for those that do more than read.
    ``scoped_by`` is the method that gives the item in the path, whose members have its topics.
    """

    name: str
    path: str
    tag: str
    service: str
    commands: str
    topics: Topics
    verbs: Sequence[Verb]
    page: str = ""
    about: str = ""
    alias: str = ""
    named_by: str = ""
    at: At = "here"
    menu: Menu = ""
    area: Area = "administration"
    undone_at: str = ""
    scoped_by: str = ""

    @property
    def known(self) -> str:
        """The command that lists what exists."""
        names = [verb.word for verb in self.verbs if verb.command is not None]
        return f"sluice {self.commands} ls" if "ls" in names else ""


# The end of the text of a filter of the type ``pattern``.
PATTERN: Final = "As it is, or a pattern with `*`, `?` and `[abc]`."


def limit(default: int, text: str = "", offered: int | None = None) -> Parameter:
    """The maximum number of items in an answer that is not cut into pages."""
    return Parameter(
        name="limit",
        text=text,
        type=int,
        default=default,
        offered=offered,
        least=1,
        most=1000,
        help="Maximum number of rows.",
    )


# Number of kept messages or rows that a verb processes again.
TAKE_AGAIN: Final = (
    Parameter(
        name="limit",
        type=int,
        default=10_000,
        least=1,
        most=100_000,
        help="Maximum number of entries.",
    ),
)


def trial(
    id: str, path: str, call: str, body: str, answer: str, text: str, *takes: Parameter
) -> Verb:
    """A verb that evaluates something and saves nothing."""
    return Verb(
        id=id,
        path=path,
        call=call,
        body=body or (),
        answer=answer,
        text=text,
        takes=takes,
        does="try",
    )


@cache
def resources() -> Sequence[Resource]:
    """Every resource, in the order of the packages."""
    return tuple(
        resource
        for module in DECLARED_IN
        for resource in getattr(import_module(module), "RESOURCES", ())
    )
