"""A real browser for tests of the dashboard."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from tests.support.node import TOKEN, Node
from ui.api.pages import WEB
from ui.web import build

CHROMIUM: Final = next(
    filter(
        None,
        map(
            shutil.which,
            ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"),
        ),
    ),
    None,
)
"""The shell is the same engine without windows, for less of the processor's time."""
ARGUMENTS: Final = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
VIEWPORT: Final = {"width": 1280, "height": 900}
AXE: Final = WEB / "node_modules" / "axe-core" / "axe.min.js"
LOOKS: Final = tuple((width, scheme) for width in (1280, 768, 390) for scheme in ("light", "dark"))
"""Widths, each in both colours."""
AXE_RULES: Final = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]


class Tabs:
    """Tabs of one browser, each as in a new one, but for what a server lets it keep: compiling the scripts of the page
    again for each test would take longer than most tests."""

    def __init__(self, browser: Any) -> None:
        self._browser = browser
        self._context: Any = None

    def open(self) -> Any:
        """A tab without cookies."""
        if self._context is None:
            self._context = self._browser.new_context(viewport=VIEWPORT)
        page = self._context.new_page()
        page.set_default_timeout(30_000)
        return page

    def forget(self, page: Any) -> None:
        """Close a tab, and whatever its test has opened or set."""
        if not _has_forgotten(page):
            self.close()
            return
        for other in self._context.pages:
            other.close()
        self._context.clear_cookies()

    def close(self) -> None:
        """Close all tabs."""
        if self._context is not None:
            self._context.close()
            self._context = None


def _has_forgotten(page: Any) -> bool:
    """Remove what a page has kept; False where that cannot be, or its clock is not the real one."""
    from playwright.sync_api import Error

    try:
        return page.url.startswith("http") and not page.evaluate(
            "localStorage.clear(), sessionStorage.clear(), '__pwClock' in window"
        )
    except Error:
        return False


class Requests:
    """The requests of a page that have no answer yet."""

    def __init__(self, page: Any) -> None:
        self._page = page
        self._open: set[Any] = set()
        page.on("request", lambda request: self._open.add(request))
        page.on("requestfinished", lambda request: self._open.discard(request))
        page.on("requestfailed", lambda request: self._open.discard(request))

    def wait(self, most_s: float = 60) -> None:
        """Wait until the page has all that it asks for, and what it shows of that asks for no more.

        A busy machine never comes to playwright's ``networkidle``, half a second without a request, where a page keeps
        asking.
        """
        until_s = time.monotonic() + most_s
        quiet = 0
        while quiet < 2:
            painted(self._page)
            quiet = 0 if self._open else quiet + 1
            assert time.monotonic() < until_s, [request.url for request in self._open]


def observe(page: Any, complaints: list[str]) -> None:
    """Collect what the browser writes to its console, and requests to other servers."""
    page.on(
        "console",
        lambda message: complaints.append(message.text) if message.type == "error" else None,
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "request",
        lambda request: (
            None if request.url.startswith("http://127.0.0.1:") else complaints.append(request.url)
        ),
    )


def sign_in(page: Any, broker: Node) -> None:
    """Give the browser a session, as the page does with the token."""
    answer = page.request.post(
        f"{broker.url}/api/v1/session",
        data={"token": TOKEN},
        headers={"Origin": broker.url},
        timeout=60_000,
    )
    assert answer.status == 204


def tab_to(page: Any, selector: str, most: int = 80) -> None:
    """Move the focus with the Tab key alone, once there is something that takes it."""
    page.locator(selector).first.wait_for()
    page.wait_for_function(
        "wanted => [...document.querySelectorAll(wanted)].some(one => !one.disabled)", arg=selector
    )
    for _ in range(most):
        page.keyboard.press("Tab")
        if page.evaluate("wanted => document.activeElement.matches(wanted)", selector):
            return
    raise AssertionError(f"Tab does not reach {selector}")


def is_shown(page: Any, selector: str, most_ms: float = 500) -> bool:
    """Wait a moment for an element, and say if it came."""
    from playwright.sync_api import TimeoutError as TimedOut

    with suppress(TimedOut):
        page.wait_for_selector(selector, timeout=most_ms)
        return True
    return False


@contextmanager
def tasks_of(page: Any) -> Iterator[list[float]]:
    """The processor time of each task of the page's main thread during the block, in milliseconds; filled at its end.

    Long tasks and the latency of events, as the page itself sees them, count the time of other programs too.
    """
    found: list[float] = []
    browser = page.context.browser
    browser.start_tracing(page=page, categories=["disabled-by-default-devtools.timeline"])
    try:
        yield found
    finally:
        events = json.loads(browser.stop_tracing())["traceEvents"]
    threads = [event for event in events if event["name"] == "thread_name"]
    mains = {(one["pid"], one["tid"]) for one in threads if one["args"]["name"] == "CrRendererMain"}
    tasks = [
        one for one in events if one["name"] == "RunTask" and (one["pid"], one["tid"]) in mains
    ]
    found += [task["tdur"] / 1000 for task in tasks if "tdur" in task]


def painted(page: Any) -> None:
    """Wait until the page shows what it has changed so far."""
    page.evaluate("new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)))")


def typed(page: Any, text: str, ready: str) -> float:
    """Type, and wait until the page shows what the text leads to.

    Returns:
        The processor time that the page takes for a key on average, its paint included, in milliseconds.
    """
    with tasks_of(page) as tasks:
        for key in text:
            page.keyboard.press("Space" if key == " " else key)
            painted(page)
        page.wait_for_selector(ready)
    assert tasks
    return sum(tasks) / len(text)


def violations(page: Any) -> list[str]:
    """What axe finds wrong with the page as it is now."""
    if not page.evaluate("'axe' in window"):
        build.install(WEB)
        page.evaluate(AXE.read_text())
    found = page.evaluate(
        "rules => axe.run({runOnly: rules}).then(({violations}) => violations)", AXE_RULES
    )
    return [
        f"{one['id']}: {[(node['html'][:200], node['failureSummary']) for node in one['nodes']]}"
        for one in found
    ]


def set_look(page: Any, width: int, scheme: str) -> None:
    """Give the page a width and a colour, without a colour that is still on its way to another."""
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")


def check_look(page: Any, width: int, scheme: str) -> None:
    """Check that nothing overflows, and that axe has nothing to say."""
    assert page.evaluate("document.documentElement.scrollWidth") <= width, (page.url, width)
    assert (found := violations(page)) == [], (page.url, width, scheme, found)


def check_everywhere(page: Any, address: str, ready: str, complaints: list[str]) -> None:
    """Check a page at each width and in both colours: nothing overflows, axe and the console have nothing to say.

    It is opened once, which takes three times as long as a look at it. ``test_dashboard.py`` opens pages at each width.
    """
    page.goto(address)
    for width, scheme in LOOKS:
        set_look(page, width, scheme)
        painted(page)
        page.wait_for_selector(ready)
        check_look(page, width, scheme)
    assert complaints == [], complaints
