"""The declarations that the dashboard draws its lists, forms and verbs from: ``ui/web/src/api/kinds.json``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic import TypeAdapter

from broker.admin.rights import word_of
from broker.core.kinds import Kind, kinds, load, plural
from broker.core.resources import Parameter, Resource, Verb, resources

# Members that lists show as the name and the state of an object.
_NAME_AND_STATE: Final = frozenset(("enable", "state", "status", "status_reason"))
# Parameters of every list, and filters that another one covers: the name, and the state, which is ``disabled`` too.
_EVERY_LIST: Final = frozenset(
    ("limit", "cursor", "sort", "like_name", "like_id", "state", "enable")
)
_READ_ONLY: Final = "Read-only; ignored."
# Words of members as headings have them.
_WORDS: Final = {
    "id": "ID",
    "clientid": "client ID",
    "qos": "QoS",
    "sql": "SQL",
    "url": "URL",
    "min": "minimum",
    "max": "maximum",
    "re": "regular expression",
}


def declarations(document: Mapping[str, Any]) -> str:
    """Kinds and resources as JSON. Filters, and which members are writable, are as the OpenAPI document has them."""
    declared = {
        "kinds": [_kind(kind, document) for kind in kinds()],
        "resources": [entry for resource in resources() if (entry := _resource(resource))["lists"]],
    }
    return f"{json.dumps(declared, indent=2)}\n"


def _kind(kind: Kind, document: Mapping[str, Any]) -> dict[str, Any]:
    hidden = _NAME_AND_STATE | {"name", kind.key}
    listed = document["paths"][f"/api/v1/{kind.path}"]["get"]["parameters"]
    one = document["paths"].get(f"/api/v1/{kind.path}/{{name}}", {})
    named = (
        kind.columns
        if isinstance(kind.columns, Mapping)
        else {member: member for member in kind.columns}
    )
    columns = [(_heading(title), member) for title, member in named.items() if member not in hidden]
    if kind.page_columns:
        columns = list(kind.page_columns.items())
    return {
        "name": kind.name,
        "one": kind.one,
        "many": kind.many,
        "path": kind.path,
        "right": word_of(kind.name),
        "about": kind.about,
        "menu": kind.menu,
        "command": " ".join(kind.commands),
        "section": kind.section,
        "model": f"{kind.id}Spec",
        "key": kind.key,
        "writes": sorted({*kind.abilities.verbs, *(["create"] if "post" in one else [])}),
        "is_created_by_name": "post" in one,
        "is_patched": "put" not in one and "patch" in one,
        "switches": [
            {
                "verb": switch.verb,
                "text": switch.text.format(kind.one),
                "drains": switch.drains,
            }
            for switch in kind.abilities.switches
        ],
        "is_ordered": kind.abilities.can_reorder,
        "has_test": kind.abilities.has_probe,
        "deletion": kind.deletion,
        "columns": [{"title": title, "member": member} for title, member in columns],
        "filters": [
            _filter_in(document, entry) for entry in listed if entry["name"] not in _EVERY_LIST
        ],
        "read_only": sorted(_read_only(kind, document["components"]["schemas"])),
    }


def _filter_in(document: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """A filter as a page asks for it. FastAPI makes a title from a name; others are written on purpose."""
    name, schema = entry["name"], entry["schema"]
    forms = schema.get("anyOf", [schema])
    values = next((list(form["enum"]) for form in forms if "enum" in form), None)
    if any(form.get("type") == "boolean" for form in forms):
        values = ["true", "false"]
    written = schema["title"] != name.replace("_", " ").title()
    label = schema["title"] if written else _heading(name)
    return {
        "name": name,
        "label": label,
        "text": entry["description"],
        "values": values,
        "is_pattern": False,
    }


def _read_only(kind: Kind, schemas: Mapping[str, Any]) -> set[str]:
    """The members of an object that a request does not set."""
    written = dict(_members({"$ref": f"#/{kind.id}Spec"}, schemas))
    shown = dict(_members({"$ref": f"#/{kind.id}Object"}, schemas))
    ignored = {name for name, member in written.items() if member.get("description") == _READ_ONLY}
    return (shown.keys() - written.keys()) | ignored


def _members(
    schema: Mapping[str, Any], schemas: Mapping[str, Any]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The members of an object of any of its forms."""
    if "$ref" in schema:
        yield from _members(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    for form in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
        yield from _members(form, schemas)
    yield from schema.get("properties", {}).items()


def _resource(resource: Resource) -> dict[str, Any]:
    lists = [verb for verb in resource.verbs if _is_list(resource, verb)]
    of_one = [
        verb for verb in resource.verbs if verb.method == "GET" and _names_one(resource, verb)
    ]
    shows = next((verb for verb in of_one if not verb.row), None)
    return {
        "name": resource.name,
        "one": f"{'an' if resource.name[0] in 'aeio' else 'a'} {resource.name}",
        "many": plural(resource.name),
        "path": resource.path.removeprefix("/"),
        "right": word_of(resource.name),
        "about": resource.about or _summary(lists[0] if lists else resource.verbs[0])[1],
        "menu": resource.menu,
        "command": resource.commands if any(verb.command for verb in lists) else "",
        "key": resource.named_by,
        "undone_at": resource.undone_at.removeprefix("/"),
        "export": next(
            (
                f"{resource.path}{verb.path}".removeprefix("/")
                for verb in resource.verbs
                if verb.media and "{" not in verb.path
            ),
            "",
        ),
        "lists": [_list(verb) for verb in lists],
        "show": shows and _call(resource, shows),
        "parts": [{**_list(verb), **_call(resource, verb)} for verb in of_one if verb.row],
        "verbs": [_verb(resource, verb, lists) for verb in resource.verbs if verb.method != "GET"],
    }


def _is_list(resource: Resource, verb: Verb) -> bool:
    is_anywhere = "{" not in f"{resource.path}{verb.path}" and not any(
        taken.is_required for taken in verb.takes
    )
    return bool(verb.row) and verb.method == "GET" and is_anywhere


def _list(verb: Verb) -> dict[str, Any]:
    columns = verb.columns or (verb.command and verb.command.columns) or _members_of_row(verb)
    named = columns if isinstance(columns, Mapping) else {member: member for member in columns}
    named = _with_progress(named)
    title, text = _summary(verb)
    sort = next((taken for taken in verb.takes if taken.orders), None)
    return {
        "path": verb.path,
        "title": title.partition(" ")[2].removeprefix("the "),
        "is_paged": verb.is_paged,
        "text": _said(text),
        "columns": [
            {"title": _heading(title), "member": member} for title, member in named.items()
        ],
        "filters": [_filter(taken) for taken in verb.takes if taken.name not in _EVERY_LIST],
        "orders": [{"name": name, "label": _heading(name)} for name in sort.orders] if sort else [],
        "order": sort.default if sort else "",
    }


def _with_progress(columns: Mapping[str, str]) -> Mapping[str, str]:
    """Columns of a page: what is done, of how much and of which unit is one, which the page draws as a bar."""
    parts = {
        f"{member.removesuffix('/total')}/{part}"
        for member in columns.values()
        if member.endswith("/total")
        for part in ("done", "total", "unit")
    }
    joined: dict[str, str] = {}
    for title, member in columns.items():
        if member not in parts:
            joined[title] = member
        elif member.endswith("/done"):
            joined[member.removesuffix("/done")] = member.removesuffix("/done")
    return joined


def _members_of_row(verb: Verb) -> Sequence[str]:
    schema = TypeAdapter(load(verb.row)).json_schema(mode="serialization")
    return tuple(
        name for name, member in schema["properties"].items() if not member.get("deprecated")
    )


def _filter(taken: Parameter) -> dict[str, Any]:
    values: Any = list(taken.type) if isinstance(taken.type, tuple) else None
    if taken.type is bool:
        values = ["true", "false"]
    return {
        "name": taken.name,
        "label": _heading(taken.name),
        "text": taken.text or taken.help,
        "values": values,
        "is_pattern": taken.type == "pattern",
    }


def _call(resource: Resource, verb: Verb) -> dict[str, Any]:
    """Path of an operation on one item, and where its name goes: into the path, the query or the body."""
    place, name = _place_of_name(resource, verb)
    path = f"{resource.path}{verb.path}".removeprefix("/").replace(":path}", "}")
    return {"path": path, "place": place, "parameter": name}


def _place_of_name(resource: Resource, verb: Verb) -> tuple[str, str]:
    """Where a request has the name of an item: ``path``, ``query``, ``member`` or ``members``; nowhere if it is for
    all, or makes a new one."""
    if not verb.path and verb.method == "POST":
        return "", ""
    for taken in verb.takes:
        if f"{{{taken.name}" in verb.path:
            return "path", taken.name
        if taken.is_required and taken.name == resource.named_by:
            return "query", taken.name
    for member in verb.members:
        if (
            resource.named_by
            and member.is_required
            and member.name in (resource.named_by, f"{resource.named_by}s")
        ):
            return ("members" if member.many else "member"), member.name
    return "", ""


def _names_one(resource: Resource, verb: Verb) -> bool:
    return _place_of_name(resource, verb)[0] != ""


def _verb(resource: Resource, verb: Verb, lists: Sequence[Verb]) -> dict[str, Any]:
    title, text = _summary(verb)
    call = _call(resource, verb)
    members = [
        member.name for member in verb.members if member.name not in (call["parameter"], "dry_run")
    ]
    name = verb.model or f"{verb.id[0].upper()}{verb.id[1:]}"
    return {
        **call,
        "method": verb.method,
        "right": word_of(resource.name),
        "does": verb.does,
        "title": title,
        "text": text,
        "list": next((listed.path for listed in lists if listed.path == verb.path), ""),
        "model": name if members else "",
        "skips": [] if not members else [call["parameter"], "dry_run"],
        "may_be_dry": verb.may_be_dry,
        "is_job": verb.job is not None,
        "offered": verb.offered,
    }


def _summary(verb: Verb) -> tuple[str, str]:
    title, _, text = verb.text.partition(". ")
    return title.removesuffix("."), text.split("\n\n")[0].split(" It is a job:")[0]


def _said(text: str) -> str:
    """The sentence of a page about a list, from that of its operation."""
    sentence = text.partition(". ")[0].removesuffix(".").removeprefix("Returns ")
    return f"{sentence[:1].upper()}{sentence[1:]}."


def _heading(name: str) -> str:
    """A member as a heading, without its unit, which values are shown with: ``Queue size``."""
    name = name.removeprefix("is_").removesuffix("_per_s").removesuffix("_s").removesuffix("_count")
    name = f"{name.removesuffix('_bytes')}_size" if name.endswith("_bytes") else name
    text = " ".join(_WORDS.get(word, word) for word in name.replace("_", " ").split())
    return f"{text[0].upper()}{text[1:]}"
