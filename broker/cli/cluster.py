"""``sluice cluster init`` and ``join``, which make machines a cluster with two commands on each; its state, and cells
that move."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from broker.cli import exit_codes
from broker.cli.client import name_path
from broker.cli.command import Call, command
from broker.cli.errors import CommandError, no_heading
from broker.cli.jobs import follow
from broker.cli.output import print_columns, print_line, say
from broker.cli.resources import DetachOption
from broker.core.kinds import counted

_COUNTED: Final = ("session", "message")


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
        add: Annotated[
            list[str] | None,
            typer.Option(
                metavar="NAME=HOST",
                help="A machine that comes to a cluster that runs: it gets cells with 'sluice cluster move'.",
            ),
        ] = None,
        data_from: Annotated[
            str,
            typer.Option(
                metavar="NAME",
                help="The machine that comes with the data of a broker without a cluster; the first one by name.",
            ),
        ] = "",
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
        writes files with new certificates, and with machines that are added. Keep that file where no broker is: it
        makes machines of the cluster.
        """
        from broker.cluster.founding import found

        hosts: dict[str, str] = {}
        added = []
        for text in (*machine, *(add or ())):
            option = "--machine" if len(hosts) < len(machine) else "--add"
            short, _, host = text.partition("=")
            if not host:
                raise CommandError(f"{option}: expected NAME=HOST, got {text!r}")
            if short in hosts:
                raise CommandError(f"{option}: {short!r} is given more than once")
            hosts[short] = host
            if option == "--add":
                added.append(short)
        with no_heading():
            files = found(name, hosts, cells, port, directory, added, data_from)
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

        The directory is empty, or that of this machine: then its certificate is renewed. With the data of a broker that
        does not run, on the machine that 'init --data-from' names, it is shared out over the cells of the cluster;
        where that was cut off, the same command continues it. Take a backup before.
        """
        from broker.app.resize import resized
        from broker.cluster.founding import join as joined
        from broker.core.process import keep_files_private

        keep_files_private()
        data_dir = call.data_dir.resolve()
        with no_heading():
            cluster, begins = joined(
                file,
                data_dir,
                lambda count: resized(data_dir, count, os.environ, say, dry_run=False),
            )
        answer = {
            "data_dir": str(data_dir),
            "cluster": cluster.name,
            "machine": cluster.machine,
            "begins_with_data": begins,
        }
        text = f"{call.data_dir}: machine {cluster.machine} of the cluster {cluster.name}"
        call.show(answer, f"{text}, which begins with this data" if begins else text)

    @command(commands, "repair", is_local=True, confirms=True)
    def repair(
        call: Call,
        cell: Annotated[
            int | None, typer.Argument(help="Number of the cell; none shows all stores.")
        ] = None,
        force: Annotated[
            bool,
            typer.Option("--force", help="Discard entries that only another machine's copy has."),
        ] = False,
    ) -> None:
        """Rebuild the commit log of a cell after NATS has lost entries that it had confirmed.

        The log is rebuilt from the cell's store or copy in this data directory, whose broker must be stopped. Run it on
        the machine with the highest position: usually the one that the cell belongs to. Without CELL, the command shows
        the position of each store, and where its log ends. Other machines copy the store once this broker runs.
        """
        from broker.app.build import section_models
        from broker.cluster.repairing import local_stores
        from broker.cluster.repairing import repair as repaired
        from broker.cluster.settings import ClusterSettings
        from broker.config.root import load_config
        from broker.core.process import keep_files_private

        keep_files_private()
        data_dir = call.data_dir.resolve()
        with no_heading():
            config = load_config(section_models(), data_dir=data_dir, environ=os.environ)
            cluster = config.get("cluster", ClusterSettings)
            if not cluster.has_nats:
                raise CommandError(
                    f"{call.data_dir}: expected a machine of a cluster with NATS, got a broker without one"
                )
            if cell is None:
                stores = local_stores(data_dir, cluster)
                rows = [
                    {
                        "cell": store.cell,
                        "kind": "copy" if store.is_copy else "store",
                        "position": store.position,
                        "log_end": store.log_end,
                        "state": "log behind" if store.is_ahead else "in order",
                    }
                    for store in stores
                ]
                columns = ("cell", "kind", "position", "log_end", "state")
                call.show({"stores": rows}, lambda _: print_columns(rows, columns))
                return
            call.confirm(f"Rebuild the log of cell {cell} from the store on this machine?", ())
            mark = repaired(data_dir, cluster, cell, force=force)
        call.show(
            {"cell": cell, "position": mark.position},
            f"cell {cell}: rebuilt its log from the store of machine {cluster.machine}; start the broker",
        )

    @command(commands, "status")
    def status(call: Call) -> None:
        """Show the machines and cells, and if all is in order.

        The exit status is 7 where a machine is away, or a cell does not run or has too few copies that follow.
        """
        machines = call.api.get("/cluster/machines")["items"]
        cells = call.api.get("/cells")["items"]
        settings = call.api.get("/config:tree")["value"]
        problems = _problems(machines, cells, settings["cluster"]["copies"])
        answer = {"machines": machines, "cells": cells, "problems": problems}

        def show(_: object) -> None:
            print_columns(machines, ("name", "state", "version", "cells", "copies", "address"))
            print_columns(cells, ("number", "state", "machine", "copies", "clients", "links"))
            if not problems:
                print_line(f"all is in order: {counted(len(machines), 'machine')}")

        call.show(answer, show)
        if problems:
            raise CommandError("; ".join(problems), exit_codes.CHECK_SAID_NO)

    @command(commands, "move", known="sluice cluster machines")
    def move(
        call: Call,
        cell: Annotated[int, typer.Argument(help="Number of the cell.")],
        name: Annotated[
            str, typer.Argument(help="The machine's name, as 'sluice cluster machines' shows it.")
        ],
        detach: DetachOption = False,
    ) -> None:
        """Move a cell to a machine that has a copy of it, and wait until it runs there.

        It stays there, also across restarts, until 'sluice cluster rebalance'. Its clients are disconnected, and
        connect again. Ctrl-C stops waiting only.
        """
        path = f"{name_path('/cluster/machines', name)}:take"
        job = call.api.post(path, {"cell": cell}, prefer="respond-async")
        follow(call, job, "move", detach, moved)


def moved(report: Mapping[str, Any]) -> str:
    """The result of an order to move cells, as a line."""
    cells = report["cells"]
    if not cells:
        return "no cell had to move"
    places = ", ".join(f"{move['cell']} to {move['machine'] or 'a machine'}" for move in cells)
    came = ", ".join(counted(report[f"{noun}s"], noun) for noun in _COUNTED)
    parts = [
        f"{counted(len(cells), 'cell')} moved ({places})",
        f"{came} came with them",
        f"{counted(report['clients'], 'client')} had to connect again",
    ]
    if report["expired_sessions"]:
        parts.append(f"{counted(report['expired_sessions'], 'session')} expired")
    lost = [counted(report[f"lost_{noun}s"], noun) for noun in _COUNTED if report[f"lost_{noun}s"]]
    parts.append(f"{' and '.join(lost)} lost" if lost else "nothing was lost")
    if report["uncounted"]:
        parts.append(f"{counted(report['uncounted'], 'cell')} taken over, and not counted")
    return "; ".join(parts)


def _problems(
    machines: Sequence[Mapping[str, Any]], cells: Sequence[Mapping[str, Any]], copies: int
) -> list[str]:
    """Sentences about what is not in order. ``copies``: machines that are to have each cell."""
    if not machines:
        return ["the broker runs on one machine"]
    problems = [f"machine {row['name']} is away" for row in machines if row["state"] == "away"]
    problems += [
        f"cell {row['number']} is {row['state']}" for row in cells if row["state"] != "running"
    ]
    followed = {row["number"]: row["copies"] for row in cells if row.get("copies") is not None}
    expected = [row for row in machines if row["state"] != "forgotten"]
    enough = min(copies, len(expected)) - 1
    problems += [
        f"cell {cell} is followed by {counted(following, 'machine')}"
        for cell, following in followed.items()
        if following < enough
    ]
    return problems
