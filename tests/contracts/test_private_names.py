"""Names of other packages that the product uses without a promise: private ones, and parts of classes it extends.

Each is listed here. A release that removes one fails a test by its name, and the bound in ``pyproject.toml`` keeps that
release away from users until then.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = (
    "broker",
    "rules",
    "schema_validation",
    "transforms",
    "bridges",
    "ui",
    "pyspark_sluice",
)

USED: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "aiokafka": {
        "aiokafka.client": ("create_conn",),
        "aiokafka.client:AIOKafkaClient": ("bootstrap", "_conns", "_get_conn", "_get_conn_lock_value", "cluster"),
        "aiokafka.admin:AIOKafkaAdminClient": ("_client", "_send_request"),
        "aiokafka:AIOKafkaProducer": ("_closed", "_sender", "client"),
        "aiokafka.producer.message_accumulator:BatchBuilder": ("_relative_offset",),
        "aiokafka.producer.sender:Sender": ("sender_task",),
        "aiokafka:AIOKafkaConsumer": ("_client", "_coordinator", "_fetcher", "_subscription"),
        "aiokafka.consumer.fetcher:Fetcher": ("close",),
        "aiokafka.consumer.group_coordinator:GroupCoordinator": (
            "_stop_heartbeat_task", "_stop_commit_offsets_refresh_task",
        ),
        "aiokafka.consumer.subscription_state:SubscriptionState": ("subscription",),
        "aiokafka.consumer.subscription_state:Assignment": ("state_value", "tps"),
        "aiokafka.consumer.subscription_state:TopicPartitionState": ("lso", "has_valid_position", "position"),
    },
    "fastavro": {"fastavro": ("_read_py",), "fastavro._read_py": ("schemaless_reader",)},
    "google-re2": {"re2:_Anchor": ("UNANCHORED",), "re2:_Regexp": ("_regexp",)},
    "pyiceberg": {
        "pyiceberg.expressions.visitors": ("_StrictMetricsEvaluator",),
        "pyiceberg.table.update.snapshot": ("_OverwriteFiles",),
        "pyiceberg.table.update.snapshot:_OverwriteFiles": ("_summary", "_written_manifests"),
        "pyiceberg.table:Transaction": (
            "_append_snapshot_producer", "_requirements", "_snapshot_producers", "_table", "_updates", "table_metadata",
        ),
        "pyiceberg.catalog.rest:RestCatalog": ("_config_headers", "_delete_old_metadata"),
        "pyiceberg.io.pyarrow:ArrowProjectionVisitor": ("list", "map"),
        "pyiceberg.io.pyarrow:PyArrowFileIO": ("fs_by_scheme", "parse_location"),
    },
    "pyspark": {"pyspark:SparkContext": ("_ensure_initialized", "_jsc")},
    "typer": {"typer.core:TyperArgument": ("_custom_shell_complete",)},
    "uvicorn": {
        "uvicorn.protocols.http.h11_impl:H11Protocol": (
            "cycle", "handle_websocket_upgrade", "loop", "on_response_complete", "send_400_response", "transport",
        ),
        "uvicorn.protocols.http.h11_impl:RequestResponseCycle": ("more_body", "response_complete"),
        "uvicorn.protocols.websockets.websockets_sansio_impl:WebSocketsSansIOProtocol": ("read_paused", "transport"),
    },
}  # fmt: skip
"""The names by distribution, then by module or by ``module:class``."""

OTHERS: Final = {"os._exit", "_current_frames", "_asdict", "_replace", "_make"}
"""Names that begin with an underscore and are documented: Python's own, and those of named tuples."""

NAMES: Final = [
    (place, name)
    for places in USED.values()
    for place, its_names in places.items()
    for name in its_names
]
MINORS: Final = {"pyspark": 2}
"""How many more minor versions than the tested one a package may have: heavy tests run these too."""


def owner_of(place: str) -> Any:
    """The module or the class that a place names."""
    module, _, name = place.partition(":")
    imported = importlib.import_module(module)
    return getattr(imported, name) if name else imported


def attributes(cls: type) -> Iterator[str]:
    """The attributes of a class and of its objects, those that its methods assign included."""
    yield from dir(cls)
    for base in cls.__mro__:
        if str(getattr(sys.modules.get(base.__module__), "__file__", None)).endswith(".py"):
            # not written in C
            for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(base)))):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                    yield node.attr
                elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    yield node.target.id


def has(place: str, name: str) -> bool:
    """Whether a module or a class has a name."""
    owner = owner_of(place)
    return name in set(attributes(owner)) if isinstance(owner, type) else hasattr(owner, name)


@pytest.mark.parametrize(("place", "name"), NAMES, ids=[f"{place}.{name}" for place, name in NAMES])
def test_a_name_is_there(place: str, name: str) -> None:
    assert has(place, name), (
        f"{place} has no {name} in this release. Try: the product without it, or a lower bound"
    )


def test_a_name_that_is_gone_is_noticed() -> None:
    assert not has("aiokafka:AIOKafkaProducer", "_no_such_member")
    assert not has("fastavro", "_no_such_module")


def requirements() -> dict[str, Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [
        text
        for name, texts in project["optional-dependencies"].items()
        if name != "dev"
        for text in texts
    ]
    return {
        canonicalize_name(need.name): need
        for need in map(Requirement, [*project["dependencies"], *extras])
    }


@pytest.mark.parametrize("distribution", USED)
def test_the_next_minor_version_is_not_installed(distribution: str) -> None:
    need = requirements()[distribution]
    major, minor, *_ = metadata.version(distribution).split(".")
    assert need.specifier.contains(metadata.version(distribution))
    following = f"{major}.{int(minor) + MINORS.get(distribution, 1)}"
    assert not need.specifier.contains(following), (
        f"pyproject.toml: expected {distribution} below {following}"
    )


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def own_names(trees: Mapping[Path, ast.Module]) -> set[str]:
    """The attributes and functions that the product defines."""
    names: set[str] = set()
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and isinstance(node.value, ast.Name)
                and node.value.id == "self"
            ):
                names.add(node.attr)
    return names


def foreign_names(tree: ast.Module, own: set[str]) -> Iterator[tuple[int, str]]:
    """The private names of other packages in a module, with their lines: imported, read or set."""
    foreign: set[str] = set()
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and node.module.split(".")[0] not in PACKAGES
        ):
            foreign |= {alias.asname or alias.name for alias in node.names}
            for name in [*node.module.split("."), *(alias.name for alias in node.names)]:
                if private(name):
                    yield node.lineno, name
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] not in PACKAGES:
                    foreign.add((alias.asname or alias.name).split(".")[0])
                    yield from (
                        (node.lineno, name) for name in alias.name.split(".") if private(name)
                    )
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and private(node.attr):
            of_package = isinstance(node.value, ast.Name) and node.value.id in foreign
            if of_package or node.attr not in own:
                yield (
                    node.lineno,
                    node.attr if ast.unparse(node) not in OTHERS else ast.unparse(node),
                )


def test_every_private_name_is_listed() -> None:
    """A private name that the product does not define, or takes from an imported module or class, is another's."""
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    trees = {
        path: ast.parse(path.read_text()) for path in files if "node_modules" not in path.parts
    }
    listed = {name for _, name in NAMES} | OTHERS | {place.rpartition(":")[2] for place, _ in NAMES}
    listed |= {part for place, _ in NAMES for part in place.partition(":")[0].split(".")}
    own = own_names(trees)
    unlisted = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path, tree in trees.items()
        for line, name in foreign_names(tree, own)
        if name not in listed
    ]
    assert not unlisted
