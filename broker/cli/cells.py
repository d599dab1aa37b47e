"""``sluice cells resize``: another number of processes for the data of a broker that does not run."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from broker.cli.command import Call, command
from broker.cli.errors import no_heading
from broker.cli.output import print_line, say
from broker.cli.run import count_of
from broker.core.kinds import counted


def add_to(commands: typer.Typer) -> None:
    """Add the command to the group of cells."""

    @command(commands, "resize", is_local=True)
    def resize(
        call: Call,
        number: Annotated[
            str,
            typer.Argument(
                metavar="N|auto", help="Number of processes, up to 64; auto: as many as processors."
            ),
        ],
        dry_run: Annotated[
            bool, typer.Option("--dry-run", help="Show what moves, and change nothing.")
        ] = False,
    ) -> None:
        """Change the number of cells of a broker that does not run.

        Sessions move to the cell that has their client from now on, with all that waits for them. A change that was cut
        off is continued.
        """
        from broker.app.resize import resized
        from broker.core.process import keep_files_private

        count = count_of(number, "N")
        keep_files_private()
        with no_heading():
            plan = resized(call.data_dir.resolve(), count, os.environ, say, dry_run=dry_run)
        answer = {
            "dry_run": dry_run,
            "data_dir": str(call.data_dir),
            "before": plan.before,
            "after": plan.after,
            "sessions": plan.sessions,
            "messages": plan.messages,
            "bytes": plan.size_bytes,
            "moves": [move._asdict() for move in plan.moves],
        }

        def show(_: object) -> None:
            for move in plan.moves:
                print_line(
                    f"    cell {move.source} to {move.target}: {counted(move.sessions, 'session')}, "
                    f"{counted(move.messages, 'message')}, {move.size_bytes:,} bytes"
                )
            state = f"{counted(plan.before, 'cell')} can become" if dry_run else "now"
            print_line(f"{call.data_dir}: {state} {plan.after}")

        call.show(answer, show)
