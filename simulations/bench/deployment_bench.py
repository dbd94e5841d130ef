"""A masked, a private and a clear round of three holders, every process on loopback."""

from __future__ import annotations

import json
import os
import random
import statistics
import string
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

from ridgeway.common.base.records import Mode
from ridgeway.common.deploy.processes import free_port
from ridgeway.common.text.encoder_files import save_encoder
from ridgeway.common.text.table_encoder import TableEncoder
from ridgeway.common.text.tokenizer import plain_definition
from ridgeway.simulations.bench.bench_inputs import random_encoder
from ridgeway.simulations.bench.measuring import BenchOptions, Row, printed, running
from ridgeway.simulations.corpora import write_texts

_ALPHABETS = {"code": "0123456789., ", "law": "abcdefgh ", "medicine": "nopqrstuv ,"}
_MODES: tuple[Mode, ...] = ("masked", "private", "clear")
WIDTH = 576


def rows(options: BenchOptions) -> Iterator[Row]:
    for mode in _MODES:
        with loopback(mode) as federation:
            yield from federation.round_rows(mode)


class LoopbackFederation:
    """A coordinator that is up and holders that are connected, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.coordinator = folder / "coordinator"
        self.environment = os.environ | {
            "RIDGEWAY_CACHE": str(folder / "cache"),
            "RIDGEWAY_STATE": str(folder / "state"),
        }

    def call(self, *words: str | Path) -> str:
        """Run a command to its end."""
        return printed("-m", "ridgeway", *words, env=self.environment)

    def running(
        self, name: str, word: str, *words: str | Path
    ) -> AbstractContextManager[int]:
        """A command that runs within a block, from when it has printed this word."""
        command = [sys.executable, "-m", "ridgeway", *map(str, words)]
        return running(command, word, self.folder / f"{name}.log", self.environment)

    def round_rows(self, mode: Mode) -> Iterator[Row]:
        started = time.monotonic()
        report = json.loads(
            self.call("coordinator", "round", self.coordinator, "--json")
        )
        seconds = time.monotonic() - started
        exchanges = [float(exchange["seconds"]) for exchange in report["exchanges"]]
        middle = statistics.median(exchanges)
        name = f"a {mode} round of three, h={WIDTH}"
        yield Row(
            f"{name}: seconds",
            f"{seconds:.1f} s",
            f"{len(exchanges)} exchanges",
            seconds,
            "≤ 15",
        )
        yield Row(
            f"{name}: seconds of the median exchange",
            f"{middle:.2f} s",
            ", ".join(f"{seconds:.1f}" for seconds in exchanges),
            middle,
            "≤ 2",
        )


@contextmanager
def loopback(mode: Mode) -> Iterator[LoopbackFederation]:
    """A federation of three holders whose epochs are open, up and connected."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        federation = LoopbackFederation(folder)
        call = federation.call
        coordinator = federation.coordinator
        save_encoder(letter_encoder(), folder / "encoder")
        encoder = ("--encoder", f"dir:{folder / 'encoder'}")
        listen = ("--listen", f"127.0.0.1:{free_port()}")
        invite = ("--invite", coordinator / "invite")
        call("coordinator", "init", coordinator, *listen, *encoder, "--mode", mode)
        call("coordinator", "invite", coordinator)
        for name in _ALPHABETS:
            home = folder / name
            corpus = folder / f"{name}.jsonl"
            write_texts(corpus, _texts(name))
            about = ("--domain", name, "--corpus", corpus, "--accept-mode", mode)
            call("client", "init", home, *invite, *about, *encoder)
            key = home / "holder.pub"
            call("coordinator", "admit", coordinator, key, "--name", name)
        call("coordinator", "invite", coordinator)
        for name in _ALPHABETS:
            shown = call("client", "members", folder / name, *invite, "--json")
            call("client", "confirm", folder / name, json.loads(shown)["code"])
            call("client", "ready", folder / name)
        up = federation.running("up", "up ", "coordinator", "up", coordinator)
        stack.enter_context(up)
        for name in _ALPHABETS:
            join = ("client", "join", folder / name)
            stack.enter_context(federation.running(name, "connected", *join))
        yield federation


def letter_encoder() -> TableEncoder:
    """An encoder whose tokens are letters, so that the protocol is what counts."""
    vocabulary = {letter: index for index, letter in enumerate(string.printable)}
    letters = Tokenizer(WordLevel(vocabulary, unk_token=" "))
    letters.pre_tokenizer = Split(Regex(r"[\s\S]"), "isolated")
    tokenizer = plain_definition(letters.to_str().encode())
    return random_encoder(len(vocabulary), WIDTH, tokenizer)


def _texts(name: str) -> list[str]:
    dice = random.Random(name)
    return ["".join(dice.choices(_ALPHABETS[name], k=400)) for _ in range(60)]
