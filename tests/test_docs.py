"""README and docs: commands that exist, links that lead somewhere, plain words, a site that
builds.
"""

from __future__ import annotations

import gzip
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.support.browser import chromium, violations
from tests.support.commands import Workshop, check_words, output_of, workshop

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
FRONT = [ROOT / name for name in ("README.md", "CONTRIBUTING.md")]


def blocks(text: str) -> Iterator[str]:
    """Code of a page: what is indented by four, and fenced shell."""
    fenced = re.findall(
        r"^```(?:sh|console)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL
    )
    indented = re.findall(
        r"(?:^(?: {4,}).*\n|^\n)+",
        re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL),
        re.MULTILINE,
    )
    yield from fenced
    yield from indented


def commands_in(text: str) -> Iterator[list[str]]:
    """Every `ridgeway …` in the code of a page, up to the end of its command."""
    for block in blocks(text):
        for line in block.replace("\\\n", " ").splitlines():
            said = re.sub(r"\s#.*", "", line.strip().removeprefix("$ "))
            for part in said.split(" && "):
                if part.startswith("ridgeway "):
                    words = shlex.split(part.partition(" < ")[0].partition(" > ")[0])
                    yield [word for word in words if word != "…"]


@pytest.mark.parametrize(
    "path", [*FRONT, *PAGES], ids=lambda path: str(path.relative_to(ROOT))
)
def test_every_documented_command_is_one_of_this_ridgeway(path: Path) -> None:
    """Its options and arguments, too: a command that is renamed must be renamed there."""
    text = path.read_text()
    for words in commands_in(text):
        check_words(words)
    for inline in re.findall(r"`(ridgeway [^`]+)`", text):
        check_words([word for word in shlex.split(inline) if word != "…"], whole=False)


def test_the_documented_commands_are_found() -> None:
    """A pattern that finds nothing would let everything pass."""
    found = [
        " ".join(words[1:3])
        for path in [*FRONT, *PAGES]
        for words in commands_in(path.read_text())
    ]
    assert {
        "coordinator up",
        "client join",
        "client prepare",
        "serve demo-run/release",
    } <= set(found)
    assert len(found) > 80


@pytest.mark.parametrize("path", FRONT, ids=lambda path: path.name)
def test_links_of_the_front_pages_lead_somewhere(path: Path) -> None:
    """The site checks its own links; these pages stand outside it."""
    links = re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", path.read_text())
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(DOCS)))
def test_a_page_opens_with_whom_it_is_for(path: Path) -> None:
    """A title, then one sentence that begins with *For*; the first page has a table of readers
    instead.
    """
    lines = [line for line in path.read_text().splitlines() if line]
    assert lines[0].startswith("# ")
    assert lines[1].startswith("For ") or path == DOCS / "index.md"


def test_the_readme_is_short() -> None:
    """It fits a few screens, and has the two commands that do everything."""
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    assert "make demo" in text
    assert "make test" in text


# What runs as it is written, in a folder with a release, corpora and an experts file

RUNS = {
    "README.md": 0,
    "docs/application/router-api.md": 6,
    "docs/application/keys-and-limits.md": 6,
    "docs/application/confidence.md": 1,
    "docs/holder/prepare.md": 4,
}
"""Pages, and how many of their commands are run."""
SAFE = (
    "client inspect",
    "client prepare",
    "coordinator solve",
    "evaluate",
    "keys",
    "route",
)
EXPERTS = """fallback = "generalist"
[experts.generalist]
base_url = "http://127.0.0.1:9/v1"
model = "large"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Workshop:
    """As a reader has it: a release, what a holder and an operator have, experts, and prompts."""
    shop = workshop(tmp_path)
    for copy in ("demo-run/release", "co/releases"):
        shutil.copytree(shop / "release", shop / copy)
    shutil.copytree(shop / "tests", shop / "data")
    shutil.copytree(shop / "tests", shop / "held-out")
    for domain in ("code", "medicine"):
        (shop / f"{domain}.stats").unlink(missing_ok=True)
        out = ("--domain", domain, "--out", f"{domain}.stats")
        assert shop.prepare(f"{domain}.jsonl", *out).good
    shutil.copytree(shop / "tests", shop / "contracts")
    with gzip.open(shop / "rulings.jsonl.gz", "wb") as file:
        file.write((shop / "law.jsonl").read_bytes())
    (shop / "experts.toml").write_text(EXPERTS)
    (shop / "prompts.txt").write_text("abc\nnop\n")
    return shop


@pytest.mark.slow
@pytest.mark.parametrize("page", RUNS)
def test_documented_commands_run_as_written(folder: Workshop, page: str) -> None:
    """In their order; `prepare` and `solve` with the small encoder of tests, which the page need
    not name.
    """
    text = (ROOT / page).read_text()
    if "coordinator solve" in text:
        shutil.rmtree(folder / "release")
        (folder / "law.stats").unlink()
    ran = 0
    for words in commands_in(text):
        said = " ".join(words[1:])
        if not said.startswith(SAFE):
            continue
        small = (
            ["--encoder", folder.encoder]
            if said.startswith(("client prepare", "coordinator solve"))
            else []
        )
        done = folder.call(*words[1:], *small, stdin="abc\n")
        assert done.code == 0, f"{said}: {done.stderr}"
        ran += 1
    assert ran >= RUNS[page]
    for code in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if "openai" not in code:
            environment = folder.environment(PYTHONPATH=str(ROOT))
            command = [sys.executable, "-c", code]
            output_of(command, folder.folder, env=environment)


# The site


@pytest.fixture(scope="module")
def site(module_path: Path) -> Path:
    words = "-m mkdocs build --strict --quiet --site-dir".split()
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    output_of([sys.executable, *words, module_path], ROOT, env=environment)
    return module_path


@pytest.mark.slow
def test_the_reference_is_generated(site: Path) -> None:
    """Commands, settings and refusals come from the code."""
    for page, word in {
        "reference/cli": "ridgeway coordinator rollback",
        "reference/settings": "max_round_epsilon",
        "operator/troubleshooting": "budget_spent",
    }.items():
        assert word in (site / page / "index.html").read_text()


@pytest.mark.slow
def test_the_site_asks_no_other_site(site: Path) -> None:
    """It can be read without the internet."""
    for page in site.rglob("*.html"):
        asked = re.findall(
            r'<(?:script|link|img)[^>]+(?:src|href)="(https?://[^"]+)"',
            page.read_text(),
        )
        assert asked == []


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    ["index", "quickstart/index", "reference/privacy/index", "reference/cli/index"],
)
def test_a_page_of_the_site_is_readable(
    browser: Browser, site: Path, page: str
) -> None:
    """By axe-core, narrow and wide, light and dark, nothing to scroll sideways."""
    with browser.new_context(bypass_csp=True) as context:
        seen = context.new_page()
        seen.goto((site / f"{page}.html").as_uri())
        seen.add_style_tag(
            content="* { transition: none !important; }"
        )  # colours as they are once settled
        assert violations(seen, ["wcag2a", "wcag2aa"]) == []
