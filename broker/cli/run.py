"""``sluice serve`` and ``sluice demo``: a broker in this process."""

from __future__ import annotations

import gc
import os
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from broker.cli import exit_codes
from broker.cli.command import DATA_DIR, DataDirOption
from broker.cli.errors import CommandError
from broker.cli.files import pairs

LOG_VARIABLE = "SLUICE_LOG"
LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
ADDRESS_HELP = "HOST:PORT to listen on for {}; port 0 takes any free one."


def serve(
    data_dir: DataDirOption = DATA_DIR,
    mqtt: Annotated[str | None, typer.Option("--mqtt", help=ADDRESS_HELP.format("MQTT"))] = None,
    api: Annotated[
        str | None, typer.Option("--api", help=ADDRESS_HELP.format("the management API"))
    ] = None,
    config: Annotated[
        list[Path] | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="A configuration file, or a directory of *.conf; the last wins.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting; may be given many times."),
    ] = None,
    workers: Annotated[
        str,
        typer.Option(
            "--workers",
            metavar="N|auto",
            help="Number of processes that share the clients, up to 64; auto: as many as processors.",
        ),
    ] = "1",
) -> None:
    """Run a broker until it is stopped by a signal.

    With several workers a supervisor runs as many processes, each with the sessions of its share of the clients.

    Prints one line with its addresses when it is ready.
    """
    from broker.cluster.directories import count_of_machine
    from broker.config.options import ServeOptions

    options = ServeOptions(
        data_dir=data_dir,
        mqtt=_address(mqtt, "--mqtt"),
        api=_address(api, "--api"),
        config_files=tuple(config or ()),
        overrides=_log_settings() | _overrides(settings or []),
    )
    count = count_of(workers, "--workers")
    own_count = count_of_machine(data_dir) if count == 1 else 0
    if count > 1 or own_count:  # the supervisor needs no more imports
        raise typer.Exit(import_module("broker.app.cells").serve(options, own_count or count))
    gc.disable()  # the server enables it: a start imports and creates almost no garbage
    raise typer.Exit(import_module("broker.app.lifecycle").serve(options))


def demo(
    data_dir: Annotated[
        Path, typer.Option("--data-dir", help="Where the demo keeps everything.")
    ] = Path("demo-data"),
    mqtt: Annotated[
        str, typer.Option("--mqtt", help=ADDRESS_HELP.format("MQTT"))
    ] = "127.0.0.1:1883",
    api: Annotated[
        str, typer.Option("--api", help=ADDRESS_HELP.format("the management API"))
    ] = "127.0.0.1:18083",
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Only print the link to the dashboard.")
    ] = False,
    clean: Annotated[
        bool, typer.Option("--clean", help="Remove what an earlier demo made, and end.")
    ] = False,
) -> None:
    """Run a broker with a simulated fleet.

    Five meters publish, a rule looks at them, a stream keeps the rows, a table fills; the dashboard shows it.
    """
    from broker.config.options import DemoOptions

    options = DemoOptions(
        data_dir=data_dir,
        mqtt=_address(mqtt, "--mqtt") or mqtt,
        api=_address(api, "--api") or api,
        opens_browser=not no_browser,
        is_cleaning=clean,
        overrides=_log_settings(),
    )
    raise typer.Exit(import_module("broker.app.demo").run(options))


def _log_settings() -> dict[str, str]:
    """Log settings of ``SLUICE_LOG``: ``debug``, ``json``, ``info,json``."""
    from broker.observe.log import setup

    words = os.environ.get(LOG_VARIABLE, "").lower().replace(",", " ").split()
    level = next((word for word in words if word in LEVELS), None)
    form = next((word for word in words if word in FORMATS), None)
    if any(word not in (level, form) for word in words):
        raise CommandError(
            f"{LOG_VARIABLE} is {os.environ[LOG_VARIABLE]!r}; expected debug, info, warning or error, and text or json",
            exit_codes.USAGE,
            hint=f"{LOG_VARIABLE}=info,json sluice serve",
        )
    setup(level or "info", form or "text")  # type: ignore[arg-type]  # both are among the names
    asked = {"log.level": level, "log.format": form}
    return {key: word for key, word in asked.items() if word is not None}


def _address(text: str | None, option: str) -> str | None:
    """``HOST:PORT``, checked as far as text can be."""
    if text is None:
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise typer.BadParameter(
            f"{text!r} is not HOST:PORT, as 127.0.0.1:1883 or [::1]:1883", param_hint=option
        )
    return text


def count_of(text: str, param_hint: str) -> int:
    """Number of workers, checked."""
    from broker.core.cells import MAX_CELLS

    if text == "auto":
        return min(MAX_CELLS, len(os.sched_getaffinity(0)))
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MAX_CELLS:
        raise typer.BadParameter(
            f"expected a number from 1 to {MAX_CELLS}, or auto, got {text!r}",
            param_hint=param_hint,
        )
    return int(text)


def _overrides(settings: list[str]) -> dict[str, str]:
    return {key.strip(): value for key, value in pairs(settings, "--set")}
