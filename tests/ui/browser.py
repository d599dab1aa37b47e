"""A real browser for tests of the dashboard."""

from __future__ import annotations

import shutil
from typing import Any, Final

from tests.support.node import TOKEN, Node
from ui.api.pages import WEB
from ui.web import build

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS: Final = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
AXE: Final = WEB / "node_modules" / "axe-core" / "axe.min.js"
AXE_RULES: Final = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]


def sign_in(page: Any, broker: Node) -> None:
    """Give the browser a session, as the page does with the token."""
    answer = page.request.post(f"{broker.url}/api/v1/session", data={"token": TOKEN}, headers={"Origin": broker.url})
    assert answer.status == 204


def tab_to(page: Any, selector: str, most: int = 80) -> None:
    """Move the focus with the Tab key alone."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if page.evaluate("wanted => document.activeElement.matches(wanted)", selector):
            return
    raise AssertionError(f"Tab does not reach {selector}")


def observe(page: Any, kind: str) -> None:
    """Keep the browser's performance entries of a kind in ``window.entries`` from now on."""
    page.evaluate(
        """type => {
          window.entries = [];
          const keep = ({name, duration}) => window.entries.push({name, duration});
          new PerformanceObserver(list => list.getEntries().forEach(keep)).observe({type, durationThreshold: 16});
        }""",
        kind,
    )


def violations(page: Any) -> list[str]:
    """What axe finds wrong with the page as it is now."""
    build.install(WEB)
    page.evaluate(AXE.read_text())
    found = page.evaluate("rules => axe.run({runOnly: rules})", AXE_RULES)["violations"]
    return [f"{one['id']}: {[node['html'][:200] for node in one['nodes']]}" for one in found]


def check_everywhere(page: Any, address: str, ready: str, complaints: list[str]) -> None:
    """Open a page at each width in both colours: nothing overflows, axe and the console have nothing to say."""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for width in (1280, 768, 390):
            page.set_viewport_size({"width": width, "height": 800})
            page.goto(address)
            page.wait_for_selector(ready)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (address, width)
            assert violations(page) == [], (address, width, scheme)
    assert complaints == [], complaints
