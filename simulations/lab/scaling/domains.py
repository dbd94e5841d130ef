"""What more domains cost: a sealed message, solving, a release, and routing a prompt.

Texts of the first setting are dealt out to so many made-up domains; how well they are told apart is not asked here.
Knows releases and routers. Knows nothing of rounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from client.accumulate import accumulators
from common.encoder import Encoder
from common.identity import Identity
from common.messages import SealedSums, seal_packet
from common.router import Confidence, Router
from common.settings import DEFAULT, Sampling
from common.statistics import vector_size
from common.statistics_file import Prepared
from coordinator.publish import Choices, compose, sign
from coordinator.solve import solve
from coordinator.total import Total, add_up
from simulations.bench.measuring import seconds_in_turns
from simulations.lab.findings import Cell, Column, Plot, Table
from simulations.lab.plan import Plan, Tick
from simulations.lab.scaling.slopes import Expected, Grown, grown, in_words, line, log_plot
from simulations.lab.scaling.wire import packet_bytes
from simulations.lab.setting import Setting, Texts

COUNTS = (2, 5, 10, 20, 50, 100)
TEXTS, PROMPTS = 600, 120
WINDOW = 64
CODE = 1
CHOICES = Choices(DEFAULT.weighting, DEFAULT.ridge, DEFAULT.normalise_columns, DEFAULT.selector, Confidence())

EXPECTED = (
    Expected("bytes", "bytes of a sealed message", 1, "h + 1 numbers a domain, beside the triangle, which is fixed"),
    Expected("solving", "solving", 1, "a column of B for each domain, beside the factor, which is fixed"),
    Expected("release", "bytes of a release", 1, "a logit for each token and domain, beside the tokenizer"),
    Expected("routing", "routing a prompt", 1, "a sum for each domain, beside the tokenising, which is fixed"),
)

Points = Sequence[dict[str, Any]]


def measure(plan: Plan, encoder: Encoder, counts: Sequence[int], tick: Tick) -> Points:
    setting = plan.settings[0]
    texts, prompts = _some(setting.train, TEXTS), _some(setting.test, PROMPTS)
    return [_kept(plan, encoder, texts, prompts, count, tick) for count in counts if count <= len(texts)]


def _some(side: Texts, most: int) -> list[str]:
    """Texts of all domains in turn, as many as are wanted at most."""
    longest = max(len(texts) for texts in side.values())
    turns = (texts[place] for place in range(longest) for texts in side.values() if place < len(texts))
    return list(islice(turns, most))


def _kept(
    plan: Plan, encoder: Encoder, texts: list[str], prompts: list[str], domains: int, tick: Tick
) -> dict[str, Any]:
    key = {**plan.facts(), "domains": domains, "texts": TEXTS, "code": CODE}
    make = partial(measured, encoder, texts, prompts, domains, plan.work / f"release-{domains}")
    found: dict[str, Any] = plan.shelf.kept("scaling-domains", key, make)
    tick()
    return found


def measured(encoder: Encoder, texts: list[str], prompts: list[str], domains: int, folder: Path) -> dict[str, Any]:
    """The figures for so many domains."""
    total = add_up(_parts(encoder, texts, domains), CHOICES.weighting)
    (solving,) = seconds_in_turns(lambda: solve(total.statistics, encoder.scale, CHOICES.ridge), rounds=3)
    router = _router(encoder, total, folder)
    routing, tokenising = (_warm_ms(work, prompts) for work in (router.route, router.tokenizer.encode))
    return {
        "domains": domains,
        "bytes": _sealed_bytes(total),
        "solving": solving,
        "release": sum(path.stat().st_size for path in folder.iterdir()),
        "routing": routing / 1e3,
        "tokenising": tokenising / 1e3,
    }


def _parts(encoder: Encoder, texts: list[str], domains: int) -> list[Prepared]:
    sampling = Sampling(window=WINDOW)
    make = accumulators(encoder.table, sampling)
    parts = []
    for place in range(domains):
        accumulator = make()
        ids, lengths = encoder.tokenizer.encode_many(texts[place::domains])
        accumulator.add(ids, np.asarray(lengths, dtype=np.int64))
        sums = accumulator.statistics(accumulator.state())
        parts.append(Prepared(f"domain-{place:03}", "local", encoder.fingerprint, sampling, sums))
    return parts


def _router(encoder: Encoder, total: Total, folder: Path) -> Router:
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = compose(total, encoder, CHOICES, solve(total.statistics, encoder.scale, CHOICES.ridge))
    sign(draft, Identity(Ed25519PrivateKey.generate()), folder)
    return Router.load(folder)


def _sealed_bytes(total: Total) -> int:
    """What a member sends under masks; its numbers are noise, so zeros weigh as much."""
    features, domains = total.statistics.shape
    vector = bytes(8 * vector_size(features, domains))
    message = SealedSums(session="0" * 64, lot="statistics")
    identity = Identity(Ed25519PrivateKey.generate())
    return packet_bytes(seal_packet(message, identity, round="0" * 32, reply_to="0" * 64, blobs=[vector]))


def _warm_ms(work: Callable[[str], object], prompts: Sequence[str]) -> float:
    """The median over prompts, each once before it counts."""
    taken = []
    for prompt in prompts:
        work(prompt)
        started = time.perf_counter()
        work(prompt)
        taken.append(1e3 * (time.perf_counter() - started))
    return statistics.median(taken)


# Showing


def _x(points: Points) -> list[float]:
    return [each["domains"] for each in points]


def slopes(points: Points) -> list[Grown]:
    return grown("domains", _x(points), points, EXPECTED)


def table(points: Points, encoder: Encoder, setting: Setting) -> Table:
    columns = (
        Column("domains", digits=0),
        Column("a sealed message", "MB", 3),
        Column("solving", "ms"),
        Column("a release", "MB", 2),
        Column("routing a prompt", "ms", 3),
        Column("of it tokenising", "ms", 3),
    )
    note = (
        f"h = {encoder.width}, {encoder.rows:,} tokens; texts of {setting.name} dealt out to made-up domains, test "
        f"texts as prompts, warm, median. {in_words(slopes(points))}"
    )
    return Table("scaling-domains", "Costs over domains", columns, tuple(map(_row, points)), note)


def _row(each: dict[str, Any]) -> tuple[Cell, ...]:
    milliseconds = (each["routing"] * 1e3, each["tokenising"] * 1e3)
    return (each["domains"], each["bytes"] / 1e6, each["solving"] * 1e3, each["release"] / 1e6, *milliseconds)


def plots(points: Points) -> tuple[Plot, ...]:
    seconds = [line(name, _x(points), points, key) for key, name in (("solving", "solving"), ("routing", "routing"))]
    sizes = [line(name, _x(points), points, key) for key, name in (("bytes", "a message"), ("release", "a release"))]
    return (
        log_plot("scaling-domains-seconds", "Seconds over domains", "domains", "seconds", seconds),
        log_plot("scaling-domains-bytes", "Bytes over domains", "domains", "bytes", sizes),
    )


def words(points: Points) -> str:
    first, last = points[0], points[-1]
    added = (last["bytes"] - first["bytes"]) / max(1, last["domains"] - first["domains"])
    return (
        f"From {first['domains']} to {last['domains']} domains a sealed message grows from "
        f"{first['bytes'] / 1e6:.2f} to {last['bytes'] / 1e6:.2f} MB ({added:,.0f} bytes a domain), "
        f"a release from {first['release'] / 1e6:.1f} to {last['release'] / 1e6:.1f} MB, "
        f"and routing a prompt from {first['routing'] * 1e3:.2f} to {last['routing'] * 1e3:.2f} ms, of which "
        f"tokenising is {last['tokenising'] * 1e3:.2f} ms."
    )
