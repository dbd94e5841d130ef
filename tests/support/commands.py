"""The `ridgeway` command as users run it, in a process of its own or by its main function, with
folders of its own.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer import Context
from typer.core import TyperGroup

from ridgeway.__main__ import command, main
from ridgeway.common.base.files import sha256_of_file
from ridgeway.common.base.identity import create_identity
from ridgeway.common.statistics import save_prepared
from ridgeway.common.text.encoder_files import save_encoder
from ridgeway.coordinator.solving.solve import draft, sign
from tests.support.corpora_on_disk import (
    ALPHABETS,
    job,
    sentences,
    without_cache,
    write_jsonl,
)
from tests.support.making import USUAL_CHOICES
from tests.support.tiny import tiny_encoder
from tests.support.waiting import MAX_WAIT_S

RIDGEWAY = Path(sys.executable).with_name("ridgeway")
WIDTH = 32
"""The width of the workshop's encoder: enough to tell letters apart."""


@dataclass(frozen=True, slots=True)
class Finished:
    """What a command left behind."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)

    @property
    def good(self) -> Finished:
        """The same; fails unless the command did what it was asked to."""
        assert self.code == 0 and "Traceback" not in self.stderr, self.stderr
        return self

    @property
    def refusal(self) -> str:
        """The sentence of a command that was refused: exit code 2, and nothing on stdout."""
        assert (self.code, self.stdout) == (2, ""), self
        assert "Traceback" not in self.stderr, self.stderr
        return self.stderr.strip().splitlines()[-1]


def home_variables(home: Path) -> dict[str, str]:
    """The variables that let commands keep a cache, a configuration and a state in this folder."""
    return {
        f"RIDGEWAY_{name.upper()}": str(home / name)
        for name in ("cache", "config", "state")
    }


def command_line(words: Sequence[str | Path]) -> list[str]:
    """The words of a command, of which the first may be several: "client status", folder."""
    return [*" ".join(map(str, words[:1])).split(), *map(str, words[1:])]


@dataclass(frozen=True, slots=True)
class Workshop:
    """A folder with all that commands need: an encoder, corpora, statistics, test texts, a release,
    a key, a cache.

    encoder/  code.jsonl law.jsonl medicine.jsonl  code.stats law.stats  tests/DOMAIN.test.jsonl
    release/  home/
    """

    folder: Path

    @property
    def encoder(self) -> str:
        return f"dir:{self.folder / 'encoder'}"

    @property
    def private_encoder(self) -> str:
        """The same with what private rounds know."""
        return f"{self.encoder}+words+sentence"

    @property
    def cache(self) -> Path:
        return self.folder / "home" / "cache"

    @property
    def key(self) -> Path:
        return self.folder / "home" / "config" / "coordinator.key"

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    def share(self, cache: Path) -> None:
        """Have what was converted there in this cache too."""
        shutil.copytree(cache, self.cache, copy_function=os.link, dirs_exist_ok=True)

    def environment(self, **changes: str) -> dict[str, str]:
        return {**os.environ, **home_variables(self.folder / "home"), **changes}

    def run(
        self,
        *words: str | Path,
        before: Callable[[], None] | None = None,
        cwd: Path | None = None,
        **environment: str,
    ) -> Finished:
        """Run `ridgeway WORDS...` to its end; the first word may be several."""
        done = subprocess.run(
            [RIDGEWAY, *command_line(words)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=self.environment(**environment),
            cwd=cwd or self.folder,
            preexec_fn=before,
            timeout=MAX_WAIT_S,
        )
        return Finished(done.returncode, done.stdout.decode(), done.stderr.decode())

    def call(
        self,
        *words: str | Path,
        stdin: str = "",
        cwd: Path | None = None,
        **environment: str,
    ) -> Finished:
        """The same without a process of its own: the command's main function, with its exit code
        and its words.
        """
        out, err = io.StringIO(), io.StringIO()
        given = io.BytesIO(stdin.encode(errors="surrogateescape"))
        with (
            pytest.MonkeyPatch.context() as patch,
            redirect_stdout(out),
            redirect_stderr(err),
        ):
            patch.chdir(cwd or self.folder)
            patch.setattr(sys, "stdin", io.TextIOWrapper(given))
            for name, value in self.environment(**environment).items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit) as ended, warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # typer's, of click
                main(command_line(words))
        return Finished(int(ended.value.code or 0), out.getvalue(), err.getvalue())

    def do(self, *words: str | Path, **options: Any) -> Finished:
        """The same to its good end."""
        return self.call(*words, **options).good

    def prepare(self, *words: str | Path, **options: Any) -> Finished:
        usual = ("client prepare --encoder", self.encoder)
        return self.call(*usual, *command_line(words), **options)

    def solve(self, *words: str | Path, **options: Any) -> Finished:
        usual = ("coordinator solve --encoder", self.encoder)
        return self.call(*usual, *command_line(words), **options)


def workshop(folder: Path) -> Workshop:
    """Make a workshop without the help of the commands that it is there to test."""
    made = Workshop(folder)
    encoder = tiny_encoder(WIDTH)
    save_encoder(encoder, folder / "encoder")
    parts = []
    for domain in ALPHABETS:
        *train, first, second, third = sentences(domain, 23)
        write_jsonl(folder / f"{domain}.jsonl", train)
        write_jsonl(folder / "tests" / f"{domain}.test.jsonl", [first, second, third])
        work = job(folder / f"{domain}.jsonl", window=64)
        summed = without_cache(
            work, encoder, folder / "home" / f"cache-{domain}"
        ).prepared
        parts.append(replace(summed, domain=domain))
        save_prepared(parts[-1], folder / f"{domain}.stats")
    key = create_identity(made.key)
    sign(draft(parts, encoder, USUAL_CHOICES), key, folder / "release")
    return made


def listing(*folders: Path) -> dict[str, str]:
    """Every file and folder below these, hidden ones too, with what it holds."""
    paths = sorted(path for folder in folders for path in folder.rglob("*"))
    return {
        str(path): sha256_of_file(path) if path.is_file() else "folder"
        for path in paths
    }


def output_of(command: Sequence[str | Path], cwd: Path, **options: Any) -> str:
    """What a program prints that ends well."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


@cache
def _application() -> Any:
    return command()


def check_words(words: list[str], *, whole: bool = True) -> None:
    """Fails unless `ridgeway …` is a command of this Ridgeway, with its options and arguments.

    whole: no argument is missing and every value is valid.
    """
    named, left = _application(), words[1:]
    while isinstance(named, TyperGroup) and left and not left[0].startswith("-"):
        named = named.get_command(Context(named), left[0]) or pytest.fail(
            f"no command {' '.join(words)}"
        )
        left = left[1:]
    if not whole:
        named.make_parser(Context(named)).parse_args(list(left))
    elif not isinstance(named, TyperGroup):
        named.make_context("ridgeway", left, resilient_parsing=False)
