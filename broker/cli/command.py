"""Commands over the management API: the options they share, and one run of such a command."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import cached_property
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Concatenate, Final, Generic, ParamSpec

import typer

from broker.cli import exit_codes
from broker.cli.client import ApiClient
from broker.cli.errors import CommandError, checking, hinting
from broker.cli.output import (
    effect_lines,
    print_columns,
    print_effect,
    print_json,
    print_line,
    print_members,
    say,
)
from broker.cli.target import Target, find_target
from broker.core.resources import LONG_S as LONG_S  # for commands that are not declared
from broker.core.resources import SLOW_S as SLOW_S

DATA_DIR_VARIABLE: Final = "SLUICE_DATA_DIR"
# The broker's directory where no option names one.
DATA_DIR: Final = Path("data")
_PAGE: Final = 1000


def _remember_format(context: typer.Context, value: str) -> str:
    """Errors are printed in the chosen format too, also those raised far from the option."""
    if value not in ("table", "json"):
        raise typer.BadParameter(f"{value!r} is not an output format; choose table or json")
    chosen = context.find_root().ensure_object(dict)
    chosen["format"] = value if value == "json" else chosen.get("format", value)
    return value


def _remember_json(context: typer.Context, value: bool) -> bool:
    if value:
        context.find_root().ensure_object(dict)["format"] = "json"
    return value


DataDirOption = Annotated[
    Path,
    typer.Option(
        "--data-dir", envvar=DATA_DIR_VARIABLE, help="The broker's directory.", show_default="data"
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url", help="Address of the management API; else SLUICE_URL, else the node of --data-dir."
    ),
]
OutputOption = Annotated[
    str,
    typer.Option(
        "-o", "--output", help="table, or json.", callback=_remember_format, metavar="FORMAT"
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="As JSON, like -o json.", callback=_remember_json)
]
LimitOption = Annotated[int, typer.Option("--limit", min=1, help="Maximum number of rows.")]
_DRY_RUN: Final = Annotated[
    bool, typer.Option("--dry-run", help="Check, and print the effect; change nothing.")
]
_YES: Final = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
P = ParamSpec("P")
ApiFunction = Callable[Concatenate["Call", P], None]


class Call:
    """One run of a command: the broker it talks to, and how it prints."""

    def __init__(
        self,
        url: str | None,
        data_dir: Path,
        *,
        is_json: bool,
        timeout_s: float,
        yes: bool,
        words: Sequence[str],
        is_dry: bool = False,
    ) -> None:
        self.url = url
        self.data_dir = data_dir
        self.is_json = is_json
        self.is_dry = is_dry
        self.timeout_s = timeout_s
        self._yes = yes
        self._words = words

    @property
    def target(self) -> Target:
        """The address and token of the broker that the options name."""
        return find_target(self.url, self.data_dir, os.environ)

    @cached_property
    def api(self) -> ApiClient:
        """A client for that broker, closed after the command."""
        return ApiClient(self.target, self.timeout_s, is_dry=self.is_dry)

    def close(self) -> None:
        """Close the client, if the command used one."""
        if "api" in self.__dict__:
            self.api.close()

    def show(self, answer: Any, text: str | Callable[[Any], object] = print_members) -> None:
        """Print an answer as JSON or for a terminal: as this line, or by this function. A dry run prints effects."""
        if self.is_dry:
            return
        if self.is_json:
            print_json(answer)
        elif isinstance(text, str):
            print_line(text)
        else:
            text(answer)

    def show_effects(self, *, as_json: bool) -> None:
        """Print what a dry run would have changed."""
        if as_json:
            print_json({"items": [effect for _, effect in self.api.effects]})
            return
        for path, effect in self.api.effects:
            print_effect(path, effect)

    def show_rows(
        self, answer: Mapping[str, Any], columns: Sequence[str] | Mapping[str, str]
    ) -> None:
        """Print a list as JSON or as a table. ``columns`` are members, or headings with their members."""
        if any("cell" in row for row in answer["items"]):  # the broker has several
            columns = (
                {**columns, "cell": "cell"} if isinstance(columns, Mapping) else [*columns, "cell"]
            )
        self.show(answer, lambda answer: print_columns(answer["items"], columns))
        for missing in answer.get("incomplete", ()) if not self.is_json else ():
            say(f"cell {missing['cell']} is missing: {missing['why']}")
        if not self.is_json and (
            answer.get("next") or answer.get("waiting", 0) > len(answer["items"])
        ):
            say("there are more; --limit shows more of them")

    def items(self, path: str, **filters: Any) -> dict[str, Any]:
        """A whole list of the API. Filters that are None do not matter."""
        items = list(self.api.items(path, **_query(filters)))
        return {"items": items, "next": None, "total": len(items), "total_is_estimate": False}

    def page(self, path: str, limit: int, **filters: Any) -> dict[str, Any]:
        """The first rows of a list, page by page."""
        wanted = _query(filters)
        items: list[dict[str, Any]] = []
        while True:
            page = self.api.get(path, limit=min(_PAGE, limit - len(items)), **wanted)
            items += page["items"]
            wanted["cursor"] = page["next"]
            if page["next"] is None or len(items) >= limit:
                return {**page, "items": items}

    def confirm(self, question: str, requests: Sequence[tuple[str, str, Any]]) -> None:
        """Ask on a terminal, after the effects of these requests, each with its method, path and body; elsewhere
        refuse unless ``--yes`` was given."""
        if self._yes:
            return
        if not sys.stdin.isatty():
            raise CommandError(
                "there is no terminal to ask on; expected --yes",
                exit_codes.USAGE,
                hint=shlex.join(["sluice", *self._words, "--yes"]),
            )
        for method, path, body in requests:
            effect = self.api.effect_of(method, path, body)
            for line in (*effect_lines(effect), f"  {effect['summary']}"):
                say(line)
        if not typer.confirm(question, err=True):
            raise CommandError("nothing was changed")


def renamed(value: Any, earlier: Any, was: str, now: str) -> Any:
    """The value of an option, which its earlier name may give, with a warning."""
    if earlier is None:
        return value
    say(f"warning: {was} is now {now}; {was} will be removed in the next release")
    return earlier


def _query(filters: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in filters.items()
        if value is not None
    }


class _ApiCommand(Generic[P]):
    """A function as a command: it gets a ``Call`` in place of the options that all such commands share."""

    def __init__(
        self,
        function: ApiFunction[P],
        *,
        known: str,
        timeout_s: float,
        confirms: bool,
        is_check: bool,
        is_local: bool,
        writes: bool,
    ) -> None:
        self._writes = writes
        self._function = function
        self._known = known
        self._timeout_s = timeout_s
        self._confirms = confirms
        self._is_check = is_check
        self._is_local = is_local
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        self.__annotations__: dict[str, Any] = {}  # typer takes all types from the signature

    @property
    def __signature__(self) -> Signature:
        """The parameters that typer reads: those of the function, then the shared ones. Evaluated when they are read,
        since most runs of the program need one command of a hundred."""
        own = list(signature(self._function, eval_str=True).parameters.values())[1:]
        shared: list[tuple[str, Any, Any]] = [("context", typer.Context, Parameter.empty)]
        shared += [("yes", _YES, False)] if self._confirms else []
        shared += [("is_dry", _DRY_RUN, False)] if self._writes else []
        shared += [] if self._is_local else [("url", UrlOption, None)]
        shared += [
            ("data_dir", DataDirOption, DATA_DIR),
            ("output", OutputOption, "table"),
            ("as_json", JsonOption, False),
        ]
        added = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for name, annotation, default in shared
        ]
        return Signature(
            [*(parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in own), *added]
        )

    def __call__(
        self,
        *,
        context: typer.Context,
        data_dir: Path,
        output: str,
        as_json: bool,
        url: str | None = None,
        yes: bool = False,
        is_dry: bool = False,
        **values: Any,
    ) -> None:
        words = context.find_root().ensure_object(dict).get("words", ())
        is_json = as_json or output == "json"
        call = Call(
            url,
            data_dir,
            is_json=is_json or is_dry,
            timeout_s=self._timeout_s,
            yes=yes or is_dry,
            words=words,
            is_dry=is_dry,
        )
        with ExitStack() as stack:
            stack.enter_context(closing(call))
            if self._known:
                stack.enter_context(hinting(exit_codes.NOT_FOUND, self._known))
            if self._is_check:
                stack.enter_context(checking())
            self._function(call, **values)  # type: ignore[call-arg]  # typer read them from the function's own signature
            if is_dry:
                call.show_effects(as_json=is_json)


def api_command(
    *,
    known: str = "",
    timeout_s: float = 30,
    confirms: bool = False,
    is_check: bool = False,
    is_local: bool = False,
    writes: bool = False,
) -> Callable[[ApiFunction[P]], _ApiCommand[P]]:
    """Make a command of a function whose first parameter is a ``Call``.

    Args:
        known: The command that lists what exists, a hint when something does not.
        timeout_s: Timeout of each call of the API.
        confirms: It has ``--yes``, and asks by ``Call.confirm``.
        is_check: It asks the broker whether something is right; "no" is exit code 7.
        is_local: It talks to no broker.
        writes: It changes objects, and has ``--dry-run``.
    """
    return lambda function: _ApiCommand(
        function,
        known=known,
        timeout_s=timeout_s,
        confirms=confirms,
        is_check=is_check,
        is_local=is_local,
        writes=writes,
    )


def command(
    group: typer.Typer, name: str, *, help: str | None = None, **how: Any
) -> Callable[[ApiFunction[P]], ApiFunction[P]]:
    """Add a command to a group; keywords as of ``api_command``. Gives back the function, for other commands to call."""

    def add(function: ApiFunction[P]) -> ApiFunction[P]:
        group.command(name, help=help)(api_command(**how)(function))
        return function

    return add
