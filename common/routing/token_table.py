"""The router as a table: what every token says about every domain, and every run of letters, in
integers; and the selectors average, entropy and all, by which the tokens of prompts are tallied.

Logits are kept as integers times a power of two, and everything is counted in integers, so that the
order of tokens, the size of a batch and the machine do not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
from ridgeway.common.text.table_encoder import TableEncoder
from ridgeway.common.text.tokenizer import Ids
from ridgeway.common.text.tokens import Tokens

_Number = TypeVar("_Number", np.int64, np.float64)
Lengths = Integers
"""How many of the ids in one row belong to each text."""

Arrays = dict[str, NDArray[Any]]

MAX_LOGIT = (1 << 15) - 1
"""Of a token, in steps."""
MAX_RUN_LOGIT = 1 << 20
"""Of a run of letters, in steps."""
MAX_SHIFT = 12
"""The largest step is no more than two to this power times the smallest."""
MAX_REDUCEAT_DOMAINS = 16
TOKENS_PER_READING = 1 << 18
"""Tokens are looked at one by one for texts of about as many at a time."""
ROWS_AT_ONCE = 1 << 13


@dataclass(frozen=True, eq=False, repr=False)
class TokenTable:
    """What tokens say of each domain, and the runs of letters in their words.

    logits: V×C int16; a single row is that of every token.
    step:   what sums are counted in.
    shifts: C uint8: a column's numbers are multiples of step · 2^shift.
    runs:   D×C int32, for each bucket of runs of letters, if words have features.
    Law: a text's sum is that of its tokens' rows.
    """

    logits: NDArray[np.int16]
    step: float
    shifts: NDArray[np.uint8]
    runs: NDArray[np.int32] | None = None

    def __post_init__(self) -> None:
        if (
            self.logits.dtype != np.int16
            or self.logits.ndim != 2
            or 0 in self.logits.shape
        ):
            raise FormatError("a router's table is V×C int16")
        if (
            self.shifts.dtype != np.uint8
            or self.shifts.shape != (self.domains,)
            or self.shifts.max() > MAX_SHIFT
        ):
            raise FormatError(f"a router's table needs {self.domains} shifts")
        if self.runs is not None and not (
            self.runs.dtype == np.int32
            and self.runs.ndim == 2
            and self.runs.shape[1] == self.domains
            and self.runs.min(initial=0) >= -MAX_RUN_LOGIT
            and self.runs.max(initial=0) <= MAX_RUN_LOGIT
        ):
            raise FormatError(
                f"a router's table of runs of letters is D×{self.domains} int32, within"
                f" ±{MAX_RUN_LOGIT:,}"
            )

    @property
    def domains(self) -> int:
        return int(self.logits.shape[1])

    def token_sums(self, tokens: Tokens) -> Integers:
        """N×C, the summed logits of texts."""
        return self._sums(tokens, tokens.lengths)

    def rows(self, tokens: Tokens) -> Integers:
        """The logits of each token, with those of the runs of letters that end in it."""
        return self._sums(tokens, np.ones(len(tokens.ids), dtype=np.int64))

    def _sums(self, tokens: Tokens, lengths: Lengths) -> Integers:
        ids = tokens.ids if len(self.logits) > 1 else np.zeros_like(tokens.ids)
        if native is None:
            return self._sums_by_numpy(ids, tokens, lengths)
        runs = () if self.runs is None else (self.runs.data, *tokens.runs)
        table = self.logits.data, self.domains, self.shifts.data
        sums = native.token_sums(ids, lengths, *table, *runs)
        return np.frombuffer(sums, dtype=np.int64).reshape(-1, self.domains)

    def _sums_by_numpy(self, ids: Ids, tokens: Tokens, lengths: Lengths) -> Integers:
        """The right sums by definition."""
        sums = segment_sums(self.logits.take(ids, axis=0).astype(np.int64), lengths)
        if self.runs is not None:
            codes, stops = tokens.runs
            signs = 2 * (codes & 1).astype(np.int64) - 1
            said = self.runs.take(codes >> 1, axis=0) * signs[:, None]
            ends = np.append(0, stops)[np.cumsum(lengths)]
            sums += segment_sums(said, np.diff(ends, prepend=0))
        return np.left_shift(sums, self.shifts)

    def arrays(self) -> Arrays:
        """What a release keeps of it."""
        kept: Arrays = {"logits": self.logits, "shifts": self.shifts}
        return kept if self.runs is None else kept | {"runs": self.runs}

    def without(self, position: int) -> TokenTable:
        """The table with one domain's column dropped."""

        def dropped(array: NDArray[Any]) -> NDArray[Any]:
            return np.ascontiguousarray(np.delete(array, position, axis=-1))

        runs = None if self.runs is None else dropped(self.runs)
        return replace(
            self, logits=dropped(self.logits), shifts=dropped(self.shifts), runs=runs
        )


class RouterTable(Protocol):
    """Where the logits of tokens come from.

    step: what logits are counted in.
    """

    @property
    def step(self) -> float: ...
    @property
    def domains(self) -> int: ...
    def token_sums(self, tokens: Tokens) -> Integers: ...
    def rows(self, tokens: Tokens) -> Integers: ...
    def arrays(self) -> Arrays: ...
    def without(self, position: int) -> RouterTable: ...


def check_domains(domains: Sequence[str], compiled: RouterTable) -> None:
    """Raise unless there is one column for each domain."""
    if len(domains) != compiled.domains:
        raise InputError(
            f"{len(domains)} domains do not fit a table of {compiled.domains} columns"
        )


# Compiling


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ExactTable:
    """Logits before they are rounded: of tokens, one row where all say the same, and of runs of
    letters, if words have features.
    """

    tokens: Floats
    runs: Floats | None

    @property
    def steps(self) -> Floats:
        """The least power of two for each domain that keeps its logits within bounds."""
        largest = np.abs(self.tokens).max(axis=0) / MAX_LOGIT
        if self.runs is not None:
            of_runs = np.abs(self.runs).max(axis=0) / MAX_RUN_LOGIT
            largest = np.maximum(largest, of_runs)
        steps = np.exp2(np.ceil(np.log2(np.maximum(largest, 2.0**-100))))
        least: Floats = np.maximum(steps, steps.max() / (1 << MAX_SHIFT))
        return least

    def counted_in(self, steps: Floats) -> TokenTable:
        """The logits rounded to whole steps, powers of two for each domain."""
        step = float(steps.min())
        shifts = np.log2(steps / step).astype(np.uint8)
        # the compiled module reads rows that stand one after another
        logits = np.rint(self.tokens / steps).astype(np.int16, order="C")
        runs = None
        if self.runs is not None:
            runs = np.rint(self.runs / steps).astype(np.int32, order="C")
        return TokenTable(logits, step, shifts, runs)


def exact_table(encoder: TableEncoder, weights: Floats) -> ExactTable:
    """The logits φW of every token and run of letters: φ = (scale · table row, 1) of a token, and
    scale · amplitude of a run.
    """
    if weights.shape[0] != encoder.table_width + 1:
        raise ShapeMismatch(
            f"weights over {weights.shape[0]} features do not fit {encoder.name}"
        )
    width = encoder.table.shape[1]
    of_tokens = weights[:width] * encoder.scale
    rows = encoder.rows if of_tokens.any() else 1
    tokens = np.tile(weights[-1:], (rows, 1))
    for start in range(0, rows, ROWS_AT_ONCE):
        block = slice(start, min(start + ROWS_AT_ONCE, rows))
        tokens[block] += encoder.table[block].astype(np.float64) @ of_tokens
    if encoder.options is None:
        return ExactTable(tokens, None)
    amplitude = encoder.scale * encoder.options.amplitude
    return ExactTable(tokens, weights[width:-1] * amplitude)


def compile_table(encoder: TableEncoder, weights: Floats) -> TokenTable:
    """Weights over the features of tokens and of words, as a router uses them."""
    exact = exact_table(encoder, weights)
    return exact.counted_in(exact.steps)


def normalised_columns(weights: Floats) -> Floats:
    """Each column divided by its norm without the constant part, as the published code has it."""
    norms: Floats = np.linalg.norm(weights[:-1], axis=0)
    if not norms.min() > 0:
        raise UnsolvableTotal(
            "a domain's column is all zero and cannot be normalised; its text carries "
            "no signal"
        )
    return weights / norms


# Selectors


def tally_texts(compiled: RouterTable, selector: Selector, tokens: Tokens) -> Tally:
    """Count over texts."""
    if selector.name == "average":
        sums = compiled.token_sums(tokens)
        return Tally(sums, sums, tokens.lengths, compiled.step)
    batches = np.cumsum(tokens.lengths) // TOKENS_PER_READING
    parts = []
    for batch in np.unique(batches).tolist() or [0]:
        part = tokens.of_texts(batches == batch)
        parts.append(
            tally_rows(compiled.rows(part), part.lengths, selector, compiled.step)
        )
    return Tally(
        np.concatenate([part.points for part in parts]),
        np.concatenate([part.sums for part in parts]),
        np.concatenate([part.voters for part in parts]),
        parts[0].unit,
    )


def tally_rows(
    rows: Integers, lengths: Lengths, selector: Selector, step: float
) -> Tally:
    """Count over texts whose tokens have these logits, in steps."""
    if selector.name == "entropy":
        chosen = most_certain(rows, lengths, selector.k, step)
        rows = rows[chosen]
        lengths = np.minimum(lengths, selector.k)
    sums = segment_sums(rows, lengths)
    if selector.name == "average":
        return Tally(sums, sums, lengths, step)
    return Tally(segment_sums(ballots(rows), lengths), sums, lengths, 1.0)


def ballots(rows: Integers) -> Integers:
    """A one where a token votes: its largest logit, of equals the first."""
    votes: Integers = np.eye(rows.shape[1], dtype=np.int64)[rows.argmax(axis=1)]
    return votes


def most_certain(rows: Integers, lengths: Lengths, k: int, step: float) -> Integers:
    """The places of the k tokens of least entropy in each text, in their order; of equals, the
    first.
    """
    owners = np.repeat(np.arange(len(lengths)), lengths)
    order = np.lexsort((entropies(rows, step), owners))
    rank = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.sort(order[rank < k])


def entropies(rows: Integers, step: float) -> NDArray[np.float32]:
    """Of the softmax over each token's logits."""
    values: NDArray[Any] = rows.astype(np.float64) * step
    values -= values.max(axis=1, keepdims=True)
    odds = np.exp(values)
    total = odds.sum(axis=1)
    found: NDArray[np.float32] = (
        np.log(total) - (odds * values).sum(axis=1) / total
    ).astype(np.float32)
    return found


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
