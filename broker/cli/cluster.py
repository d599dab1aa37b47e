"""``sluice cluster init`` and ``join``, which make machines a cluster with two commands on each; its state, and a
machine that gives its cells away."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from broker.cli import exit_codes
from broker.cli.client import name_path
from broker.cli.command import Call, command
from broker.cli.errors import CommandError, no_heading
from broker.cli.jobs import Progress
from broker.cli.output import print_columns, print_line
from broker.core.kinds import counted

_POLL_S: Final = 0.25
# Seconds without an answer of the API, which moves with the first cell.
_SILENT_S: Final = 20.0


def add_to(commands: typer.Typer) -> None:
    """Add the commands to the group of the cluster."""

    @command(commands, "init", is_local=True)
    def init(
        call: Call,
        name: Annotated[
            str, typer.Argument(help="Name of the cluster: small letters, digits and '-'.")
        ],
        machine: Annotated[
            list[str],
            typer.Option(
                metavar="NAME=HOST",
                help="A machine, and the address or name at which the others reach it; three or more of them.",
            ),
        ],
        cells: Annotated[
            int, typer.Option(min=1, max=64, help="Number of processes of each machine.")
        ] = 1,
        port: Annotated[
            int, typer.Option(min=1, max=65535, help="Port for the other machines.")
        ] = 7946,
        directory: Annotated[
            Path, typer.Option(metavar="DIR", help="Where the files are written.")
        ] = Path(),
    ) -> None:
        """Found a cluster: write a file for each of its machines, with its certificate and its configuration.

        Bring each file to its machine, and run 'sluice cluster join' there. Run again where NAME.authority.pem is, it
        writes files with new certificates. Keep that file where no broker is: it makes machines of the cluster.
        """
        from broker.cluster.founding import found

        hosts = {}
        for text in machine:
            short, _, host = text.partition("=")
            if not host:
                raise CommandError(f"--machine: expected NAME=HOST, got {text!r}")
            if short in hosts:
                raise CommandError(f"--machine: {short!r} is given more than once")
            hosts[short] = host
        with no_heading():
            files = found(name, hosts, cells, port, directory)
        answer = {"cluster": name, "files": [str(file) for file in files]}

        def show(_: object) -> None:
            for file, short in zip(files, sorted(hosts), strict=True):
                print_line(f"    {file}: on {short}, sluice cluster join {file.name}")
            print_line(f"cluster {name}: {len(files)} machines")

        call.show(answer, show)

    @command(commands, "join", is_local=True)
    def join(
        call: Call,
        file: Annotated[Path, typer.Argument(help="The machine's file, of 'sluice cluster init'.")],
    ) -> None:
        """Make the data directory that of a machine of a cluster; then start it with 'sluice serve'.

        The directory is empty, or that of this machine: then its certificate is renewed.
        """
        from broker.cluster.founding import join as joined
        from broker.core.process import keep_files_private

        keep_files_private()
        data_dir = call.data_dir.resolve()
        with no_heading():
            cluster = joined(file, data_dir)
        answer = {
            "data_dir": str(data_dir),
            "cluster": cluster.name,
            "machine": cluster.machine,
        }
        call.show(
            answer, f"{call.data_dir}: machine {cluster.machine} of the cluster {cluster.name}"
        )

    @command(commands, "status")
    def status(call: Call) -> None:
        """Show the machines and cells, and if all is in order.

        The exit status is 7 where a machine is away, or a cell does not run or has too few copies that follow.
        """
        machines = call.api.get("/cluster/machines")["items"]
        cells = call.api.get("/cells")["items"]
        problems = _problems(machines, cells)
        answer = {"machines": machines, "cells": cells, "problems": problems}

        def show(_: object) -> None:
            print_columns(machines, ("name", "state", "version", "cells", "copies", "address"))
            print_columns(cells, ("number", "state", "machine", "copies", "clients", "links"))
            if not problems:
                print_line(f"all is in order: {counted(len(machines), 'machine')}")

        call.show(answer, show)
        if problems:
            raise CommandError("; ".join(problems), exit_codes.CHECK_SAID_NO)

    @command(commands, "drain", known="sluice cluster machines")
    def drain(
        call: Call,
        name: Annotated[
            str, typer.Argument(help="Its name, as 'sluice cluster machines' shows it.")
        ],
        detach: Annotated[
            bool, typer.Option("--detach", help="Do not wait until it has given its cells.")
        ] = False,
    ) -> None:
        """Give the cells of a machine to others, and wait until it runs none.

        It gets none back until 'sluice cluster resume'. Clients of a cell that moves are disconnected, and connect
        again. Ctrl-C stops waiting only.
        """
        row = call.api.post(f"{name_path('/cluster/machines', name)}:drain")
        if not detach:
            row = _drained(call, row)
        call.show(row, f"machine {name} is {row['state']}")


def _problems(
    machines: Sequence[Mapping[str, Any]], cells: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Sentences about what is not in order."""
    if not machines:
        return ["the broker runs on one machine"]
    problems = [f"machine {row['name']} is away" for row in machines if row["state"] == "away"]
    problems += [
        f"cell {row['number']} is {row['state']}" for row in cells if row["state"] != "running"
    ]
    followed = {row["number"]: row["copies"] for row in cells if row.get("copies") is not None}
    enough = max(followed.values(), default=0) or 1
    problems += [
        f"cell {cell} is followed by {counted(copies, 'machine')}"
        for cell, copies in followed.items()
        if copies < enough
    ]
    return problems


def _drained(call: Call, row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The row of a machine once it runs no cell. With the cell that serves the API, answers fail for a while."""
    name, total = row["name"], len(row["cells"])
    silent_s = time.monotonic()
    was_draining = False
    with Progress(total, "cells") as progress:
        # other machines see half a second later that it is draining
        while row["state"] != "drained" and not (was_draining and row["state"] == "running"):
            time.sleep(_POLL_S)
            try:
                rows = call.api.get("/cluster/machines")["items"]
            except CommandError as error:
                if time.monotonic() - silent_s > _SILENT_S:
                    hint = "ask another machine, with --url: this one may no longer run a cell"
                    raise CommandError(str(error), error.exit_code, hint=hint) from error
                continue
            silent_s = time.monotonic()
            row = next(machine for machine in rows if machine["name"] == name)
            was_draining = was_draining or row["state"] == "draining"
            if row["state"] == "away":
                raise CommandError(f"machine {name} is away: others take its cells over")
            progress.show(total - len(row["cells"]))
    return row
