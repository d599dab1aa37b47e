"""Bounds on the names that objects may use on this machine, section ``allowed``: environment variables, secret files,
paths to write to.

Objects are made over the API: a connector must not send the broker's environment or files to a server, nor write to
any file. There is one set of bounds, since the environment and the file system are the process's too.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from broker.config.model import Settings
from broker.config.vault import KEY_VARIABLE, NAMED_SECRETS, KeyUnusable, NamedSecret, unsealed
from broker.core.errors import SluiceError, did_you_mean

SECRET_PREFIX: Final = "SLUICE_SECRET_"
_NEVER: Final = ("SLUICE_API_TOKEN", KEY_VARIABLE)


class AllowedSettings(Settings):
    """Section ``allowed``."""

    env_prefixes: list[Annotated[str, Field(min_length=1)]] = Field(
        default=[SECRET_PREFIX],
        description="Beginnings of the names that `${env:NAME}` may have. `SLUICE_API_TOKEN` and `SLUICE_SECRETS_KEY` "
        "are never allowed.",
    )
    secret_directories: list[Path] = Field(
        default_factory=list,
        description="Directories that `${file:PATH}` may read from, and certificates, keys and files of access rules "
        "that are named through the API, besides `secrets` in the data directory.",
    )
    directories: list[Path] = Field(
        default_factory=list,
        description="Directories that file connectors and tables may write to, besides `files` and `lake` in the data "
        "directory.",
    )


class NotAllowed(SluiceError):
    """The bounds do not let it be named; says which do."""

    code = "not_allowed"


class Allowed:
    """The bounds of one process."""

    def __init__(self, settings: AllowedSettings, data_dir: Path | None) -> None:
        self._prefixes = tuple(settings.env_prefixes)
        self._data_dir = None if data_dir is None else data_dir.resolve()
        self._secrets, self._files = list(settings.secret_directories), list(settings.directories)
        if data_dir is not None:
            self._secrets.insert(0, data_dir / "secrets")
            self._files.insert(0, data_dir / "files")

    def variable(self, name: str) -> str:
        """The name of an environment variable that may be read. Raises ``NotAllowed``."""
        if name in _NEVER or not name.startswith(self._prefixes):
            expected = " or ".join(f"{prefix}..." for prefix in self._prefixes) or "none"
            raise NotAllowed(
                f"${{env:{name}}}: expected a variable named {expected} (allowed.env_prefixes)"
            )
        return name

    def secret_file(self, path: str) -> Path:
        """Path of a secret; a relative path is in the first of the directories. Raises ``NotAllowed``."""
        return _regular(
            self._within(
                Path(path), self._secrets, f"${{file:{path}}}", "allowed.secret_directories"
            )
        )

    def named(self, name: str) -> NamedSecret:
        """The named secret. Raises ``NotAllowed`` if it does not exist."""
        secret = NAMED_SECRETS.find(name)
        if secret is None:
            hint = did_you_mean(name, NAMED_SECRETS.names)
            advice = f"; {hint}" if hint else f". Try: sluice secrets put {name}"
            raise NotAllowed(
                f"${{secret:{name}}}: expected the name of a secret, got {name!r}{advice}"
            )
        return secret

    def unsealed(self, reference: str) -> str:
        """The value of a reference that the broker made for another of its processes. Raises ``NotAllowed``."""
        raise NotAllowed("${sealed:...}: expected ${secret:NAME}, ${env:NAME} or ${file:PATH}")

    def readable(self, path: Path) -> Path:
        """Path of a file that an object names, for reading; relative to the working directory. Raises
        ``NotAllowed``."""
        return _regular(
            self._within(path.absolute(), self._secrets, str(path), "allowed.secret_directories")
        )

    def file(self, path: Path) -> Path:
        """Path of a file, for writing; a relative path is in the first of the directories. Raises ``NotAllowed``."""
        return _regular(self._within(path, self._files, str(path), "allowed.directories"))

    def directory(self, path: Path, own: Path) -> Path:
        """Path of a table: in ``own`` or the directories of files. Raises ``NotAllowed``."""
        return self._within(path, [own, *self._files], str(path), "allowed.directories")

    def make_files(self) -> None:
        """Make the directory that files are in by default, where there is a data directory."""
        if self._data_dir is not None:
            (self._data_dir / "files").mkdir(parents=True, exist_ok=True)

    def _within(self, path: Path, directories: list[Path], what: str, setting: str) -> Path:
        try:
            resolved = (directories[0] / path if directories else path).resolve()
            roots = [directory.resolve() for directory in directories]
        except (OSError, RuntimeError, ValueError) as error:
            raise NotAllowed(
                f"{what}: expected a path, got one that cannot be followed: {error}"
            ) from None
        own = [
            root
            for root in roots
            if self._data_dir is not None and root.is_relative_to(self._data_dir)
        ]
        if self._data_dir is not None and resolved.is_relative_to(self._data_dir):
            roots = [root for root in own if root != self._data_dir]  # never the broker's own files
        if not _is_in(resolved, roots):
            allowed = ", ".join(str(directory) for directory in directories) or "none"
            raise NotAllowed(f"{what}: expected a path in {allowed} ({setting}), got {resolved}")
        return resolved


def _is_in(path: Path, roots: Iterable[Path]) -> bool:
    return any(path != root and path.is_relative_to(root) for root in roots)


def _regular(path: Path) -> Path:
    try:
        mode = path.stat().st_mode
    except OSError:
        return path  # not there, or not readable: opening it reports that
    if not stat.S_ISREG(mode):
        raise NotAllowed(f"{path}: expected a regular file, got a directory, device or pipe")
    return path


_current = Allowed(AllowedSettings(), None)


def confine(settings: AllowedSettings, data_dir: Path | None) -> None:
    """Apply these bounds from now on, in the whole process."""
    global _current
    _current = Allowed(settings, data_dir)


class _Unbounded(Allowed):
    """See ``trusted``."""

    def variable(self, name: str) -> str:
        return name

    def secret_file(self, path: str) -> Path:
        return _regular(Path(path))

    def unsealed(self, reference: str) -> str:
        try:
            return unsealed(reference)
        except (KeyUnusable, ValueError) as error:
            raise NotAllowed(str(error)) from None


@contextmanager
def trusted() -> Iterator[None]:
    """Lift the bounds for secrets in a block of a process that gets its references from a broker, which has checked
    them."""
    global _current
    before = _current
    _current = _Unbounded(AllowedSettings(), None)
    try:
        yield
    finally:
        _current = before


def allowed() -> Allowed:
    """The active bounds."""
    return _current
