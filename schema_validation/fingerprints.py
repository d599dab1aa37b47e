"""Identity of schema sources, and the fingerprints that other tools compute.

Identity is finer than Avro's canonical form, which leaves out defaults and aliases though readers depend on them:
sources are the same when only white space, the order of members or comments differ.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from broker.core import jsontext
from broker.core.lazy_module import LazyModule
from schema_validation.serdes.avro_schema import read_schema
from schema_validation.serdes.proto_lexer import tokenize

if TYPE_CHECKING:
    import fastavro
else:
    fastavro = LazyModule("fastavro")

# The text of a schema, or the files of a bundle: ``{"path", "root", "contents"}``.
Source = str | list[dict[str, Any]]

# Largest id of a schema: four bytes, signed, as Kafka tools read them.
MAX_ID = 2**31 - 1


def identity_of(kind: str, source: Source, references: Iterable[tuple[str, str, int]] = ()) -> str:
    """SHA-256, in hexadecimal, of type, source and references; equal exactly for the same schema."""
    text = json.dumps(
        [kind, _canonical(kind, source), sorted(references)], sort_keys=True, ensure_ascii=False
    )
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def id_of(identity: str, taken: Callable[[int], str | None]) -> int:
    """The global id of a schema: the same on every broker, but where two collide.

    Args:
        identity: of the schema.
        taken: the identity of the schema that has an id, None where it is free.
    """
    free_id = int(identity[:16], 16) % MAX_ID + 1
    while taken(free_id) not in (None, identity):
        free_id = free_id % MAX_ID + 1
    return free_id


def fingerprints_of(kind: str, flat: Source, identity: str) -> dict[str, str]:
    """Fingerprints by name: for Avro those of the parsing canonical form, as in "Schema Fingerprints" of its manual."""
    if kind != "avro" or not isinstance(flat, str):
        return {"sha256": identity}
    canonical = fastavro.schema.to_parsing_canonical_form(
        fastavro.parse_schema(read_schema(flat).plain)
    )
    return {
        "sha256": fastavro.schema.fingerprint(canonical, "SHA-256"),
        "crc64_avro": fastavro.schema.fingerprint(canonical, "CRC-64-AVRO"),
    }


def _canonical(kind: str, source: Source) -> Any:
    if kind == "protobuf":
        return _words(source) if isinstance(source, str) else _files(source)
    return jsontext.decode(source) if isinstance(source, str) else source


def _files(files: Sequence[Mapping[str, Any]]) -> list[Any]:
    return sorted(
        [item["path"], item.get("root") is True, _words(item["contents"])] for item in files
    )


def _words(text: str) -> list[str]:
    """The tokens, without comments and white space."""
    return [token.text for token in tokenize(text)]
