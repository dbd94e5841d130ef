"""What sums give away: the known attacks run on them, measured against the text that was summed.

    exact sums ──▶ attack_cohort ──▶ a Finding for every view of a coordinator
    documents  ──▶ one half summed under noise ──▶ audit_halves ──▶ PrivateAudit
               ──▶ the other half, a control
    canaries   ──▶ planted or not, under noise ──▶ plant ──▶ the ε that is proven at least

A column must name the words of its domain, or it could not route: what it tells of a holder's own
documents is what it tells of them beyond the control. Nothing is sent.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as Backend

from ridgeway.client.round.epochs import as_statistics, laid_out, with_noise
from ridgeway.client.sums.accumulate import accumulators, gram_of_counts, only_counts
from ridgeway.client.sums.corpus import Counters
from ridgeway.client.sums.prepare import (
    BATCH_CHARACTERS,
    PrepareJob,
    Watch,
    corpus_documents,
)
from ridgeway.common.base.errors import CorpusError, EncoderMismatch
from ridgeway.common.base.operating_system import cores
from ridgeway.common.base.settings import EQUAL_MASS, Sampling
from ridgeway.common.privacy.accountant import Privacy
from ridgeway.common.privacy.noise import (
    DocumentSums,
    Randomness,
    bounded_sums,
    count_unit,
    document_vectors,
    empty_sums,
    row_unit,
)
from ridgeway.common.privacy.public_prior import (
    PublicPrior,
    letter_sums,
    private_reader,
)
from ridgeway.common.statistics import Integers, Prepared, Statistics, single_domain
from ridgeway.common.text.characters import with_mistyped_copies
from ridgeway.common.text.table_encoder import TableEncoder
from ridgeway.common.text.tokens import AnyTokenizer
from ridgeway.common.text.unigram import PieceTokenizer
from ridgeway.simulations.attacks import (
    Flags,
    Measures,
    NamedShares,
    attribution,
    auc,
    auc_allowed,
    auc_of_noise,
    buckets_by_column,
    buckets_by_products,
    column,
    histogram,
    measure,
    membership_scores,
    named_shares,
    unweighted,
    varied_most,
)

CLEAR = "clear statistics"
COLUMN = "column of B alone"

UNIT_WINDOW = 12
"""Of a document's units, three fifths lie in windows of 8 tokens, and hardly any other part varies.
"""

MIN_AUDITED_DOCUMENTS = 20
"""Halves of fewer documents would say little."""

CANARY_PIECES = 4
"""Documents of many are all alike, and so are those of one: an encoder of sentences reads little in
either.
"""
CONFIDENCE = 0.95
_THRESHOLDS = 64

_Floats = NDArray[np.float64]


# The text that was summed


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
        sampling: accumulators(
            encoder.table, sampling, encoder.words, encoder.sentences
        )()
        for sampling in samplings
    }
    for batch in text_batches(summed_documents(job, watch or Watch())):
        plain = encoder.read(batch)
        tokens.add(plain)
        for sampling, accumulator in sums.items():
            if sampling.mistyped:
                accumulator.add(encoder.read(with_mistyped_copies(batch)))
            else:
                accumulator.add(plain)
    counts = tokens.state()["counts"]
    if not counts.any():
        limited = f", or its documents are cut after {limit} tokens" if limit else ""
        raise CorpusError(
            f"{_names(job)} contains no tokens to sum; all of it may be held "
            f"out{limited}"
        )
    return counts, {
        sampling: accumulator.statistics(accumulator.state(), job.threads)
        for sampling, accumulator in sums.items()
    }


def summed_documents(job: PrepareJob, watch: Watch) -> Iterator[str]:
    """The documents that `prepare` sums, one after another."""
    for text, held_out in corpus_documents(job, Counters(), watch):
        if not held_out:
            yield text


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
        raise CorpusError(
            f"mismatch: {_names(job)} gives {here.mass:,} samples, the statistics of "
            f"{prepared.domain!r} have {there.mass:,}, or the sums differ; use the "
            "same files and --text-field as for prepare"
        )
    return counts


def _names(job: PrepareJob) -> str:
    return ", ".join(map(str, job.roots))


def must_fit(prepared: Prepared, encoder: TableEncoder) -> None:
    """Raise unless this is the encoder that the sums were made with."""
    if encoder.fingerprint != prepared.fingerprint:
        raise EncoderMismatch(
            f"the statistics of {prepared.domain!r} were made with encoder "
            f"{prepared.encoder_name} ({prepared.fingerprint[:12]}), not with "
            f"{encoder.name} ({encoder.fingerprint[:12]}); use --encoder"
        )


def token_texts(tokenizer: AnyTokenizer, ids: Sequence[int]) -> list[str]:
    """What tokens look like, for the holder's own eyes."""
    if isinstance(tokenizer, PieceTokenizer):
        pieces = tokenizer.vocabulary()
        shown = [pieces[number].decode(errors="replace") for number in ids]
        return [text.replace("▁", " ") for text in shown]
    backend = Backend.from_str(tokenizer.definition.decode())
    return [
        backend.decode([number]) or str(backend.id_to_token(number)) for number in ids
    ]


# Exact sums


@dataclass(frozen=True, slots=True, eq=False)
class Finding:
    """One attack on exact sums and what it brought.

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
        count = {"found": int((self.counts > 0).sum())}
        return {
            "view": self.view,
            **self.sampling.to_json(),
            **(asdict(self.measures) if self.measures else count),
            "proven": self.proven,
            "seconds": round(self.seconds, 1),
        }


@dataclass(frozen=True, slots=True, eq=False)
class AuditedHolder:
    """A holder, alone in its domain: its sums, and its counts where known."""

    domain: str
    statistics: Statistics
    counts: Integers | None


def attack_cohort(
    members: Sequence[AuditedHolder],
    holder: int,
    sampling: Sampling,
    encoder: TableEncoder,
) -> Iterator[Finding]:
    """Attack one holder by every view of a coordinator: its statistics, its column, which masking
    does not hide where a domain has one holder, the total, and the difference of two totals.
    """
    attacked = members[holder]
    clear = _attack_gram(CLEAR, encoder, attacked.statistics, sampling, attacked.counts)
    yield clear
    started = time.monotonic()
    window, parts = _windows(sampling)
    cross = _of_tokens(attacked.statistics, encoder).cross[:, 0] // parts
    counts = column(encoder.table, cross, window)
    yield _measured(COLUMN, sampling, counts, attacked.counts, started)
    if len(members) == 1:
        return
    total = _total(members)
    known = [member.counts for member in members if member.counts is not None]
    truth = reduce(add, known) if len(known) == len(members) else None
    name = f"total of {len(members)}"
    union = _attack_gram(f"{name}: union", encoder, total, sampling, truth)
    yield union
    started = time.monotonic() - union.seconds
    owners = attribution(encoder.table, _of_tokens(total, encoder))
    called = np.where(owners == holder, union.counts, 0)
    yield _measured(
        f"{name}: called {attacked.domain}", sampling, called, attacked.counts, started
    )
    view = "difference of totals"
    seen = _seen_in_difference(members, holder)
    if seen.equals(attacked.statistics):  # then what is found is the same too
        yield replace(clear, view=view)
    else:
        yield _attack_gram(view, encoder, seen, sampling, attacked.counts)


def _seen_in_difference(members: Sequence[AuditedHolder], holder: int) -> Statistics:
    """What two weighted totals, one of them without the holder, show of it: their difference, its
    weighting undone.
    """
    others = [member for index, member in enumerate(members) if index != holder]
    both = _total(members, EQUAL_MASS)
    seen = single_domain(both.gram - _total(others, EQUAL_MASS).gram)
    return unweighted(seen) or seen


def _total(members: Sequence[AuditedHolder], mass: int | None = None) -> Statistics:
    """The sum over holders, of raw sums or of those that each has weighted."""
    statistics = (member.statistics for member in members)
    parts = (sums.weighted(mass) if mass else sums for sums in statistics)
    placed = (part.placed(index, len(members)) for index, part in enumerate(parts))
    return reduce(add, placed)


def _attack_gram(
    view: str,
    encoder: TableEncoder,
    statistics: Statistics,
    sampling: Sampling,
    truth: Integers | None,
) -> Finding:
    """The histogram from second moments."""
    started = time.monotonic()
    seen = _of_tokens(statistics, encoder).gram
    window, parts = _windows(sampling)
    counts = histogram(encoder.table, seen // parts, window)
    proven = only_counts(sampling) and np.array_equal(
        gram_of_counts(encoder.table, counts, cores()), seen
    )
    return _measured(view, sampling, counts, truth, started, proven)


def _of_tokens(statistics: Statistics, encoder: TableEncoder) -> Statistics:
    """The sums over the features of tokens alone, with the constant one: what attacks look at."""
    kept = [*range(encoder.table.shape[1]), len(statistics.gram) - 1]
    return Statistics(statistics.gram[np.ix_(kept, kept)], statistics.cross[kept])


def _measured(
    view: str,
    sampling: Sampling,
    counts: Integers,
    truth: Integers | None,
    started: float,
    proven: bool = False,
) -> Finding:
    measures = None if truth is None else measure(counts, truth)
    return Finding(view, sampling, counts, proven, measures, time.monotonic() - started)


def _windows(sampling: Sampling) -> tuple[int, int]:
    """How many tokens a window stands for, and by what sums are divided to be sums over windows.

    Where windows are apart from each other, an attack finds most if each stands for the tokens up
    to the next. Units vary as windows of UNIT_WINDOW tokens do, and count about once a token in
    documents of as many tokens as units.
    """
    if sampling.units:
        return UNIT_WINDOW, UNIT_WINDOW
    return max(sampling.window, sampling.stride), 1


def survives_weighting(statistics: Statistics) -> bool:
    """Whether the raw sums, and with them the corpus's size, follow from the equally weighted
    ones.
    """
    raw = unweighted(statistics.weighted(EQUAL_MASS))
    return raw is not None and raw.equals(statistics)


def advice(finding: Finding) -> str:
    """One plain sentence on what to do, by the attack on the whole statistics."""
    if finding.proven:
        return (
            "Every token of this corpus and its exact count can be computed from "
            "these sums. Send them only to someone who may see the vocabulary, and "
            "prefer windows in a masked round."
        )
    if only_counts(finding.sampling):
        return (
            "The counts were not proven this time, but sums over single tokens "
            "usually determine them. Treat these sums as the vocabulary itself, and "
            "prefer windows in a masked round."
        )
    return (
        "These sums do not reveal the counts, but they reveal many of the tokens, "
        "some rare ones too. Send them in a masked round, or in the clear only to a "
        "coordinator that may know which words the corpus uses."
    )


# Sums of documents under noise


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Half:
    """Documents of one half of a corpus.

    rows:   a document's vector each.
    more:   the buckets of runs of letters that they have more of than public text.
    varied: those in which they vary most.
    """

    rows: Integers
    more: Flags
    varied: Flags


@dataclass(frozen=True, slots=True)
class PrivateFinding:
    """Buckets of runs of letters that an attack on noisy sums named, against those of the documents
    that were summed and those of the control.
    """

    view: str
    own: NamedShares
    control: NamedShares


@dataclass(frozen=True, slots=True)
class MembershipAuc:
    """How often a summed document scores higher than another one; 0.5 is guessing.

    own_against_control: as measured.
    worst_case:          by the best attack that knows all else, at this noise.
    allowed:             the most that ε allows.
    """

    own_against_control: float
    worst_case: float
    allowed: float


@dataclass(frozen=True, slots=True)
class CanaryFinding:
    """What planted documents showed.

    guesses:  how often it was guessed whether a document was planted.
    at_least: ε is at least this, with a confidence of 95 %; 0 if nothing was shown.
    """

    guesses: int
    auc: float
    at_least: float


@dataclass(frozen=True, slots=True)
class PrivateAudit:
    """What attacks on sums under noise brought."""

    privacy: str
    epsilon: float
    delta: float
    documents: int
    findings: tuple[PrivateFinding, ...]
    membership_auc: MembershipAuc
    canaries: CanaryFinding | None = None


def halves(
    texts: Iterable[str], encoder: TableEncoder, prior: PublicPrior
) -> tuple[Half, Half]:
    """Documents divided in two by their hash, the same way each time; copies of one document stay
    together.
    """
    sides: tuple[list[str], list[str]] = ([], [])
    for text in texts:
        digest = hashlib.sha256(text.encode(errors="replace")).digest()
        sides[digest[0] & 1].append(text)
    own, control = (half_of(side, encoder, prior) for side in sides)
    if min(len(own.rows), len(control.rows)) < MIN_AUDITED_DOCUMENTS:
        raise CorpusError(
            f"the halves of the corpus have {len(own.rows)} and {len(control.rows)} "
            f"documents, and an audit under noise needs {MIN_AUDITED_DOCUMENTS} in "
            "each; add text"
        )
    return own, control


def half_of(texts: list[str], encoder: TableEncoder, prior: PublicPrior) -> Half:
    """These documents, all of them in one half."""
    tokens = encoder.read(texts)
    filled = tokens.lengths > 0
    means = letter_sums(encoder, tokens)[filled] / tokens.lengths[filled, None]
    apart = means - prior.letters.centre
    varied = varied_most(prior.letters, np.square(apart).sum(axis=0))
    return Half(document_vectors(prior, tokens, encoder), apart.sum(axis=0) > 0, varied)


def audit_halves(
    own: Half,
    control: Half,
    prior: PublicPrior,
    privacy: Privacy,
    draw: Randomness = secrets.token_bytes,
) -> PrivateAudit:
    """Sum one half under noise, as if its holder were alone, and attack the sums."""
    noisy = _under_noise(bounded_sums(privacy.mode, own.rows), privacy, draw)
    # the rows of letters stand first
    width = prior.letters.width
    named = buckets_by_column(prior.letters, noisy.column[:width])
    findings = [
        PrivateFinding(
            "column", named_shares(named, own.more), named_shares(named, control.more)
        )
    ]
    if privacy.mode == "full":
        named = buckets_by_products(prior.letters, noisy.products[:width, :width])
        shares = (named_shares(named, half.varied) for half in (own, control))
        findings.append(PrivateFinding("products", *shares))
    scores = [membership_scores(half.rows, noisy) for half in (own, control)]
    return PrivateAudit(
        privacy=privacy.mode,
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        documents=len(own.rows),
        findings=tuple(findings),
        membership_auc=MembershipAuc(
            own_against_control=auc(*scores),
            worst_case=auc_of_noise(privacy.epsilon, privacy.delta),
            allowed=auc_allowed(privacy.epsilon, privacy.delta),
        ),
    )


def _under_noise(
    sums: DocumentSums, privacy: Privacy, draw: Randomness
) -> DocumentSums:
    """The sums with all of a round's noise on them."""
    noisy = as_statistics(sums, with_noise(*laid_out(sums, privacy), draw)).gram
    width = len(sums.products)
    return DocumentSums(sums.mode, noisy[:width, :width], noisy[-1])


# Planted documents


def canaries(
    encoder: TableEncoder, prior: PublicPrior, count: int, rng: np.random.Generator
) -> Integers:
    """The rows of documents of a few pieces drawn at random, which lie apart from all text and
    from each other.
    """
    tokenizer = private_reader(encoder).tokenizer
    drawn = rng.integers(tokenizer.rows, size=count * CANARY_PIECES)
    pieces = token_texts(tokenizer, drawn.tolist())
    parts = np.reshape(pieces, (count, CANARY_PIECES)).tolist()
    return document_vectors(prior, encoder.read(list(map("".join, parts))), encoder)


def plant(
    privacy: Privacy,
    rows: Integers,
    runs: int,
    rng: np.random.Generator,
    draw: Randomness = secrets.token_bytes,
    tick: Callable[[], None] = lambda: None,
) -> CanaryFinding:
    """Plant each document in each run or not, and guess by the sums which were. All else in them is
    known.

    Differential privacy bounds the ratio of true to false alarms by e^ε, so counted alarms give a
    lower bound on ε. Above what the terms promise, something is broken; far below is as it should
    be, for ε also covers chances of one in a hundred million, which no number of runs can show.
    """
    lengths = np.square(rows.astype(np.float64)).sum(axis=1)
    squares = row_unit(privacy.mode) ** 2 * lengths + count_unit(privacy.mode) ** 2
    squares += lengths**2 if privacy.mode == "full" else 0
    sizes = np.sqrt(squares)
    inside = list[_Floats]()
    outside = list[_Floats]()
    for _ in range(runs):
        noise = _under_noise(empty_sums(privacy.mode, rows.shape[1]), privacy, draw)
        scores = membership_scores(rows, noise) / sizes
        coins = rng.random(len(rows)) < 0.5
        inside.append((scores + sizes)[coins])
        outside.append(scores[~coins])
        tick()
    members = np.concatenate(inside)
    others = np.concatenate(outside)
    return CanaryFinding(
        guesses=len(rows) * runs,
        auc=auc(members, others),
        at_least=epsilon_at_least(members, others, privacy.delta),
    )


def epsilon_at_least(inside: _Floats, outside: _Floats, delta: float) -> float:
    """The largest lower bound on ε, by a threshold that the first halves choose and the second
    halves judge.
    """
    middle = len(inside) // 2, len(outside) // 2
    first = inside[: middle[0]], outside[: middle[1]]
    second = inside[middle[0] :], outside[middle[1] :]
    shares = np.linspace(0, 1, _THRESHOLDS + 2)[1:-1]
    edges = np.quantile(np.concatenate(first), shares).tolist()
    _, edge, sign = max(
        (_bound(*first, edge, sign, delta), edge, sign)
        for edge in edges
        for sign in (1, -1)
    )
    return _bound(*second, edge, sign, delta)


def _bound(
    inside: _Floats, outside: _Floats, edge: float, sign: int, delta: float
) -> float:
    """ln of the least ratio of alarms that the counts leave room for (Clopper and Pearson).

    sign: 1 for alarms above the edge; −1 for those below it, where documents that are not planted
          give them.
    """
    from scipy.stats import beta

    if sign > 0:
        likely = inside > edge
        unlikely = outside > edge
    else:
        likely = outside <= edge
        unlikely = inside <= edge
    tail = (1 - CONFIDENCE) / 2
    hits = likely.sum()
    alarms = unlikely.sum()
    # Beyond the ends of what can be counted, beta has no quantile: 0 and 1 are the bounds there.
    least = float(beta.ppf(tail, hits, len(likely) - hits + 1)) if hits else 0.0
    missed = len(unlikely) - alarms
    most = float(beta.ppf(1 - tail, alarms + 1, missed)) if missed else 1.0
    return max(0.0, math.log((least - delta) / most)) if least > delta else 0.0
