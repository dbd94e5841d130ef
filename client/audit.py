"""What a holder's own statistics give away: the known attacks run on them, held against the text
that was summed.

Runs on the holder's machine and sends nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import Tokenizer as Backend

from ridgeway.client.sums.accumulate import accumulators, gram_of_counts, only_counts
from ridgeway.client.sums.corpus import (
    Counters,
    Position,
    documents,
    find_sources,
    is_held_out,
)
from ridgeway.client.sums.prepare import (
    BATCH_CHARACTERS,
    Interrupted,
    PrepareJob,
    Watch,
)
from ridgeway.common.attacks import (
    Measures,
    Tick,
    column,
    histogram,
    measure,
    unweighted,
)
from ridgeway.common.base.errors import CorpusError, EncoderMismatch
from ridgeway.common.base.settings import EQUAL_MASS, Sampling
from ridgeway.common.base.threads import cores
from ridgeway.common.encoding.mistyped_text import with_mistyped_copies
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.statistics.statistics_file import Prepared
from ridgeway.common.statistics.sums import Integers, Statistics

CLEAR = "clear statistics"
COLUMN = "column of B alone"

UNIT_WINDOW = 12
"""Of a document's units, three fifths lie in windows of 8 tokens, and hardly any other part varies.
"""

Ticks = Callable[[str], Tick]
"""From what is being attacked to what is called once a step, at most MAX_STEPS times."""


@dataclass(frozen=True, slots=True, eq=False)
class Finding:
    """One attack and what it brought.

    proven:   whether the counts that were found give exactly the sums that were seen: then they are
              the truth.
    measures: against the text, where that is known.
    """

    view: str
    sampling: Sampling
    counts: Integers
    proven: bool
    measures: Measures | None
    seconds: float

    def to_json(self) -> dict[str, Any]:
        shares = (
            self.measures.to_json()
            if self.measures
            else {"found": int((self.counts > 0).sum())}
        )
        return {
            "view": self.view,
            **self.sampling.to_json(),
            **shares,
            "proven": self.proven,
            "seconds": round(self.seconds, 1),
        }


def read_summed(
    job: PrepareJob,
    encoder: TableEncoder,
    samplings: Iterable[Sampling],
    watch: Watch | None = None,
) -> tuple[Integers, dict[Sampling, Statistics]]:
    """How often each token stands in the sums of `prepare`, and the sums for each way of sampling,
    in one pass.
    """
    limit = job.sampling.max_tokens
    tokens = accumulators(encoder.table, Sampling(window=1, max_tokens=limit))()
    sums = {
        each: accumulators(encoder.table, each, encoder.words)() for each in samplings
    }
    for batch in text_batches(summed_documents(job, watch or Watch())):
        ids, lengths = encoder.tokenizer.encode_many(batch)
        both = (
            encoder.tokenizer.encode_many(with_mistyped_copies(batch))
            if any(each.mistyped for each in sums)
            else None
        )
        tokens.add(ids, lengths)
        for sampling, accumulator in sums.items():
            accumulator.add(
                *(both if both is not None and sampling.mistyped else (ids, lengths))
            )
    counts = tokens.state()["counts"]
    if not counts.any():
        names = ", ".join(str(root) for root in job.roots)
        limited = f", or its documents are cut after {limit} tokens" if limit else ""
        raise CorpusError(
            f"{names} holds no tokens that would be summed; all of it may be held"
            f" out{limited}"
        )
    return counts, {
        sampling: each.statistics(each.state(), job.threads)
        for sampling, each in sums.items()
    }


def summed_documents(
    job: PrepareJob, watch: Watch, *, whole: bool = False
) -> Iterator[str]:
    """The documents that `prepare` sums, one after another; whole: long ones are not cut."""
    sources, _ = find_sources(job.roots)
    total = sum(source.bytes for source in sources)
    done = 0
    for source in sources:
        position = Position()
        skipped: list[str] | None = [] if job.skip_broken else None
        for text in documents(
            source, job.text_fields, Counters(), position, skipped, whole=whole
        ):
            if watch.stopped():
                raise Interrupted("interrupted; nothing was written")
            if not is_held_out(text, job.holdout):
                yield text
            watch.progress(min(done + position.bytes, total), total)
        done += source.bytes


def text_batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Texts in batches of the size that `prepare` tokenises at once."""
    batch = list[str]()
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= BATCH_CHARACTERS:
            yield batch
            batch = []
            size = 0
    if batch:
        yield batch


def true_counts(
    prepared: Prepared,
    job: PrepareJob,
    encoder: TableEncoder,
    watch: Watch | None = None,
) -> Integers:
    """How often each token stands in these sums, by the corpus they were made of. Any other corpus
    is refused.
    """
    counts, summed = read_summed(job, encoder, [prepared.sampling], watch)
    there = prepared.statistics
    here = summed[prepared.sampling]
    if not here.equals(there):
        names = ", ".join(str(root) for root in job.roots)
        raise CorpusError(
            f"{names} is not what the statistics of {prepared.domain!r} were made of:"
            f" it gives {here.mass:,} samples and they hold {there.mass:,}, or other"
            " sums; name the same files and --text-field as for prepare"
        )
    return counts


def must_fit(prepared: Prepared, encoder: TableEncoder) -> None:
    """Raise unless this is the encoder that the sums were made with."""
    if encoder.fingerprint != prepared.fingerprint:
        raise EncoderMismatch(
            f"the statistics of {prepared.domain!r} were made with encoder"
            f" {prepared.encoder_name} ({prepared.fingerprint[:12]}), not with"
            f" {encoder.name} ({encoder.fingerprint[:12]}); name it with --encoder"
        )


def attack_holder(
    encoder: TableEncoder,
    statistics: Statistics,
    sampling: Sampling,
    truth: Integers | None,
    ticks: Ticks,
) -> Iterator[Finding]:
    """The attacks on one holder's statistics: on all of them, and on the column of its domain
    alone.

    Masking does not hide the column where the domain has one holder.
    """
    yield attack_gram(CLEAR, encoder, statistics, sampling, truth, ticks)
    started = time.monotonic()
    window, parts = _windows(sampling)
    counts = column(
        encoder.table, of_tokens(statistics, encoder).cross[:, 0] // parts, window
    )
    yield measured(COLUMN, sampling, counts, truth, started)


def attack_gram(
    view: str,
    encoder: TableEncoder,
    statistics: Statistics,
    sampling: Sampling,
    truth: Integers | None,
    ticks: Ticks,
) -> Finding:
    """The histogram from second moments."""
    started = time.monotonic()
    seen, (window, parts) = of_tokens(statistics, encoder).gram, _windows(sampling)
    counts = histogram(encoder.table, seen // parts, window, ticks(view))
    proven = only_counts(sampling) and np.array_equal(
        gram_of_counts(encoder.table, counts, cores()), seen
    )
    return measured(view, sampling, counts, truth, started, proven=proven)


def of_tokens(statistics: Statistics, encoder: TableEncoder) -> Statistics:
    """The sums over the features of tokens alone, with the constant one: what attacks look at."""
    kept = [*range(encoder.table.shape[1]), len(statistics.gram) - 1]
    return Statistics(statistics.gram[np.ix_(kept, kept)], statistics.cross[kept])


def measured(
    view: str,
    sampling: Sampling,
    counts: Integers,
    truth: Integers | None,
    started: float,
    *,
    proven: bool = False,
) -> Finding:
    """What an attack that began at `started` (by the monotonic clock) has found, held against the
    truth if known.
    """
    measures = None if truth is None else measure(counts, truth)
    return Finding(view, sampling, counts, proven, measures, time.monotonic() - started)


def _windows(sampling: Sampling) -> tuple[int, int]:
    """How many tokens a window stands for, and by what sums are divided to be sums over windows.

    Where windows are apart from each other, an attack finds most if each stands for the tokens up
    to the next. Units vary as windows of UNIT_WINDOW tokens do, and count about once a token in
    documents of as many tokens as units.
    """
    return (
        (UNIT_WINDOW, UNIT_WINDOW)
        if sampling.units
        else (max(sampling.window, sampling.stride), 1)
    )


def survives_weighting(statistics: Statistics) -> bool:
    """Whether the raw sums, and with them the corpus's size, follow from the equally weighted
    ones.
    """
    found = unweighted(statistics.weighted(EQUAL_MASS))
    return found is not None and found.equals(statistics)


def token_texts(encoder: TableEncoder, ids: Sequence[int]) -> list[str]:
    """What tokens look like, for the holder's own eyes."""
    backend = Backend.from_str(encoder.definition.decode())
    return [
        backend.decode([number]) or str(backend.id_to_token(number)) for number in ids
    ]


def advice(finding: Finding) -> str:
    """One plain sentence on what to do, by the attack on the whole statistics."""
    if finding.proven:
        return (
            "Every token of this corpus and its exact count follow from these sums:"
            " send them to nobody whom you would not show the vocabulary, and prefer"
            " windows in a masked round."
        )
    if only_counts(finding.sampling):
        return (
            "The counts were not proven this time, but sums over single tokens"
            " determine them as a rule: treat these sums as the vocabulary itself, and"
            " prefer windows in a masked round."
        )
    return (
        "These sums do not give the counts away, but they name a good part of the"
        " tokens, some rare ones too: send them in a masked round, or in the clear only"
        " to a coordinator that may know which words the corpus uses."
    )
