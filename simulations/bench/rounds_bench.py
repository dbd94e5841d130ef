"""Benchmarks of rounds: `masking`, what masks cost; `deployment`, rounds with every process on
loopback.

Run as a module with a number of elements, it masks one vector in a process of its own and prints
the bytes of memory that this took.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import statistics
import string
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

from ridgeway.common.base.identity import Identity
from ridgeway.common.base.records import Mode
from ridgeway.common.deploy.processes import free_port
from ridgeway.common.masking.agreement import check_agreement, threshold_for
from ridgeway.common.masking.member import open_envelope, seal, share
from ridgeway.common.masking.opening import Opening
from ridgeway.common.masking.reference_session import Step, Transcript, masked_sum
from ridgeway.common.masking.shares import ELEMENT_BYTES, Sealed
from ridgeway.common.statistics import Integers
from ridgeway.common.text.encoder_files import save_encoder
from ridgeway.common.text.table_encoder import TableEncoder
from ridgeway.common.text.tokenizer import plain_definition
from ridgeway.simulations.bench.bench_inputs import random_encoder
from ridgeway.simulations.bench.measuring import (
    BenchOptions,
    Row,
    measured_apart,
    once,
    printed,
    resident_bytes,
    running,
)
from ridgeway.simulations.corpora import write_texts

# What masking costs: the memory of one who seals, and the seconds of cohorts.
#
# Run as a module with a number of elements, it masks one vector in a process of its own and prints
# the bytes of memory that this took.


SUM_NAME: Final = "statistics"
LARGE = 8_390_656
MIDDLE = 1_000_000
COHORTS = (3, 5, 20, 50, 100)
_ROUNDS = 3
LARGEST = 1 << 22


def masking_rows(options: BenchOptions) -> Iterator[Row]:
    yield memory_row(LARGE)
    for members in COHORTS:
        yield _cohort(members)


def memory_row(size: int) -> Row:
    taken = measured_apart(__name__, size)
    plain = size * ELEMENT_BYTES
    return Row(
        "memory while masking, to the vector, which counts in it",
        f"{taken / 1e6:.0f} MB",
        f"{plain / 1e6:.0f} MB",
        taken / plain,
        "≤ 3",
        timed=False,
    )


def _cohort(members: int) -> Row:
    """A tenth of the members drop out, or as many as may.

    All upload the same vector: to whoever opens, any numbers are noise.
    """
    away = min(-(-members // 10), members - threshold_for(members))
    sharing = []
    sealing = []
    opening = []
    for _ in range(_ROUNDS):
        run = bench_session(members, away)
        vector = _vector(MIDDLE)
        sealed = sealed_vector(run, 1, vector)
        uploads = dict.fromkeys(range(1, members - away + 1), sealed)
        sharing.append(once(partial(_shared, run)))
        sealing.append(once(partial(sealed_vector, run, 1, vector)))
        opening.append(once(partial(opened_sum, run, uploads)))
    shares = statistics.median(sharing) * 1e3
    seals = statistics.median(sealing) * 1e3
    opens = statistics.median(opening)
    return Row(
        f"masking, {members - away} of {members} members, {MIDDLE / 1e6:g} M numbers:"
        " seconds to open",
        f"{opens:.3f} s",
        f"a client: shares {shares:.1f} ms, sealing {seals:.0f} ms",
        opens,
        spread=(min(opening), max(opening)),
    )


def _vector(size: int) -> Integers:
    return np.random.default_rng().integers(0, LARGEST, size)


# A session


def bench_session(members: int, away: int = 0) -> Transcript:
    """A session of short vectors, whose keys, shares and envelopes are used with long ones here.

    away: as many of the last members drop out before they send.
    """
    identities = [Identity.generate() for _ in range(members)]
    dropped: dict[int, Step] = dict.fromkeys(
        range(members - away + 1, members + 1), "send"
    )
    return masked_sum(
        identities,
        [_vector(1)] * members,
        dropped,
        lambda purpose, place: secrets.token_bytes,
    )


def _shared(run: Transcript) -> None:
    """What the first member does before it seals: check everything, deal out its shares, take in
    the others'.
    """
    agreement = run.agreement
    member_secrets = run.secrets[1]
    check_agreement(
        agreement, agreement.advert(1), {advert.key for advert in agreement.adverts}
    )
    share(agreement, member_secrets, 1, secrets.token_bytes)
    for sender, dealt in run.dealt.items():
        if 1 in dealt.envelopes:
            open_envelope(agreement, member_secrets, 1, sender, dealt.envelopes[1])


def sealed_vector(run: Transcript, member: int, vector: Integers) -> Sealed:
    neighbours = {*run.holders[member], *run.held[member]}
    return seal(
        run.agreement,
        run.secrets[member],
        member,
        SUM_NAME,
        run.agreement.indices,
        neighbours,
        vector,
    )


def opened_sum(run: Transcript, sealed: Mapping[int, Sealed]) -> Integers:
    opening = Opening(run.agreement, SUM_NAME, run.holders, len(sealed[1]))
    for member, vector in sealed.items():
        opening.add(member, vector)
    return opening.total(run.reveals)


def main(size: int) -> None:
    """All that the first member does, from its keys to its sealed vector."""
    run = bench_session(5)
    before = resident_bytes("VmRSS")
    _shared(run)
    sealed_vector(run, 1, _vector(size))
    print(resident_bytes("VmHWM") - before)


# A masked, a private and a clear round of three holders, every process on loopback.


_ALPHABETS = {"code": "0123456789., ", "law": "abcdefgh ", "medicine": "nopqrstuv ,"}
_MODES: tuple[Mode, ...] = ("masked", "private", "clear")
WIDTH = 576


def deployment_rows(options: BenchOptions) -> Iterator[Row]:
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


if __name__ == "__main__":
    main(int(sys.argv[1]))
