"""Place and reason of an Avro decoding error, which the library does not report.

Runs when a payload was refused.
"""

from __future__ import annotations

from broker.core.kinds import are, counted
from schema_validation.serdes.avro_decimal import Digits
from schema_validation.serdes.avro_schema import AvroType, takes_bytes
from schema_validation.serdes.base import Located, Misfit
from schema_validation.serdes.varint import LongVarint, read_varint, signed

# Maximum values checked: 30 ms.
MAX_STEPS = 20_000
_WIDTHS = {"boolean": 1, "float": 4, "double": 8}

Path = list[str | int]


class TooMany(Exception):
    """The payload has more values than may be checked."""


def locate(data: bytes, kind: AvroType, most: int = MAX_STEPS) -> Misfit | None:
    """The first place at which bytes are not a value of a type, or None.

    Raises:
        TooMany: the bytes hold more values than ``most``, or nest too deep to say.
    """
    try:
        end = _Walk(data, most).value(0, kind, [])
    except Located as found:
        return found.misfit
    except RecursionError:
        raise TooMany from None
    left = len(data) - end
    return Misfit("payload", f"{are(left, 'byte')} left over after the value") if left else None


class _Walk:
    def __init__(self, data: bytes, most: int) -> None:
        self._data = data
        self._left = most

    def value(self, at: int, kind: AvroType, path: Path) -> int:
        """End position of the value that begins at ``at``."""
        self._left -= 1
        if self._left < 0:
            raise TooMany
        if kind.kind == "record":
            for field in kind.fields:
                at = self.value(at, field.type, [*path, field.name])
            return at
        if kind.kind == "union":
            return self._union(at, kind, path)
        if kind.items is not None:
            return self._blocks(at, kind, kind.items, path)
        return self._scalar(at, kind, path)

    def _scalar(self, at: int, kind: AvroType, path: Path) -> int:
        if kind.kind == "null":
            return at
        if kind.kind in ("int", "long"):
            return self._varint(at, path, kind.kind)[1]
        if kind.digits is not None:
            return self._decimal(at, kind, kind.digits, path)
        if kind.kind in ("string", "bytes"):
            return self._sized(at, path, kind.kind)
        if kind.kind == "enum":
            index, after = self._varint(at, path, f"the enum {kind.name}")
            if not 0 <= index < len(kind.symbols):
                raise Located(
                    path,
                    f"the enum {kind.name} has {len(kind.symbols)} symbols, none with index {index}",
                )
            return after
        return self._wide(at, kind, path)

    def _decimal(self, at: int, kind: AvroType, digits: Digits, path: Path) -> int:
        start = self._varint(at, path, "bytes")[1] if kind.kind == "bytes" else at
        after = (
            self._sized(at, path, "bytes") if kind.kind == "bytes" else self._wide(at, kind, path)
        )
        if digits.value(self._data[start:after]) is None:
            raise Located(path, f"expected a {digits.text}, got a number with more digits")
        return after

    def _wide(self, at: int, kind: AvroType, path: Path) -> int:
        width = kind.size if kind.kind == "fixed" else _WIDTHS[kind.kind]
        if at + width > len(self._data):
            raise Located(
                path, f"{kind.kind} takes {counted(width, 'byte')}, {len(self._data) - at} left"
            )
        return at + width

    def _union(self, at: int, kind: AvroType, path: Path) -> int:
        names = [branch.name or branch.kind for branch in kind.branches]
        index, at = self._varint(at, path, f"the union {names}")
        if not 0 <= index < len(names):
            raise Located(path, f"the union {names} has no branch with index {index}")
        return self.value(at, kind.branches[index], path)

    def _blocks(self, at: int, kind: AvroType, items: AvroType, path: Path) -> int:
        place = 0
        while True:
            count, at = self._varint(at, path, kind.kind)
            if count == 0:
                return at
            if count < 0:
                count = -count
                at = self._varint(at, path, kind.kind)[1]
            if count > len(self._data) - at and (kind.kind == "map" or takes_bytes(items)):
                raise Located(
                    path,
                    f"{are(count, 'item')} announced, {are(len(self._data) - at, 'byte')} left",
                )
            for _ in range(count):
                part: str | int = place
                if kind.kind == "map":
                    start = at
                    at = self._sized(at, path, "a key")
                    part = self._text(start)
                at = self.value(at, items, [*path, part])
                place += 1

    def _text(self, at: int) -> str:
        size, at = self._varint(at, [], "a key")
        return self._data[at : at + min(size, 40)].decode(errors="replace")

    def _sized(self, at: int, path: Path, what: str) -> int:
        size, at = self._varint(at, path, what)
        if not 0 <= size <= len(self._data) - at:
            raise Located(
                path, f"{what} of {counted(size, 'byte')} is announced, {len(self._data) - at} left"
            )
        if what != "bytes":
            try:
                self._data[at : at + size].decode()
            except UnicodeDecodeError as error:
                raise Located(
                    path, f"expected {what}, got bytes that are not UTF-8 (byte {error.start})"
                ) from None
        return at + size

    def _varint(self, at: int, path: Path, what: str) -> tuple[int, int]:
        try:
            value, at = read_varint(self._data, at)
        except IndexError:
            raise Located(path, f"expected {what}, got the end of the data") from None
        except LongVarint:
            raise Located(path, f"expected {what}, got a number of more than 10 bytes") from None
        return signed(value), at
