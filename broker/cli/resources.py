"""The commands of live resources, from their declarations (``broker.core.resources``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from inspect import Parameter as Argument
from inspect import Signature
from math import isinf
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote, urlencode

import typer

from broker.cli import exit_codes
from broker.cli.command import Call, LimitOption, command, renamed
from broker.cli.errors import CommandError
from broker.cli.files import duration_s
from broker.cli.jobs import follow
from broker.cli.output import print_line, print_members
from broker.core.kinds import counted, load, plural
from broker.core.resources import Command, Parameter, Resource, Verb

DetachOption = Annotated[
    bool, typer.Option("--detach", help="Print the job's identifier and do not wait.")
]
DryPlanOption = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be changed; change nothing.")
]
_METAVARS: Final = {
    "broker.config.places:Place": "PLACE",
    "broker.config.units:Duration": "DURATION",
    "duration": "DURATION",
    "pairs": "NAME=VALUE",
    "record": "SHARD/OFFSET",
}
# Type of an option for a type that a declaration names.
_TYPES: Final = dict.fromkeys(("duration", "name", "pairs", "pattern", "record", "time"), str)


def add_commands(group: typer.Typer, resource: Resource) -> None:
    """Add the commands of a resource to its group."""
    for verb in resource.verbs:
        if verb.command is not None:
            function: Any = _Function(resource, verb, verb.command)  # typer reads its signature
            command(
                group,
                verb.word,
                help=function.help,
                known=verb.command.known
                or (resource.known if "{" in verb.path or verb.exists else ""),
                timeout_s=verb.command.timeout_s,
                confirms=bool(verb.command.question),
                writes=verb.may_be_dry and not verb.command.counts,
            )(function)


class _Function:
    """The function of a command: one request, and what is printed of its answer."""

    def __init__(self, resource: Resource, verb: Verb, command: Command) -> None:
        self._resource = resource
        self._verb = verb
        self._command = command
        self.__name__ = verb.word
        self.help = command.help or verb.text.replace("`", "")

    @property
    def __signature__(self) -> Signature:
        """The parameters that typer reads, worked out for the one command of a hundred that runs."""
        arguments = [Argument("call", Argument.POSITIONAL_OR_KEYWORD, annotation=Call)]
        offered = [parameter for parameter in self._parameters if parameter.option is not None]
        arguments += [_argument(parameter) for parameter in offered]
        arguments += [
            _argument(replace(parameter, option=parameter.old), hidden=True)
            for parameter in offered
            if parameter.old
        ]
        job = self._verb.job
        further = (
            [("plan_only", DryPlanOption, False)] if job is not None and job.shows_plan else []
        )
        further += [("detach", DetachOption, False)] if self._command.follows else []
        arguments += [
            Argument(name, Argument.KEYWORD_ONLY, annotation=annotation, default=default)
            for name, annotation, default in further
        ]
        if self._has_limit:
            default = self._command.limit
            arguments.append(
                Argument("limit", Argument.KEYWORD_ONLY, annotation=LimitOption, default=default)
            )
        return Signature(arguments)

    @property
    def _parameters(self) -> list[Parameter]:
        return [*self._verb.takes, *self._verb.members]

    @property
    def _has_limit(self) -> bool:
        return self._verb.is_paged and self._command.limit is not None

    def __call__(
        self, call: Call, plan_only: bool = False, detach: bool = False, **arguments: Any
    ) -> None:
        verb = self._verb
        # else it is a parameter of the verb, if anything
        limit = arguments.pop("limit") if self._has_limit else 0
        for parameter in self._parameters:
            if parameter.old:
                arguments[parameter.key] = renamed(
                    arguments[parameter.key],
                    arguments[f"old_{parameter.key}"],
                    parameter.old,
                    str(parameter.option),
                )
        values = {
            parameter.name: _sent(parameter, arguments.get(parameter.key))
            for parameter in self._parameters
        }
        values = {name: value for name, value in values.items() if value is not None}
        path = f"{self._resource.path}{verb.path}".replace(":path}", "}")
        in_path = {parameter.name for parameter in verb.takes if f"{{{parameter.name}}}" in path}
        place = path.format_map({name: quote(str(values[name]), safe="") for name in in_path})
        query = {
            parameter.name: values[parameter.name]
            for parameter in verb.takes
            if parameter.name in values and parameter.name not in in_path
        }
        if verb.is_paged:
            self._show(
                call,
                call.page(place, limit, **query) if limit else call.items(place, **query),
                values,
            )
        elif verb.method == "GET":
            self._show(call, call.api.get(place, **query), values)
        else:
            query |= {"dry_run": "true"} if plan_only else {}
            place += f"?{urlencode(query, doseq=True)}" if query else ""
            if self._command.follows:
                self._follow(call, place, values, detach=detach)
            else:
                self._change(call, place, values)

    def _follow(self, call: Call, place: str, values: Mapping[str, Any], *, detach: bool) -> None:
        """Start a job and wait for its end, or show what a dry run would do."""
        text = load(self._command.show)
        answer = call.api.post(place, self._body(values), prefer="respond-async")
        if "progress" in answer:
            follow(call, answer, self._command.follows, detach, text)
        else:
            call.show(answer, lambda report: print_line(text(report)))

    def _body(self, values: Mapping[str, Any]) -> dict[str, Any] | None:
        members = self._verb.members
        return (
            {
                parameter.name: values[parameter.name]
                for parameter in members
                if parameter.name in values
            }
            if members
            else None
        )

    def _change(self, call: Call, place: str, values: dict[str, Any]) -> None:
        verb = self._verb
        command = self._command
        body = self._body(values)
        many = next((value for value in values.values() if isinstance(value, list)), [])
        number = len(many)
        if command.counts and body is not None:
            if command.needs and not any(
                value for value in body.values() if not isinstance(value, bool)
            ):
                raise CommandError(
                    command.needs, exit_codes.USAGE, hint=f"sluice {self._resource.commands} ls"
                )
            answer = call.api.send(verb.method, place, {**body, "dry_run": True})
            number = answer[command.counts]
            if body.get("dry_run") or not number:
                self._show(call, answer, values)
                return
        if command.question:
            name = self._resource.name
            count = counted(number, name) if many or command.counts else f"all {plural(name)}"
            question = command.question.format(**values, count=count)
            call.confirm(question, [(verb.method, place, body)])
        self._show(call, call.api.send(verb.method, place, body), values)

    def _show(self, call: Call, answer: Any, values: Mapping[str, Any]) -> None:
        command = self._command
        if call.is_dry:
            return  # the effects are printed, and the answer is one
        if answer is None and command.done:
            call.show({}, command.done.format(**values))
        elif answer is None:
            name = next(iter(values.values()))
            call.show({"removed": [name]}, f"{self._resource.name} {name} removed")
        elif command.columns:
            call.show_rows(
                {"items": answer[command.rows], "next": None} if command.rows else answer,
                command.columns,
            )
        elif command.done:
            call.show(answer, command.done.format(**{**answer, **values}))
        else:
            call.show(answer, load(command.show) if command.show else print_members)
        if command.check:
            load(command.check)(answer)


def _argument(parameter: Parameter, *, hidden: bool = False) -> Argument:
    """A parameter as typer reads it; a hidden one is an earlier name of an option."""
    declared = parameter.type
    is_model = isinstance(declared, str) and ":" in declared
    kind: Any = str if is_model else _TYPES.get(declared, declared)
    kind = Literal.__getitem__(declared) if isinstance(declared, tuple) else kind
    kind = list[kind] if parameter.many else kind
    default = None if is_model else parameter.default  # the API's own
    default = default if parameter.offered is None else parameter.offered
    text = parameter.help or parameter.text.replace("`", "")
    if parameter.is_argument:
        info: Any = typer.Argument(help=text, metavar=parameter.option or None)
    else:
        words = (parameter.option or f"--{parameter.name.replace('_', '-')}").split()
        metavar = _METAVARS.get(declared) if words[-1].startswith("-") else words.pop()
        bounds: dict[str, Any] = (
            {"min": parameter.least, "max": parameter.most} if declared in (int, float) else {}
        )
        info = typer.Option(*words, help=text, metavar=metavar, hidden=hidden, **bounds)
    annotation: Any = Annotated[
        kind if default is not None or parameter.is_required else kind | None, info
    ]
    return Argument(
        f"old_{parameter.key}" if hidden else parameter.key,
        Argument.KEYWORD_ONLY,
        annotation=annotation,
        default=Argument.empty if parameter.is_required else default,
    )


def _sent(parameter: Parameter, value: Any) -> Any:
    """A value as the API takes it."""
    if parameter.type != "duration" or value is None:
        return value
    option = parameter.option or f"--{parameter.name}"
    seconds = duration_s(value, option)
    if isinf(seconds):
        raise CommandError(f"{option}: expected a finite duration", exit_codes.USAGE)
    return int(seconds)
