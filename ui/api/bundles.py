"""Protobuf schemas of several files, as one gzipped tar in a form: the call that EMQX's users know."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from fastapi import Request
from starlette.responses import Response

from broker.core.errors import Invalid, Problem
from broker.core.kinds import Kind
from broker.core.objects import Spec
from schema_validation.service import SchemaService
from ui.api.deadline import BoundedCalls
from ui.api.effects import DryRun
from ui.api.json_bodies import read_bytes
from ui.api.objects import KindRoutes
from ui.api.parameters import checked_name

_MAX_PARTS = 20
_BOUNDARY = re.compile(r'boundary=(?:"([^"\r\n]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_PART_NAME = re.compile(rb'\bname="([^"\r\n]*)"')
_MEMBERS = ("name", "root_proto_file", "description", "bundle")
_FORM: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "root_proto_file"],
    "properties": {
        "name": {"type": "string"},
        "root_proto_file": {
            "type": "string",
            "description": "The file that is the schema, without a folder.",
        },
        "description": {"type": "string"},
        "bundle": {
            "type": "string",
            "format": "binary",
            "description": "A gzipped tar of .proto files.",
        },
    },
}


def add_bundles(
    routes: KindRoutes, kind: Kind, service: SchemaService, compiling: BoundedCalls
) -> None:
    """Add creating and changing a schema by a bundle."""
    ops = routes.ops

    @ops.post(
        "/schemas:bundle",
        "createSchemaBundle",
        "Create a protobuf schema of several files",
        form=_FORM,
        answer=kind,
        status=201,
        problems=(409, 413, 422),
        may_be_dry=True,
    )
    async def create_bundle(request: Request, dry_run: DryRun = False) -> Response | None:
        """Takes a gzipped tar of `.proto` files as a form. `root_proto_file` names the file that is the schema."""
        form = await _form(request, _MEMBERS)
        unpack = partial(service.bundle_files, form["bundle"], _text(form, "root_proto_file"))
        spec = _spec(form, await compiling.run("unpacking the bundle", unpack))
        prepared = await compiling.run("compiling the schema", service.prepare(spec))
        create = partial(service.create, spec, prepared)
        return await routes.written(request, spec["name"], spec, create, is_dry=dry_run, status=201)

    @ops.put(
        "/schemas:bundle",
        "putSchemaBundle",
        "Change a protobuf schema of several files",
        form=_FORM,
        answer=kind,
        problems=(404, 409, 412, 413, 422),
        may_be_dry=True,
    )
    async def put_bundle(request: Request, dry_run: DryRun = False) -> Response | None:
        """Adds a version from a gzipped tar of `.proto` files. Without a bundle only the root file or the description
        changes.
        """
        form = await _form(request, ("name", "root_proto_file"))
        name = checked_name(_text(form, "name"))
        root = _text(form, "root_proto_file")
        current = service.get(name)
        if "bundle" in form:
            files = await compiling.run(
                "unpacking the bundle", lambda: service.bundle_files(form["bundle"], root)
            )
        else:
            files = service.bundle_with_root(name, root)
        spec = {**_kept(current), **_spec(form, files)}
        prepared = await compiling.run("compiling the schema", service.prepare(spec, name))
        routes.check(request, name)
        replace = partial(service.replace, name, spec, prepared=prepared)
        return await routes.written(
            request, name, spec, replace, is_dry=dry_run, prepared={"prepared": prepared}
        )


async def _form(request: Request, required: tuple[str, ...]) -> Mapping[str, bytes]:
    form = _form_parts(request.headers.get("content-type", ""), await read_bytes(request))
    missing = [name for name in required if name not in form and name != "description"]
    unknown = [name for name in form if name not in _MEMBERS]
    problems = [Problem(f"the part {name!r} is missing", f"/{name}") for name in missing]
    problems += [Problem(f"unknown part {name!r}", f"/{name}") for name in unknown]
    if problems:
        raise Invalid("the form cannot be used", problems)
    return form


def _form_parts(content_type: str, body: bytes) -> Mapping[str, bytes]:
    """The parts of a form of ``multipart/form-data`` (RFC 7578) by their names; of two with one name the last.

    Raises:
        Invalid: the body is not such a form.
    """
    boundary_match = _BOUNDARY.search(content_type)
    if not content_type.lower().startswith("multipart/form-data") or boundary_match is None:
        raise Invalid(
            "the body must be a form of multipart/form-data, with its boundary in Content-Type"
        )
    boundary = b"--" + (boundary_match[1] or boundary_match[2]).encode("latin-1", "replace")
    _, *parts = (b"\r\n" + body).split(b"\r\n" + boundary, _MAX_PARTS + 2)
    if not parts or not parts[-1].startswith(b"--") or len(parts) > _MAX_PARTS + 1:
        raise Invalid(f"the form does not end as it must, or has more than {_MAX_PARTS} parts")
    return dict(map(_part, parts[:-1]))


def _part(part: bytes) -> tuple[str, bytes]:
    head, separator, content = part.partition(b"\r\n\r\n")
    name = _PART_NAME.search(head)
    if not separator or name is None:
        raise Invalid("a part of the form has no name")
    return name[1].decode(errors="replace"), content


def _text(form: Mapping[str, bytes], name: str) -> str:
    try:
        return form[name].decode()
    except UnicodeDecodeError:
        raise Invalid("the form cannot be used", [Problem("it is not UTF-8", f"/{name}")]) from None


def _spec(form: Mapping[str, bytes], files: Any) -> dict[str, Any]:
    spec = {"name": _text(form, "name"), "type": "protobuf", "files": files}
    if "description" in form:
        spec["description"] = _text(form, "description")
    return spec


def _kept(current: Spec) -> dict[str, Any]:
    """Members that a change keeps unless it names them: description, tags, metadata, compatibility."""
    return {
        key: current[key]
        for key in ("description", "tags", "metadata", "compatibility")
        if key in current
    }
