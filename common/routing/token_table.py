"""The router as a table: what every token says about every domain, in integers; and the selectors
average, entropy and all, by which the tokens of prompts are tallied.

Logits are kept as integers times a power of two, and everything is counted in integers, so that the
order of tokens, the size of a batch and the machine do not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ridgeway.common.base.errors import (
    FormatError,
    InputError,
    ShapeMismatch,
    UnsolvableTotal,
)
from ridgeway.common.base.machine import native
from ridgeway.common.base.settings import Selector
from ridgeway.common.routing.decision import Floats, Integers, Tally
from ridgeway.common.text.tokenizer import Ids

_Number = TypeVar("_Number", np.int64, np.float64)
Lengths = Integers
"""How many of the ids in one row belong to each text."""

Steps = NDArray[np.int32]
"""Logits as whole numbers of steps."""
Arrays = dict[str, NDArray[Any]]

MAX_LOGIT_STEPS = 1 << 30
MAX_REDUCEAT_DOMAINS = 16
TOKENS_PER_READING = 1 << 18
"""Texts of about as many tokens are read into one table."""


@dataclass(frozen=True, eq=False, repr=False)
class TokenTable:
    """logits: V×C int32, in units of `step`; entropies: V float32, of the softmax over a token's
    logits.
    """

    logits: Steps
    step: float
    entropies: NDArray[np.float32]

    def __post_init__(self) -> None:
        if (
            self.logits.dtype != np.int32
            or self.logits.ndim != 2
            or 0 in self.logits.shape
        ):
            raise FormatError("a router's table is V×C int32")
        if (
            self.entropies.dtype != np.float32
            or self.entropies.shape != self.logits.shape[:1]
        ):
            raise FormatError("a router's table needs one float32 entropy per token")

    @cached_property
    def sums(self) -> Integers:
        """The logits in the width that sums are taken in."""
        return self.logits.astype(np.int64)

    @cached_property
    def votes(self) -> Integers:
        """The domain each token votes for: of equals, the first."""
        votes: Integers = self.logits.argmax(axis=1)
        return votes

    @cached_property
    def ballots(self) -> Integers:
        """V×C: a one where the token votes."""
        return np.eye(self.logits.shape[1], dtype=np.int64)[self.votes]

    @cached_property
    def ranks(self) -> Integers:
        """Each token's place when all are sorted by entropy, then id: 0 is the most certain."""
        ranks = np.empty(len(self.entropies), dtype=np.int64)
        ranks[np.argsort(self.entropies, kind="stable")] = np.arange(len(ranks))
        return ranks

    @property
    def domains(self) -> int:
        return int(self.logits.shape[1])

    def token_sums(self, ids: Ids, lengths: Lengths) -> Integers:
        """N×C, the summed logits of texts whose ids stand in one row, `lengths` of them each."""
        if native:
            sums = native.token_sums(ids, lengths, self.logits.data, self.domains)
            return sums_in_memory(sums, self.domains)
        return sums_by_reading(self, ids, lengths)

    def read(self, ids: Ids, lengths: Lengths) -> tuple[TokenTable, Ids]:
        """The table in which texts are looked up, and where in it each of their tokens stands."""
        return self, ids

    def make_fast(self) -> None:
        """It is as fast from the first."""

    def arrays(self) -> Arrays:
        """What a release keeps of it."""
        return {"logits": self.logits, "entropies": self.entropies}

    def without(self, position: int) -> TokenTable:
        """The table with one domain's column dropped."""
        return of_logits(
            np.ascontiguousarray(np.delete(self.logits, position, axis=1)), self.step
        )


class RouterTable(Protocol):
    """Where the logits of tokens come from: a table of all tokens, or one that is made for the text
    at hand.

    step: what logits are counted in.
    """

    @property
    def step(self) -> float: ...
    @property
    def domains(self) -> int: ...
    def token_sums(self, ids: Ids, lengths: Lengths) -> Integers: ...
    def read(self, ids: Ids, lengths: Lengths) -> tuple[TokenTable, Ids]: ...
    def make_fast(self) -> None: ...
    def arrays(self) -> Arrays: ...
    def without(self, position: int) -> RouterTable: ...


def check_domains(domains: Sequence[str], compiled: RouterTable) -> None:
    """Raise unless there is one column for each domain."""
    if len(domains) != compiled.domains:
        raise InputError(
            f"{len(domains)} domains do not fit a table of {compiled.domains} columns"
        )


def compile_table(
    table: NDArray[np.int16],
    scale: float,
    weights: Floats,
    least_step: float = 0.0,
) -> TokenTable:
    """The logits φW of every token, φ = (scale · table row, 1).

    least_step: the step is no smaller.
    """
    if weights.shape[0] != table.shape[1] + 1:
        raise ShapeMismatch(
            f"weights over {weights.shape[0]} features do not fit a table of width"
            f" {table.shape[1]}"
        )
    exact = exact_logits(table, scale, weights)
    step = max(step_for(float(np.abs(exact).max())), least_step)
    return counted_in(step, exact)


def exact_logits(table: NDArray[np.int16], scale: float, weights: Floats) -> Floats:
    """The logits of every token before they are counted in steps."""
    exact = np.empty((len(table), weights.shape[1]))
    for start in range(0, len(table), 8192):
        block = slice(start, start + 8192)
        exact[block] = (
            table[block].astype(np.float64) @ (weights[:-1] * scale) + weights[-1]
        )
    return exact


def in_steps(step: float, exact: Floats) -> Steps:
    """Logits as whole numbers of steps. The step must be such that they fit 32 bits."""
    return np.rint(exact / step).astype(np.int32)


def largest(numbers: Steps) -> int:
    """The largest absolute value."""
    return max(int(numbers.max()), -int(numbers.min()))


def counted_in(step: float, exact: Floats) -> TokenTable:
    """A table of logits, which are rounded to whole steps."""
    return of_logits(in_steps(step, exact), step)


def of_logits(logits: Steps, step: float) -> TokenTable:
    """A table of logits that were counted in steps."""
    return TokenTable(logits, step, _entropies(logits, step))


def of_rows(rows: Integers, step: float) -> tuple[TokenTable, Ids]:
    """A table of these very rows, one of zeros if there is none, and the position of each in it."""
    positions = np.arange(len(rows), dtype=np.int32)
    if not len(rows):
        rows = np.zeros((1, rows.shape[1]), dtype=np.int64)
    return of_logits(rows.astype(np.int32), step), positions


def sums_in_memory(sums: bytearray, domains: int) -> Integers:
    """N×C, the sums that the compiled module has written."""
    return np.frombuffer(sums, dtype=np.int64).reshape(-1, domains)


def sums_by_reading(table: RouterTable, ids: Ids, lengths: Lengths) -> Integers:
    """What `token_sums` gives, by numpy."""
    read, positions = table.read(ids, lengths)
    return segment_sums(read.sums.take(positions, axis=0), lengths)


def normalised_columns(weights: Floats) -> Floats:
    """Each column divided by its norm without the constant part, as the published code has it."""
    norms: Floats = np.linalg.norm(weights[:-1], axis=0)
    if not norms.min() > 0:
        raise UnsolvableTotal(
            "a domain's column is all zero and cannot be normalised; its text carries "
            "no signal"
        )
    return weights / norms


def step_for(largest: float) -> float:
    """The smallest power of two that keeps logits of this size within ±2³⁰ steps."""
    return float(2.0 ** np.ceil(np.log2(max(largest, 2.0**-100) / MAX_LOGIT_STEPS)))


def _entropies(logits: Steps, step: float) -> NDArray[np.float32]:
    values: NDArray[Any] = logits.astype(np.float64) * step
    values -= values.max(axis=1, keepdims=True)
    odds = np.exp(values)
    total = odds.sum(axis=1)
    entropies: NDArray[np.float32] = (
        np.log(total) - (odds * values).sum(axis=1) / total
    ).astype(np.float32)
    return entropies


# Selectors


def tally(
    compiled: TokenTable, selector: Selector, ids: Ids, lengths: Lengths
) -> Tally:
    """Count over prompts whose ids stand in one row, `lengths` of them each."""
    if selector.name == "entropy":
        ids, lengths = most_certain(compiled, selector.k, ids, lengths)
    sums = segment_sums(compiled.sums.take(ids, axis=0), lengths)
    if selector.name == "average":
        return Tally(sums, sums, lengths, compiled.step)
    votes = segment_sums(compiled.ballots.take(ids, axis=0), lengths)
    return Tally(votes, sums, lengths, 1.0)


def tally_texts(
    compiled: RouterTable, selector: Selector, ids: Ids, lengths: Lengths
) -> Tally:
    """Count over texts whose ids stand in one row, `lengths` of them each. Tables made for texts
    stay small.
    """
    if selector.name == "average":
        sums = compiled.token_sums(ids, lengths)
        return Tally(sums, sums, lengths, compiled.step)
    ends = np.cumsum(lengths)
    cuts = np.flatnonzero(np.diff(ends // TOKENS_PER_READING)) + 1
    parts = []
    for part_ids, counts in zip(
        np.split(ids, ends[cuts - 1]), np.split(lengths, cuts), strict=True
    ):
        table, positions = compiled.read(part_ids, counts)
        parts.append(tally(table, selector, positions, counts))
    return Tally(
        np.concatenate([part.points for part in parts]),
        np.concatenate([part.sums for part in parts]),
        np.concatenate([part.voters for part in parts]),
        parts[0].unit,
    )


def most_certain(
    compiled: TokenTable, k: int, ids: Ids, lengths: Lengths
) -> tuple[Ids, Integers]:
    """Of each prompt the k tokens of least entropy; of equals, those of the lower id."""
    owners = np.repeat(np.arange(len(lengths)), lengths)
    order = np.lexsort((compiled.ranks[ids], owners))
    rank = np.arange(len(ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return ids[order][rank < k], np.minimum(lengths, k)


def segment_sums(rows: NDArray[_Number], lengths: Lengths) -> NDArray[_Number]:
    """The sums of rows that stand one after another, `lengths` of them each."""
    if len(lengths) == 1:
        only: NDArray[_Number] = np.add.reduce(rows, axis=0)
        return only[None, :]
    sums = np.zeros((len(lengths), rows.shape[1]), dtype=rows.dtype)
    filled = np.flatnonzero(lengths)
    ends = np.cumsum(lengths)[filled]
    starts = ends - lengths[filled]
    if rows.shape[1] <= MAX_REDUCEAT_DOMAINS and len(filled):
        sums[filled] = np.add.reduceat(rows, starts, axis=0)
    else:  # reduceat is slow over many columns
        for position, start, end in zip(
            filled.tolist(), starts.tolist(), ends.tolist(), strict=True
        ):
            np.add.reduce(rows[start:end], axis=0, out=sums[position])
    return sums
