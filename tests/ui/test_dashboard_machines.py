"""The machines of a cluster in a real browser: one is drained from its page, and the job is followed and cancelled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.machines import Cluster, machines
from tests.support.node import eventually
from tests.ui.browser import LOOKS, check_look, painted, set_look, sign_in


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")
    with machines(directory, {"a": 1, "b": 1, "c": 2}, with_nats=True) as cluster:
        cluster.start()
        yield cluster
        cluster.stop()


def _state(cluster: Cluster, name: str) -> Any:
    rows = cluster["b"].call("GET", "/cluster/machines")["items"]
    return next((row["state"], row["cells"]) for row in rows if row["name"] == name)


def test_a_machine_is_drained_from_its_page_and_resumed_by_cancelling_the_job(
    page: Any, cluster: Cluster
) -> None:
    face: Any = cluster["a"]
    eventually(lambda: _state(cluster, "c") == ("running", [2, 3]))
    sign_in(page, face)
    page.goto(f"{face.url}/cluster/machines")
    page.get_by_label("Do something with c").click()
    page.get_by_role("menuitem", name="Drain…").click()
    page.get_by_label("Wait s").fill("3600")
    page.get_by_role("button", name="Continue").click()
    page.get_by_role("button", name="Drain", exact=True).click()
    page.get_by_text("Drain machine c: started.").wait_for()
    eventually(lambda: _state(cluster, "c") == ("draining", [2, 3]))
    page.reload()
    page.get_by_text("draining").wait_for()
    for width, scheme in LOOKS:
        set_look(page, width, scheme)
        painted(page)
        check_look(page, width, scheme)
    page.goto(f"{face.url}/jobs")
    page.get_by_text("0 of 2 cells").wait_for()
    [job] = cluster["b"].call("GET", "/jobs")["items"]
    page.get_by_label(f"Do something with {job['id']}").click()
    page.get_by_role("menuitem", name="Cancel…").click()
    page.get_by_role("button", name="Cancel", exact=True).first.click()
    page.get_by_text("cancelled").first.wait_for()
    eventually(lambda: _state(cluster, "c") == ("running", [2, 3]))
