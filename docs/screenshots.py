"""Draws the pages of the dashboard for the documentation: ``python -m docs.screenshots`` writes ``docs/images``.

The pages are those of the demo when rows are in its table, with what it lacks: a rule with a bridge whose server does
not answer, and a validation in shadow mode.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import httpx
from playwright.sync_api import sync_playwright

from tests.support.node import eventually
from tests.support.plain_http import NO_TLS
from tests.support.processes import free_port
from tests.ui.browser import CHROMIUM

IMAGES: Final = Path(__file__).parent / "images"
TOKEN: Final = "for-screenshots-only"
CHARTED_S: Final = 270
"""How long the broker has run when its charts of five minutes are drawn."""
PATIENCE_MS: Final = 180_000
"""How long a page may take: trials wait while Spark overloads the machine."""
PAGES: Final = {
    "start": ("/", "text=so far"),
    "rules": ("/rules", ".list tbody tr >> nth=1"),
    "rule": ("/rules/warm", ".trial"),
    "schema": ("/schemas/telemetry", ".tree li >> nth=1"),
    "pipeline": ("/validations", ".pipeline li >> nth=2"),
    "shadow": ("/validations/comfort", "text=In shadow mode"),
    "action": ("/actions/orders", "h1"),
    "stream": ("/streams/telemetry?tab=records", "h1"),
    "table": ("/tables/telemetry", "text=running"),
    "overview": ("/overview", "text=every message is accounted for"),
}
"""What is drawn, and what is on the page then."""
COMFORT: Final = {"type": "object", "properties": {"temp": {"type": "number", "maximum": 22}}}
WARM: Final = 'SELECT payload.room AS room, payload.temp AS celsius\nFROM "demo/+/telemetry"\nWHERE payload.temp > 20'
LACKING: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("schemas", {"name": "comfort", "type": "json", "source": COMFORT}),
    (
        "validations",
        {
            "name": "comfort",
            "topics": ["demo/+/telemetry"],
            "strategy": "all_pass",
            "failure_action": "drop",
            "mode": "shadow",
            "checks": [{"type": "json", "schema": "comfort"}],
        },
    ),
    ("streams", {"name": "warm"}),
    ("connectors", {"name": "shop", "type": "http", "url": "http://127.0.0.1:9/"}),
    (
        "actions",
        {"name": "orders", "type": "http", "connector": "shop", "parameters": {"path": "/orders"}},
    ),
    (
        "rules",
        {
            "name": "warm",
            "sql": WARM,
            "actions": [
                {"type": "stream", "stream": "warm"},
                {"type": "bridge", "bridge": "http:orders"},
            ],
        },
    ),
)


@contextmanager
def demo(folder: str) -> Iterator[httpx.Client]:
    """The demo with rows in its table, and a client of its API."""
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "broker.cli.main",
        "demo",
        "--no-browser",
        "--data-dir",
        f"{folder}/demo-data",
    ]
    command += ["--mqtt", "127.0.0.1:0", "--api", f"127.0.0.1:{port}"]
    process = subprocess.Popen(
        command, env=os.environ | {"SLUICE_API_TOKEN": TOKEN}, stdout=subprocess.DEVNULL
    )
    try:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60, verify=NO_TLS
        ) as http:
            eventually(
                lambda: http.get("/api/v1/lake/tables/telemetry").json()["rows"],
                180,
                what="rows in the table",
            )
            yield http
    finally:
        process.terminate()
        process.wait(60)


def main() -> None:
    """Draw each page at 1280 pixels in light colours, and the first also at 390 in dark ones."""
    IMAGES.mkdir(exist_ok=True)
    with TemporaryDirectory() as folder, demo(folder) as http, sync_playwright() as playwright:
        for path, spec in LACKING:
            http.post(f"/api/v1/{path}", json=spec).raise_for_status()
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme="light")
        page.set_default_timeout(PATIENCE_MS)
        address = str(http.base_url).rstrip("/")
        page.request.post(
            f"{address}/api/v1/session", data={"token": TOKEN}, headers={"Origin": address}
        )
        for name, (path, shown) in PAGES.items():
            if name == "overview":
                eventually(
                    lambda: http.get("/api/v1/status").json()["uptime_s"] > CHARTED_S,
                    400,
                    what="charts",
                )
            page.goto(f"{address}{path}")
            page.wait_for_selector(shown)
            page.wait_for_timeout(3000)  # charts and trials have drawn a few values
            page.screenshot(path=IMAGES / f"{name}.png")
        page.emulate_media(color_scheme="dark")
        page.set_viewport_size({"width": 390, "height": 800})
        page.goto(f"{address}/overview")
        page.wait_for_selector("text=every message is accounted for")
        page.screenshot(path=IMAGES / "overview-narrow.png")
        browser.close()


if __name__ == "__main__":
    main()
