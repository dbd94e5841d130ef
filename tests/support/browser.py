"""Debian's Chromium without a window, driven by Playwright, and what tests of the page ask of
it.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import (
    Browser,
    Locator,
    Page,
    Request,
    expect,
    sync_playwright,
)

from tests.support.waiting import processes_per_core

ARGUMENTS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
).split()
WAIT_MS = 60_000
"""How long the browser and the page may take for one thing, on a machine that is not overloaded."""
LEVEL = {"text": 4.5, "sign": 3.0}
"""The contrast that WCAG 2 asks of text, and of signs beside it."""


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A browser; without one on the machine, tests are skipped."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("there is no chromium on this machine")
    expect.set_options(timeout=_wait_ms())
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=ARGUMENTS, timeout=_wait_ms()
        )
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Visit:
    """A page of the service, and whatever went wrong while it was open."""

    page: Page
    home: str
    troubles: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def watch(self) -> None:
        self.page.on(
            "console",
            lambda message: self.troubles.append(f"{message.type}: {message.text}"),
        )
        self.page.on("pageerror", lambda error: self.troubles.append(f"error: {error}"))
        self.page.on(
            "requestfailed",
            lambda request: self.troubles.append(f"failed: {request.url}"),
        )
        self.page.on("request", self._note)

    def anew(self) -> None:
        """As if it were just opened, in a third of the time; what the browser keeps for a place
        stays.
        """
        self.page.unroute_all()
        self.page.goto("about:blank")
        self.troubles.clear()
        self.asked.clear()
        self.page.goto(self.home)

    def _note(self, request: Request) -> None:
        self.asked.append(request.url.removeprefix(self.home))
        if not request.url.startswith(f"{self.home}/"):
            self.troubles.append(f"asked elsewhere: {request.url}")

    def open_all(self) -> None:
        """Open whatever the page keeps one click away."""
        self.page.locator("details").evaluate_all(
            "all => all.forEach(each => each.open = true)"
        )

    @property
    def prompt(self) -> Locator:
        """The box of the prompt."""
        return self.page.get_by_label("Prompt to route")

    def press(self, button: str, *, exact: bool = False) -> None:
        self.page.get_by_role("button", name=button, exact=exact).click()

    def expect(self, selector: str) -> Any:
        """What a part of the page is waited to be."""
        return expect(self.page.locator(selector))

    def says(self, selector: str, *texts: str | re.Pattern[str]) -> None:
        """Wait until a part of the page holds all of these texts."""
        for text in texts:
            self.expect(selector).to_contain_text(text)

    def shows(self, selector: str, text: str | re.Pattern[str] | list[str]) -> None:
        """Wait until a part of the page has this text, or several have these."""
        self.expect(selector).to_have_text(text)

    def type_prompt(self, prompt: str) -> None:
        """Put a prompt into the box, and wait until its tokens are shown."""
        self.prompt.fill(prompt)
        self.expect("#tokens").to_have_text(prompt, use_inner_text=True)


@contextlib.contextmanager
def visit(
    browser: Browser,
    home: str,
    path: str = "/",
    *,
    calm: bool = True,
    own_clock: bool = False,
    **context: Any,
) -> Iterator[Visit]:
    """Open a page.

    calm:      nothing may go wrong: no word on the console, no failed request, none to anybody
               else.
    own_clock: the test may let the page's time pass faster.
    """
    with contextlib.closing(browser.new_context(**context)) as room:
        room.set_default_timeout(_wait_ms())
        opened = Visit(room.new_page(), home)
        opened.watch()
        if own_clock:
            opened.page.clock.install()
        opened.page.goto(home + path)
        yield opened
        if calm:
            assert opened.troubles == []


def _wait_ms() -> float:
    return WAIT_MS * processes_per_core()


def channels(colour: str) -> tuple[float, float, float, float]:
    """Red, green, blue from 0 to 255 and the opacity of a computed colour: rgb(…) or rgba(…)."""
    parts = [
        float(part)
        for part in colour[colour.index("(") + 1 : -1]
        .replace(",", " ")
        .replace("/", " ")
        .split()
    ]
    red, green, blue, *rest = parts
    return red, green, blue, rest[0] if rest else 1.0


def blended(layers: list[str]) -> tuple[float, float, float]:
    """What is seen of colours on top of each other, the uppermost first; the last is opaque."""
    *upper, lowest = (channels(colour) for colour in layers)
    red, green, blue, _ = lowest
    for top in reversed(upper):
        red, green, blue = (
            old + (new - old) * top[3]
            for old, new in zip((red, green, blue), top[:3], strict=True)
        )
    return red, green, blue


def luminance(colour: tuple[float, float, float]) -> float:
    shares = [value / 255 for value in colour]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in shares
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(layers: list[str], below: list[str]) -> float:
    """The contrast of WCAG 2 between a colour over a background and that background."""
    bright, dark = sorted(
        (luminance(blended([*layers, *below])), luminance(blended(below))), reverse=True
    )
    return (bright + 0.05) / (dark + 0.05)


LOOKS: list[tuple[int, Any]] = [(390, "dark"), (1280, "light")]
"""Both widths and both schemes; no style of the page depends on a width and a scheme together."""
BY_LOOKS = {"runOnly": ["color-contrast", "scrollable-region-focusable", "target-size"]}
AXE = """async (options) => (await axe.run(options)).violations
  .map(found => [found.id, ...found.nodes.map(node => node.html.slice(0, 200))].join(' | '))"""


def violations(page: Page, rules: Sequence[str] = ()) -> list[str]:
    """What axe-core finds by all its rules, and in other widths and colours by those that depend on
    them.

    rules: tags of axe-core's rules, instead of all.
    """
    spec = find_spec("axe_playwright_python")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(
            "axe-playwright-python is not installed, so nobody looks for barriers"
        )
    page.evaluate((Path(spec.submodule_search_locations[0]) / "axe.min.js").read_text())
    barriers: list[str] = []
    options = {"runOnly": list(rules)} if rules else {}
    for index, (width, scheme) in enumerate(LOOKS):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        barriers += [
            f"{width} {scheme} {each}"
            for each in page.evaluate(AXE, BY_LOOKS if index else options)
        ]
        if page.evaluate("document.documentElement.scrollWidth") > width:
            barriers.append(f"{width} is too narrow")
    return barriers
