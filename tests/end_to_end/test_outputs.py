"""What commands may write over, and how results are shown where there is little room."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
from pathlib import Path

import pytest

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.files import check_output
from tests.support.commands import RIDGEWAY, Workshop, workshop


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    return workshop(tmp_path)


@pytest.mark.parametrize("corpus", ["notes.txt", "notes"])
def test_a_corpus_is_never_overwritten(shop: Workshop, corpus: str) -> None:
    """Naming a private file as the output is refused, alone and within its folder; it stays as it
    was.
    """
    (shop / "notes").mkdir()
    for path in (shop / "notes.txt", shop / "notes" / "notes.txt"):
        path.write_text("years of work\n" * 50)
    out = "notes.txt" if corpus == "notes.txt" else "notes/notes.txt"
    prepared = shop.prepare(corpus, "--domain", "d", "--holdout", "0", "--out", out)
    assert "part of the corpus" in prepared.refusal
    assert (shop / out).read_text() == "years of work\n" * 50


def test_statistics_may_lie_in_the_folder_they_were_made_from(shop: Workshop) -> None:
    """A statistics file is no text, so the second run neither reads nor refuses it."""
    (shop / "notes").mkdir()
    (shop / "notes" / "a.txt").write_text("some words\n" * 50)
    for _ in range(2):
        assert shop.prepare("notes --domain d --holdout 0 --out notes/d.stats").good


def test_only_ordinary_files_are_written_over(tmp_path: Path) -> None:
    """Pipes, links and folders are refused before any work is done."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "file").write_text("x")
    for name in ("pipe", "link", ".", "file/below"):
        with pytest.raises(InputError):
            check_output(tmp_path / name)
    check_output(tmp_path / "file")
    check_output(tmp_path / "new" / "file")


def test_a_release_of_another_operator_is_left_alone(shop: Workshop) -> None:
    """Solving into a folder whose release signed with another key is refused; one's own is
    replaced.
    """
    assert shop.solve("code.stats law.stats --out release").good
    before = (shop / "release" / "manifest.json").read_bytes()
    other = shop.solve(
        "code.stats law.stats --out release",
        RIDGEWAY_CONFIG=str(shop / "other"),
    )
    assert "signed with another key" in other.refusal
    assert (shop / "release" / "manifest.json").read_bytes() == before


def test_the_public_key_can_be_shown_at_any_time(shop: Workshop) -> None:
    """It is the one that releases are signed with, and pinning it works; a key file is made where
    one is named, and nowhere else.
    """
    shown = shop.call("coordinator key --key-file", shop.key)
    assert re.fullmatch("[0-9a-f]{64}\n", shown.stdout)
    assert shop.call("route release prompt --key", shown.stdout.strip()).code == 0
    made = shop.call("coordinator init co --mode clear --json --encoder", shop.encoder)
    assert (
        shop.call("coordinator key co").stdout.strip()
        == made.json["public_key"]
        != shown.stdout.strip()
    )
    assert "the coordinator is down" in shop.call("coordinator status co").stderr, (
        "co is a part of this word"
    )
    bare = shop.call("coordinator key", RIDGEWAY_CONFIG=str(shop / "empty"))
    assert (bare.code, bare.stderr.count("\n"), (shop / "empty").exists()) == (
        2,
        1,
        False,
    )
    assert "ridgeway coordinator key DIR" in bare.stderr
    made = shop.call("coordinator key --key-file new.key --json")
    assert made.json["public_key"] != shown.stdout.strip()
    assert shop.call("coordinator key --key-file new.key --json").json == made.json
    assert (shop / "new.key").stat().st_mode & 0o077 == 0


def test_figures_are_never_cut_off_on_a_narrow_terminal(shop: Workshop) -> None:
    """In forty columns the evaluation's table is wider than the terminal, and every figure of it is
    there.
    """
    words = ["evaluate", "release", "tests"]
    expected = shop.call(*words, "--json").json
    control, terminal = pty.openpty()
    environment = shop.environment(COLUMNS="40", TERM="dumb")
    process = subprocess.Popen(
        [RIDGEWAY, *words],
        stdout=terminal,
        stderr=terminal,
        env=environment,
        cwd=shop.folder,
    )
    shown = b""
    while select.select([control], [], [], 0.2)[0] or process.poll() is None:
        if select.select([control], [], [], 0)[0]:
            shown += os.read(control, 4096)
    os.close(
        terminal
    )  # only now: what a terminal holds when its last user goes may be lost
    os.close(control)
    assert process.wait() == 0
    rows = [line.split() for line in shown.decode().splitlines() if line.split()]
    for name, counts in zip(expected["order"], expected["confusion"], strict=True):
        row = next(row for row in rows if row[0] == name)
        assert [int(cell) for cell in row[-len(counts) :]] == counts
        assert f"{expected['domains'][name]:.1f}" in row
