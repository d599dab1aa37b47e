"""JSON Schema: whether every document valid under the writer's schema is valid under the reader's.

That is undecidable in general, so it is proved by structure, and what is not proved counts as incompatible with the
reason. One exception is allowed with a warning: a reader may name an optional property that the writer's open object
does not mention, though documents with another value under that name would have been valid.

The writer is a conjunction of schemas (``allOf``, ``$ref`` with its neighbours, the branch of an ``anyOf`` under look);
what is left out of it only makes the proof harder, never wrong. Each assertion of the reader must follow from it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import jsonschema_rs

from broker.core import jsontext
from schema_validation.compatibility.verdict import Reason
from schema_validation.serdes.base import at_pointer
from schema_validation.serdes.json_draft3 import DRAFT_3, as_draft_4

Conjuncts = tuple["Node", ...]
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
# Maximum comparisons of two schemas; beyond, the verdict is that it could not be decided.
MAX_STEPS = 20_000

_DRAFT_4 = 4
_DRAFT_6 = 6
_DRAFT_7 = 7
_DRAFT_2019 = 2019
_DRAFT_2020 = 2020
_DRAFTS = {"04": _DRAFT_4, "06": _DRAFT_6, "07": _DRAFT_7, "9-09": _DRAFT_2019, "0-12": _DRAFT_2020}
# Groups of keywords that are not analysed: the reader's must be in the writer's just so.
_SAME_OR_UNDECIDED: Sequence[tuple[str, ...]] = (
    ("if", "then", "else"),
    ("contains", "minContains", "maxContains"),
    ("propertyNames",),
    ("dependencies",),
    ("dependentRequired",),
    ("dependentSchemas",),
    ("format",),
    ("pattern",),
    ("contentEncoding",),
    ("contentMediaType",),
)
_WHOLE = ("unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef")
_HIDDEN_BY_PARTS = ("unevaluatedProperties", "unevaluatedItems")
_OF_TYPE = {
    "pattern": "string", "contains": "array", "propertyNames": "object",
    "dependencies": "object", "dependentRequired": "object", "dependentSchemas": "object", "format": "string",
    "contentEncoding": "string", "contentMediaType": "string",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Document:
    """A whole schema: its root, to which references lead, and its draft."""

    root: Mapping[str, Any]
    draft: int
    has_nested_ids: bool = False
    """A part names itself, so that references inside it may not start at the root."""

    def validator(self, schema: Any) -> Callable[[Any], bool]:
        """Decides over values by a part of the document that holds no references."""
        dated = {**schema, "$schema": _DRAFT_URIS[self.draft]}
        valid: Callable[[Any], bool] = jsonschema_rs.validator_for(
            dated, validate_formats=True, offline=True
        ).is_valid
        return valid


_DRAFT_URIS = {
    _DRAFT_4: "http://json-schema.org/draft-04/schema#",
    _DRAFT_6: "http://json-schema.org/draft-06/schema#",
    _DRAFT_7: "http://json-schema.org/draft-07/schema#",
    _DRAFT_2019: "https://json-schema.org/draft/2019-09/schema",
    _DRAFT_2020: "https://json-schema.org/draft/2020-12/schema",
}


@dataclass(frozen=True, slots=True)
class Node:
    """A schema at some place of a document: an object, true or false."""

    schema: Any
    document: Document

    def get(self, keyword: str, default: Any = None) -> Any:
        return self.schema.get(keyword, default) if isinstance(self.schema, Mapping) else default

    def at(self, schema: Any) -> Node:
        """Another schema of the same document."""
        return Node(schema, self.document)


def parse(source: str) -> Document:
    """The document of a source that is known to be a schema."""
    root = jsontext.decode(source)
    if str(root.get("$schema", "")).rstrip("#") == DRAFT_3:
        root = as_draft_4(root)
    uri = str(root.get("$schema", "")).rstrip("#")
    draft = next(
        (number for mark, number in _DRAFTS.items() if uri.endswith(f"{mark}/schema")), _DRAFT_2020
    )
    return Document(root, draft, any(_names_itself(part) for part in root.values()))


def can_read(reader: Document, writer: Document) -> list[Reason]:
    """Reasons why a reader may refuse data that is valid for the writer, and warnings."""
    if _canonical(reader.root) == _canonical(writer.root):
        return []
    if reader.draft != writer.draft and _DRAFT_4 in (reader.draft, writer.draft):
        return [
            Reason(
                "$schema",
                "one is of draft 04, the other of a later draft, in which 1.0 is an integer",
            )
        ]
    proof = _Proof()
    try:
        return proof.follows((Node(writer.root, writer),), Node(reader.root, reader), "")
    except _Undecided as undecided:
        return [Reason("", str(undecided))]
    except RecursionError:
        return [Reason("", "the schemas nest too deep to be compared")]


_Question = tuple[frozenset[tuple[int, str]], tuple[int, str]]


class _Undecided(Exception):
    """The comparison was abandoned."""


class _Proof:
    """``_assumed`` holds what is proved or under proof (a schema may contain itself); a failure takes back all that was
    proved under it. ``_failed`` keeps failures, which no assumption could have caused."""

    def __init__(self) -> None:
        self._steps = 0
        self._assumed: dict[_Question, str | None] = {}
        """Place of a running proof; None when it is done."""
        self._failed: dict[_Question, list[Reason]] = {}

    def follows(self, writer: Conjuncts, reader: Node, path: str) -> list[Reason]:
        """Reasons why ``reader`` may refuse data that all of ``writer`` allow; empty when it cannot."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise _Undecided("the schemas are too large to be compared")
        if reader.schema is True or reader.schema == {}:
            return []
        opened = tuple(_flattened(writer, _HIDDEN_BY_PARTS))
        nodes = tuple(node for node in opened if node.schema not in (True, {})) or opened[:1]
        if any(node.schema is False for node in nodes):
            return []
        if reader.schema is False:
            return [Reason(path, "the reader allows nothing here")]
        if any(_is_same(node, reader) for node in nodes):
            return []
        question = (frozenset(map(_mark, nodes)), _mark(reader))
        if question in self._assumed:
            if self._assumed[question] == path:
                raise _Undecided("a schema refers to itself at the same place")
            return []
        if question in self._failed:
            return self._failed[question]
        return self._ask(question, nodes, reader, path)

    def _ask(self, question: _Question, nodes: Conjuncts, reader: Node, path: str) -> list[Reason]:
        before = len(self._assumed)
        self._assumed[question] = path
        reasons = self._split(nodes, reader, path)
        if question in self._assumed:
            self._assumed[question] = None
        if _real(reasons):
            while len(self._assumed) > before:
                self._assumed.popitem()
            self._failed[question] = reasons
        return reasons

    def _split(self, nodes: Conjuncts, reader: Node, path: str) -> list[Reason]:
        """Proof by the writer's listed values, or by the branches of one of its unions, or by its types, or as a
        whole."""
        reasons = self._whole(nodes, reader, path)
        if not _real(reasons):
            return reasons
        values = _values(nodes)
        if values is not None:
            refusals = self._listed(nodes, values, reader, path)
            return refusals if not refusals or _has_list(nodes) else reasons
        for keyword in ("anyOf", "oneOf"):
            for index, node in enumerate(nodes):
                if branches := node.get(keyword):
                    rest = (
                        *nodes[:index],
                        _without(node, keyword, *_HIDDEN_BY_PARTS),
                        *nodes[index + 1 :],
                    )
                    return self._all((*rest, node.at(branch)) for branch in branches)(reader, path)
        types = _types(nodes)
        if len(types) > 1 and any(
            keyword in _as_map(reader.schema) for keyword in ("anyOf", "oneOf", "allOf", "$ref")
        ):
            narrowed = self._all((*nodes, nodes[0].at({"type": kind})) for kind in sorted(types))(
                reader, path
            )
            return (
                narrowed
                if len(_real(narrowed)) < len(_real(reasons)) or not _real(narrowed)
                else reasons
            )
        return reasons

    def _all(self, cases: Iterator[Conjuncts]) -> Callable[[Node, str], list[Reason]]:
        listed = list(cases)

        def check(reader: Node, path: str) -> list[Reason]:
            return list(
                dict.fromkeys(
                    reason for case in listed for reason in self.follows(case, reader, path)
                )
            )

        return check

    def _listed(
        self, nodes: Conjuncts, values: Sequence[Any], reader: Node, path: str
    ) -> list[Reason]:
        """Finitely many values: each is tried."""
        reasons: list[Reason] = []
        for part in _flattened((reader,)):
            if (
                isinstance(part.schema, bool)
                or 'Ref"' in (text := _canonical(part.schema))
                or '"$ref"' in text
            ):
                reasons += self._part(nodes, part, path)
                continue
            is_valid = part.document.validator(part.schema)
            if refused := [value for value in values if not is_valid(value)]:
                shown = ", ".join(json.dumps(value)[:40] for value in refused[:5])
                reasons.append(Reason(path, f"the writer allows {shown}, the reader does not"))
        return reasons

    def _whole(self, nodes: Conjuncts, reader: Node, path: str) -> list[Reason]:
        reasons: list[Reason] = []
        for part in _flattened((reader,)):
            reasons += self._part(nodes, part, path)
        return list(dict.fromkeys(reasons))

    def _part(self, nodes: Conjuncts, reader: Node, path: str) -> list[Reason]:
        """The reader's schema without its references and allOf, which are parts of their own."""
        if isinstance(reader.schema, bool):
            return [] if reader.schema else [Reason(path, "the reader allows nothing here")]
        if any(_is_same(node, reader) for node in nodes):
            return []
        types = _types(nodes)
        reasons = _type_reasons(reader, types, path)
        if reasons:
            return reasons
        reasons += self._combined(nodes, reader, path)
        reasons += _listed_by_reader(nodes, reader, types, path)
        reasons += _same_or_undecided(nodes, reader, types, path)
        if types & {"integer", "number"}:
            reasons += _numeric(nodes, reader, types, path)
        if "string" in types:
            reasons += _sizes(nodes, reader, ("minLength", "maxLength"), path)
        if "array" in types:
            reasons += _sizes(nodes, reader, ("minItems", "maxItems"), path) + self._array(
                nodes, reader, path
            )
        if "object" in types:
            reasons += _sizes(nodes, reader, ("minProperties", "maxProperties"), path)
            reasons += self._object(nodes, reader, path)
        return reasons

    def _combined(self, nodes: Conjuncts, reader: Node, path: str) -> list[Reason]:
        reasons: list[Reason] = []
        for keyword in ("anyOf", "oneOf"):
            branches = reader.get(keyword)
            if branches and not any(_has_same(node, reader, keyword) for node in nodes):
                reasons += self._one_branch(
                    nodes, [reader.at(branch) for branch in branches], keyword, path
                )
        if "not" in reader.schema:
            refused = reader.at(reader.schema["not"])
            if not any(_has_same(node, reader, "not") for node in nodes) and not _are_apart(
                nodes, refused
            ):
                text = "it is not decided whether the writer allows what this bars"
                reasons.append(Reason(_below(path, "not"), text))
        return reasons

    def _one_branch(
        self, nodes: Conjuncts, branches: Sequence[Node], keyword: str, path: str
    ) -> list[Reason]:
        """One branch takes all that the writer allows; of ``oneOf`` the others take nothing of it."""
        tried: list[list[Reason]] = []
        for index, branch in enumerate(branches):
            reasons = self.follows(nodes, branch, path)
            others = [other for at, other in enumerate(branches) if at != index]
            if not _real(reasons) and (
                keyword == "anyOf" or all(_are_apart(nodes, other) for other in others)
            ):
                return reasons
            tried.append(reasons)
        if len(branches) == 1:
            return tried[0]
        return [
            Reason(_below(path, keyword), "no branch is proved to take all that the writer allows")
        ]

    def _array(self, nodes: Conjuncts, reader: Node, path: str) -> list[Reason]:
        reasons: list[Reason] = []
        if reader.get("uniqueItems") is True and not any(
            node.get("uniqueItems") is True for node in nodes
        ):
            reasons.append(Reason(_below(path, "uniqueItems"), "the writer allows repeated items"))
        longest = min(
            (size for node in nodes if isinstance(size := node.get("maxItems"), int)), default=None
        )
        places = max(len(_prefix(node)) for node in (*nodes, reader))
        for index in range(places + 1 if longest is None else min(places + 1, longest)):
            here = _below(path, f"items[{index}]" if index < places else "items")
            items = tuple(_item(node, index) for node in nodes)
            reasons += self.follows(items, _item(reader, index), here)
        return reasons

    def _object(self, nodes: Conjuncts, reader: Node, path: str) -> list[Reason]:
        reasons = [
            Reason(_below(path, f"properties.{name}"), "the reader requires it, the writer may leave it out")
            for name in reader.get("required", ()) if isinstance(reader.get("required", ()), list)
            if not any(name in _names(node.get("required")) for node in nodes)
        ]  # fmt: skip
        names = {name for node in (*nodes, reader) for name in node.get("properties", {})}
        for name in sorted(names):
            reasons += self._property(nodes, reader, name, path)
        for pattern in {
            pattern for node in (*nodes, reader) for pattern in node.get("patternProperties", {})
        }:
            reasons += self._pattern(nodes, reader, pattern, path)
        others = tuple(node.at(node.get("additionalProperties", True)) for node in nodes)
        refusals = self.follows(
            others, reader.at(reader.get("additionalProperties", True)), _below(path, "*")
        )
        if _real(refusals) and reader.get("additionalProperties") is False:
            text = "the reader allows no properties but its own, the writer does"
            refusals = [Reason(_below(path, "additionalProperties"), text)]
        return reasons + refusals

    def _property(self, nodes: Conjuncts, reader: Node, name: str, path: str) -> list[Reason]:
        place = _below(path, f"properties.{name}")
        written = tuple(schema for node in nodes for schema in _of_name(node, name))
        reasons: list[Reason] = []
        for wanted in _of_name(reader, name):
            refusals = self.follows(written, wanted, place)
            if _real(refusals) and _is_optional_addition(nodes, reader, name):
                text = "new for the reader; the writer's open object may hold another value under this name"
                refusals = [Reason(place, text, True)]
            elif _real(refusals) and wanted.schema is False:
                refusals = [
                    Reason(place, "the writer may write it, the reader allows no such property")
                ]
            reasons += refusals
        return reasons

    def _pattern(self, nodes: Conjuncts, reader: Node, pattern: str, path: str) -> list[Reason]:
        """Names that match a pattern: what the reader asks of them must follow wherever the writer may have them."""
        wanted = reader.get("patternProperties", {}).get(pattern)
        place = _below(path, f"patternProperties.{pattern}")
        if wanted is None:  # the writer's own: such names may be others for the reader
            wanted = reader.get("additionalProperties", True)
            own = tuple(
                node.at(node.get("patternProperties", {}).get(pattern, True)) for node in nodes
            )
            own += tuple(node.at(False) for node in nodes if _bars(node, pattern))
            return self.follows(own, reader.at(wanted), place)
        same = tuple(node.at(node.get("patternProperties", {})[pattern]) for node in nodes
                     if pattern in node.get("patternProperties", {}))  # fmt: skip
        if same:
            return self.follows(same, reader.at(wanted), place)
        reasons: list[Reason] = []
        for node in nodes:
            if node.get("additionalProperties", True) is False and not node.get(
                "patternProperties"
            ):
                return []  # only names that are listed, and those are compared one by one
        for node in nodes:
            for schema in (
                *node.get("patternProperties", {}).values(),
                node.get("additionalProperties", True),
            ):
                reasons += self.follows((node.at(schema),), reader.at(wanted), place)
        return reasons


def _flattened(
    nodes: Sequence[Node], dropped: Sequence[str] = (), depth: int = 0
) -> Iterator[Node]:
    """The conjuncts with references followed and ``allOf`` opened.

    ``dropped`` keywords are left out where parts are taken away: what they mean hangs on those parts.
    """
    for node in nodes:
        if depth > 50:
            raise _Undecided("references lead too deep")
        if not isinstance(node.schema, Mapping):
            yield node
            continue
        inner: list[Node] = []
        if "$ref" in node.schema:
            inner.append(_target(node))
            if node.document.draft <= _DRAFT_7:  # neighbours of a reference do not count there
                yield from _flattened(inner, dropped, depth + 1)
                continue
        inner += [node.at(schema) for schema in node.get("allOf", ())]
        yield _without(node, "$ref", "allOf", *dropped) if inner else node
        yield from _flattened(inner, dropped, depth + 1)


def _target(node: Node) -> Node:
    reference = node.schema["$ref"]
    if node.document.has_nested_ids:
        raise _Undecided(
            "references in a schema whose parts have names of their own are not followed"
        )
    if (
        not isinstance(reference, str)
        or not reference.startswith("#")
        or (reference != "#" and reference[1:2] != "/")
    ):
        raise _Undecided(f"the reference {reference!r} is not followed")
    target = at_pointer(node.document.root, reference[1:])
    if target is None:
        raise _Undecided(f"the reference {reference!r} is not followed")
    return node.at(target)


def _without(node: Node, *keywords: str) -> Node:
    return node.at({key: value for key, value in node.schema.items() if key not in keywords})


def _is_same(writer: Node, reader: Node) -> bool:
    """The same text, which means the same where no reference leads out of it."""
    if writer.document is reader.document and writer.schema is reader.schema:
        return True
    return writer.document.draft == reader.document.draft and _is_same_text(
        writer.schema, reader.schema
    )


def _has_same(writer: Node, reader: Node, keyword: str) -> bool:
    """The writer has the keyword just as the reader has it."""
    same_draft = writer.document.draft == reader.document.draft
    return (
        same_draft
        and keyword in _as_map(writer.schema)
        and _is_same_text(writer.schema[keyword], reader.get(keyword))
    )


def _is_same_text(value: Any, other: Any) -> bool:
    text = _canonical(other)
    return 'Ref"' not in text and '"$ref"' not in text and _canonical(value) == text


def _mark(node: Node) -> tuple[int, str]:
    """Identity of a schema during one proof."""
    return id(node.document), _canonical(node.schema)


def _names_itself(part: Any) -> bool:
    if isinstance(part, Mapping):
        return any(isinstance(part.get(key), str) for key in ("$id", "id")) or any(
            map(_names_itself, part.values())
        )
    return isinstance(part, list) and any(map(_names_itself, part))


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _has_list(nodes: Conjuncts) -> bool:
    return any(keyword in _as_map(node.schema) for node in nodes for keyword in ("const", "enum"))


def _values(nodes: Conjuncts) -> Sequence[Any] | None:
    """The values the writer lists, where it does."""
    for node in nodes:
        if "const" in _as_map(node.schema):
            return [node.schema["const"]]
        if isinstance(node.get("enum"), list):
            listed: list[Any] = node.schema["enum"]
            return listed
    types = _types(nodes)
    if types <= {"boolean", "null"}:
        return [
            value
            for kind, value in (("boolean", True), ("boolean", False), ("null", None))
            if kind in types
        ]
    return None


def _types(nodes: Conjuncts) -> frozenset[str]:
    """The types that all conjuncts allow; an ``integer`` stands for itself, ``number`` covers it."""
    types = frozenset(TYPES)
    for node in nodes:
        declared = node.get("type")
        if declared is None:
            continue
        own = {declared} if isinstance(declared, str) else set(declared)
        types &= own | ({"integer"} if "number" in own else set())
    return types - {"integer"} if "number" in types else types


def _type_reasons(reader: Node, types: frozenset[str], path: str) -> list[Reason]:
    declared = reader.get("type")
    if declared is None:
        return []
    own = {declared} if isinstance(declared, str) else set(declared)
    allowed = own | ({"integer"} if "number" in own else set())
    extra = sorted(types - allowed)
    if not extra:
        return []
    if types == frozenset(TYPES) - {"integer"}:
        return [
            Reason(
                _below(path, "type"), f"the writer allows any type, the reader only {_words(own)}"
            )
        ]
    return [
        Reason(
            _below(path, "type"),
            f"the writer allows {_words(extra)}, the reader only {_words(own)}",
        )
    ]


def _listed_by_reader(
    nodes: Conjuncts, reader: Node, types: frozenset[str], path: str
) -> list[Reason]:
    keyword = "const" if "const" in reader.schema else "enum" if "enum" in reader.schema else None
    if keyword is None or not types:
        return []
    return [
        Reason(_below(path, keyword), "the reader lists the values it allows, the writer does not")
    ]


def _same_or_undecided(
    nodes: Conjuncts, reader: Node, types: frozenset[str], path: str
) -> list[Reason]:
    text = "it is not decided whether all that the writer allows passes"
    reasons = [
        Reason(_below(path, keyword), text) for keyword in _WHOLE if keyword in reader.schema
    ]
    for group in _SAME_OR_UNDECIDED:
        first = group[0]
        if first not in reader.schema or _OF_TYPE.get(first, first) not in (*types, first):
            continue
        wanted = _canonical([reader.get(keyword) for keyword in group])
        has_reference = '"$ref"' in wanted or 'Ref"' in wanted
        if has_reference or not any(
            _canonical([node.get(word) for word in group]) == wanted for node in nodes
        ):
            text = f"the reader asks for {_shown(reader.schema[first])}, which the writer does not"
            reasons.append(Reason(_below(path, first), text))
    return reasons


def _numeric(nodes: Conjuncts, reader: Node, types: frozenset[str], path: str) -> list[Reason]:
    reasons = []
    for sign, word in ((1, "minimum"), (-1, "maximum")):
        wanted = _bound(reader, sign)
        if wanted is None:
            continue
        bounds = [bound for node in nodes if (bound := _bound(node, sign)) is not None]
        if not any(_is_tighter(bound, wanted, sign) for bound in bounds):
            text = f"the reader asks for {_bound_text(wanted, sign)}, the writer allows more"
            reasons.append(Reason(_below(path, word), text))
    step = _number(reader.get("multipleOf"))
    if step is not None:
        steps = [
            divisor for node in nodes if (divisor := _number(node.get("multipleOf"))) is not None
        ]
        steps += [Fraction(1)] if "number" not in types else []
        if not any(
            own == step or (step.denominator == 1 and (own / step).denominator == 1)
            for own in steps
        ):
            reasons.append(
                Reason(
                    _below(path, "multipleOf"), f"the reader asks for multiples of {float(step):g}"
                )
            )
    return reasons


def _bound(node: Node, sign: int) -> tuple[Fraction, bool] | None:
    """The lower (``sign`` 1) or upper bound, and whether it is itself left out."""
    plain, strict = ("minimum", "exclusiveMinimum") if sign > 0 else ("maximum", "exclusiveMaximum")
    types = []
    limit = _number(node.get(plain))
    other = node.get(strict)
    if limit is not None:
        types.append((limit, other is True))
    if other is not True and other is not False and (edge := _number(other)) is not None:
        types.append((edge, True))
    return max(types, key=lambda bound: (sign * bound[0], bound[1]), default=None)


def _is_tighter(own: tuple[Fraction, bool], wanted: tuple[Fraction, bool], sign: int) -> bool:
    if own[0] == wanted[0]:
        return own[1] or not wanted[1]
    return sign * own[0] > sign * wanted[0]


def _bound_text(bound: tuple[Fraction, bool], sign: int) -> str:
    word = {
        (1, False): "at least",
        (1, True): "more than",
        (-1, False): "at most",
        (-1, True): "less than",
    }
    return f"{word[(sign, bound[1])]} {float(bound[0]):g}"


def _number(value: Any) -> Fraction | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return Fraction(repr(value)) if isinstance(value, float) else Fraction(value)


def _sizes(nodes: Conjuncts, reader: Node, keywords: tuple[str, str], path: str) -> list[Reason]:
    reasons = []
    for keyword, sign in zip(keywords, (1, -1), strict=True):
        wanted = reader.get(keyword)
        if not isinstance(wanted, (int, float)) or (sign > 0 and wanted == 0):
            continue
        own = [size for node in nodes if isinstance(size := node.get(keyword), (int, float))]
        if keyword == "minProperties":
            own.append(len({name for node in nodes for name in _names(node.get("required"))}))
        if not any(sign * size >= sign * wanted for size in own):
            reasons.append(
                Reason(
                    _below(path, keyword), f"the reader asks for {wanted}, the writer allows others"
                )
            )
    return reasons


def _prefix(node: Node) -> Sequence[Any]:
    """The schemas by position, whatever the draft calls them."""
    items = node.get("prefixItems") if node.document.draft >= _DRAFT_2020 else node.get("items")
    return items if isinstance(items, list) else ()


def _item(node: Node, index: int) -> Node:
    """The schema of the item at a position."""
    prefix = _prefix(node)
    if index < len(prefix):
        return node.at(prefix[index])
    items = node.get("items", True)
    if isinstance(items, list):
        return node.at(node.get("additionalItems", True))
    return node.at(items)


def _of_name(node: Node, name: str) -> list[Node]:
    """The schemas that a property of this name must fit."""
    schemas = (
        [node.at(node.get("properties", {})[name])] if name in node.get("properties", {}) else []
    )
    schemas += [
        node.at(schema)
        for pattern, schema in node.get("patternProperties", {}).items()
        if _hits(pattern, name)
    ]
    return schemas or [node.at(node.get("additionalProperties", True))]


def _hits(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error:
        raise _Undecided(f"the pattern {pattern!r} is not understood") from None


def _bars(node: Node, pattern: str) -> bool:
    """No name that matches the pattern can occur, but for those that are listed."""
    return (
        pattern not in node.get("patternProperties", {})
        and not node.get("patternProperties")
        and node.get("additionalProperties", True) is False
    )


def _is_optional_addition(nodes: Conjuncts, reader: Node, name: str) -> bool:
    """The reader names an optional property that the writer, which is open, does not mention."""
    if name not in reader.get("properties", {}) or name in _names(reader.get("required")):
        return False
    return all(
        name not in node.get("properties", {})
        and name not in _names(node.get("required"))
        and node.get("additionalProperties", True) in (True, {})
        and not any(_hits(pattern, name) for pattern in node.get("patternProperties", {}))
        for node in nodes
    )


def _are_apart(nodes: Conjuncts, other: Node) -> bool:
    """True if nothing fits both, judged by types, or by a required property whose listed values differ."""
    parts = tuple(_flattened((other,)))
    if any(part.schema is False for part in parts):
        return True
    left = _types(nodes)
    right = _types(parts)
    left |= {"integer"} if "number" in left else set()
    right |= {"integer"} if "number" in right else set()
    if not left & right:
        return True
    if (left & right) != {"object"}:
        return _have_other_values(nodes, parts)
    required = {name for node in (*nodes, *parts) for name in _names(node.get("required"))}
    return any(
        _have_other_values(
            tuple(_flattened([schema for node in nodes for schema in _of_name(node, name)])),
            tuple(_flattened([schema for part in parts for schema in _of_name(part, name)])),
        )
        for name in required
    )


def _have_other_values(left: Conjuncts, right: Conjuncts) -> bool:
    """Both list their values, and none is in both lists; numbers that are equal count as one."""
    mine = _values(left)
    theirs = _values(right)
    if mine is None or theirs is None:
        return False
    return not any(_equal(value, other) for value in mine for other in theirs)


def _equal(value: Any, other: Any) -> bool:
    """Equality that may say yes too often, never no wrongly: 1 and 1.0 and true."""
    return bool(value == other)


def _names(value: Any) -> Sequence[str]:
    return value if isinstance(value, list) else ()


def _as_map(schema: Any) -> Mapping[str, Any]:
    return schema if isinstance(schema, Mapping) else {}


def _real(reasons: Sequence[Reason]) -> list[Reason]:
    return [reason for reason in reasons if not reason.is_warning]


def _words(names: Any) -> str:
    return " or ".join(sorted(names)) or "nothing"


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:60] + "…"


def _below(path: str, part: str) -> str:
    return f"{path}.{part}" if path else part
