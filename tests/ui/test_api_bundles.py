"""Protobuf schemas of several files, uploaded as a gzipped tar."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from typing import Any

import pytest

from tests.ui.test_api_schemas import Api

FILES = {
    "device.proto": 'syntax = "proto3"; import "common/unit.proto"; message Device { Unit unit = 1; }',
    "other.proto": 'syntax = "proto3"; message Other { string a = 1; }',
    "common/unit.proto": 'syntax = "proto3"; message Unit { int32 n = 1; }',
}


@pytest.fixture
def api() -> Iterator[Api]:
    made = Api({})
    yield made
    made.close()


def archive(files: dict[str, str]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for path, text in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return packed.getvalue()


def send(api: Api, method: str, form: dict[str, str], bundle: bytes | None, expect: int) -> Any:
    files = {name: (None, value) for name, value in form.items()}
    if bundle is not None:
        files["bundle"] = ("b.tgz", bundle)  # type: ignore[assignment] # httpx takes both kinds
    answer = api.http.request(method, "/schemas:bundle", files=files)
    assert answer.status_code == expect, answer.text
    return answer.json()


FORM = {"name": "device", "root_proto_file": "device.proto"}


def test_a_bundle_is_uploaded_and_codes_payloads(api: Api) -> None:
    made = send(api, "POST", {**FORM, "description": "of meters"}, archive(FILES), 201)
    assert (made["type"], made["description"]) == ("protobuf", "of meters")
    assert {item["path"]: item["root"] for item in made["files"]} == {
        path: path == "device.proto" for path in FILES
    }
    encoded = api.call(
        "POST", "/schemas/device:encode", {"message_type": "Device", "value": {"unit": {"n": 5}}}
    )
    assert encoded == {"payload": {"encoding": "utf8", "data": "\n\x02\x08\x05"}}
    send(api, "POST", FORM, archive(FILES), 409)


def test_the_location_of_a_new_bundle_is_its_schema(api: Api) -> None:
    form = {name: (None, value) for name, value in FORM.items()} | {
        "bundle": ("b.tgz", archive(FILES))
    }
    created = api.http.post("/schemas:bundle", files=form)
    assert created.headers["location"].endswith("/api/v1/schemas/device")
    assert (
        api.http.get(created.headers["location"].removeprefix("/api/v1")).json()["name"] == "device"
    )


def test_without_a_bundle_the_root_and_the_description_change(api: Api) -> None:
    send(api, "POST", {**FORM, "description": "of meters"}, archive(FILES), 201)
    api.call("PUT", "/schemas/device/compatibility", {"compatibility": "none"})
    made = send(api, "PUT", {"name": "device", "root_proto_file": "other.proto"}, None, 200)
    assert made["facts"] == {"message_types": ["Other"]}
    assert made["description"] == "of meters"
    send(api, "PUT", {"name": "device", "root_proto_file": "nosuch.proto"}, None, 422)
    send(api, "PUT", {"name": "nosuch", "root_proto_file": "other.proto"}, None, 404)


@pytest.mark.parametrize(
    ("form", "files", "says"),
    [
        ({"name": "device"}, FILES, "the part 'root_proto_file' is missing"),
        ({**FORM, "roots": "x"}, FILES, "unknown part 'roots'"),
        ({**FORM, "root_proto_file": "common/unit.proto"}, FILES, "a name without a folder"),
        (FORM, {"x.proto": ""}, "has 0 files 'device.proto'"),
        (FORM, {"../device.proto": ""}, "must stay in the bundle"),
        (FORM, {"device.proto": FILES["device.proto"]}, "missing: common/unit.proto"),
        (
            FORM,
            {"device.proto": 'import "../x.proto"; message A {}'},
            "leave the folder: ../x.proto",
        ),
        ({**FORM, "name": "no/name"}, FILES, "name"),
    ],
)
def test_a_bundle_that_cannot_be_used_says_why(
    api: Api, form: dict[str, str], files: dict[str, str], says: str
) -> None:
    problem = send(api, "POST", form, archive(files), 422)
    assert says in str(problem["errors"] or problem["detail"])


def test_a_body_that_is_no_form_is_refused(api: Api) -> None:
    for content_type, body in (
        ("application/json", b"{}"),
        ("multipart/form-data", b"x"),
        ("multipart/form-data; boundary=x", b"--x\r\n\r\n"),
        ("multipart/form-data; boundary=x", b"--x\r\n\r\nno name\r\n--x--\r\n"),
        ("multipart/form-data; boundary=x", b"--x" * 1000),
    ):
        answer = api.http.post(
            "/schemas:bundle", content=body, headers={"content-type": content_type}
        )
        assert answer.status_code == 422, answer.text
    send(api, "POST", FORM, b"not a tar", 422)
    answer = api.http.post("/schemas:bundle", files={"name": (None, b"\xff")})
    assert answer.status_code == 422
