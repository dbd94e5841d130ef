"""ridgeway client audit: what a holder's own sums give away, shown before they are sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.settings import DEFAULT, ENCODERS
from ridgeway.common.cli.options import Fields, Json, SkipBroken, argument, option
from ridgeway.common.cli.terminal import (
    TextTable,
    count,
    progress_bar,
    show,
    step,
    stop_on_signal,
)

if TYPE_CHECKING:
    from ridgeway.client.audit import Finding, PrivateAudit
    from ridgeway.client.round.holder import HolderSettings
    from ridgeway.client.sums.prepare import PrepareJob, Watch
    from ridgeway.common.base.settings import Sampling
    from ridgeway.common.encoding.table_encoder import TableEncoder
    from ridgeway.common.privacy.privacy_settings import Privacy
    from ridgeway.common.privacy.public_prior import PublicPrior
    from ridgeway.common.statistics.statistics_file import Prepared

EncoderOption = Annotated[str, option(ENCODERS)]
AuditedEpsilon = Annotated[
    float | None,
    option("Attack sums under noise of this ε instead.", "--epsilon"),
]
AuditedMode = Annotated[
    str, option("What the noise covers: columns or full.", "--privacy")
]
PriorFile = Annotated[
    Path | None,
    option("The public prior. (default: of built-in text)", "--prior", metavar="FILE"),
]

RARE = "rare tokens: those that occur once or twice in what was summed"
CHANCE = "by chance: what a random guess of as many tokens recovers"
UNDONE = (
    "hides nothing; the raw sums and the number of samples were computed from the"
    " weighted ones"
)
HIDES = "hides the raw sums; they could not be computed from the weighted ones"
TOKENS_SHOWN = 12
_SHARES = ("recovered", "rare_recovered", "chance", "precision", "exact")


def audit(
    statistics: Annotated[
        Path,
        argument(
            "Your statistics file, or a holder's folder, which names its corpus.",
            "FILE",
        ),
    ],
    corpus: Annotated[
        list[Path] | None,
        option("The files and folders it was made of; repeatable."),
    ] = None,
    encoder: EncoderOption = DEFAULT.encoder,
    text_field: Fields = "text",
    skip_broken: SkipBroken = 0.0,
    epsilon: AuditedEpsilon = None,
    privacy: AuditedMode = "columns",
    prior: PriorFile = None,
    json: Json = False,
) -> None:
    """Attack your own statistics; runs here and sends nothing.

    The attacks are those of a coordinator that sees the statistics.

    With the corpus, the result is the share of its tokens that come back; without, what the attack
    believes to have found, and whether that is proven. Of a holder's folder, the sums are those of
    its current epoch, and client.toml names corpus, fields and encoder.

    With --epsilon, one half of the documents is summed under noise, as in a private round, and what
    the attacks find is held against both halves: the other one is a control.
    """
    from ridgeway.client.audit import must_fit
    from ridgeway.common.encoding.encoder_sources import (
        find_by_fingerprint,
        find_encoder,
    )
    from ridgeway.common.encoding.table_encoder import without_words
    from ridgeway.common.statistics.statistics_file import load_prepared

    settings = None
    if statistics.is_dir():
        settings, statistics = _of_folder(statistics, corpus)
        corpus = list(map(Path, settings.corpus))
        text_field = settings.text_field
        skip_broken = settings.skip_broken
    prepared = load_prepared(statistics)
    if settings is None:
        found = find_encoder(encoder)
    else:
        found = find_by_fingerprint(
            prepared.fingerprint, prepared.encoder_name, settings.encoder
        )
    must_fit(prepared, found)
    job = job_of(prepared.domain, corpus or [], prepared.sampling, text_field)
    job = replace(job, holdout=prepared.holdout, skip_broken=skip_broken)
    if epsilon is None:
        _audit_sums(prepared, job, found, json)
        return
    plain = without_words(found)
    terms, public = audited_terms(plain, epsilon, privacy, prior)
    told = audit_under_noise(job, plain, terms, public)
    show({"domain": job.domain, **asdict(told)}, *private_lines(told), json=json)


def _audit_sums(
    prepared: Prepared, job: PrepareJob, encoder: TableEncoder, json: bool
) -> None:
    """Attack exact sums; what comes back is held against the corpus of the job, where it names
    one.
    """
    from ridgeway.client.audit import (
        advice,
        attack_holder,
        survives_weighting,
        true_counts,
    )

    truth = None
    if job.roots:
        with watching(prepared.domain) as watch:
            truth = true_counts(prepared, job, encoder, watch)
        tokens = count(int(truth.sum()), "token")
        step("read", prepared.domain, tokens, f"{(truth > 0).sum():,} distinct")
    attacks = attack_holder(encoder, prepared.statistics, prepared.sampling, truth)
    findings = list(told_findings(attacks))
    weighting = survives_weighting(prepared.statistics)
    words = advice(findings[0])
    facts = {
        "domain": prepared.domain,
        "rare": RARE,
        "findings": [each.to_json() for each in findings],
        "weighting_undone": weighting,
        "advice": words,
    }
    show(
        facts,
        *finding_lines(findings),
        *(_token_lines(findings[0], encoder) if truth is None else ()),
        f"equal weighting: {UNDONE if weighting else HIDES}",
        words,
        json=json,
    )


def told_findings(findings: Iterator[Finding]) -> Iterator[Finding]:
    """A line about each attack as it ends: with the default encoder one takes minutes."""
    for each in findings:
        step("attacked", each.view, str(each.sampling), f"{each.seconds:.0f} s")
        yield each


def audited_terms(
    encoder: TableEncoder, epsilon: float, mode: str, prior: Path | None
) -> tuple[Privacy, PublicPrior]:
    """The terms that options name, and their prior."""
    from ridgeway.common.privacy.privacy_settings import Privacy, check_privacy
    from ridgeway.common.privacy.public_prior import built_in_prior, read_prior

    chosen = check_privacy(mode, epsilon)
    public = built_in_prior(encoder) if prior is None else read_prior(prior)
    public.must_fit(encoder)
    return Privacy(mode=chosen, epsilon=epsilon, prior=public.fingerprint), public


def audit_under_noise(
    job: PrepareJob, encoder: TableEncoder, terms: Privacy, public: PublicPrior
) -> PrivateAudit:
    from ridgeway.client.audit import audit_halves, halves, summed_documents

    if not job.roots:
        raise InputError("an audit under noise needs the text; use --corpus")
    with watching(job.domain) as watch:
        own, control = halves(summed_documents(job, watch, whole=True), encoder, public)
    documents = count(len(own.rows), "document")
    step("read", job.domain, documents, f"{len(control.rows):,} as a control")
    return audit_halves(own, control, encoder, public, terms)


def private_lines(told: PrivateAudit) -> Iterator[str | TextTable]:
    rows = [
        [
            each.view,
            each.own.found,
            _percent(each.own.recovered),
            _percent(each.control.recovered),
            _percent(each.own.rare_recovered),
            _percent(each.control.rare_recovered),
            _percent(each.own.chance),
        ]
        for each in told.findings
    ]
    of_rare = "rare", "of the control", "by chance"
    yield TextTable(["view", "named", "recovered", "of the control", *of_rare], rows)
    yield RARE
    yield CHANCE
    auc = told.membership_auc
    yield (
        "membership AUC (50 % is guessing):"
        f" {_percent(auc.own_against_control)} measured, {_percent(auc.worst_case)} for"
        " an attacker who knows all else, and"
        f" ε = {told.epsilon:g} allows {_percent(auc.allowed)}"
    )
    if planted := told.canaries:
        yield (
            f"canaries: AUC {_percent(planted.auc)} over {planted.guesses:,} guesses,"
            f" which proves ε ≥ {planted.at_least:.2f} (95 %) where {told.epsilon:g} is"
            " promised"
        )


def _of_folder(folder: Path, corpus: list[Path] | None) -> tuple[HolderSettings, Path]:
    """A holder's settings, and the file with the exact sums of its current epoch."""
    from ridgeway.client.cli.holder_commands import open_holder

    if corpus:
        raise InputError(
            "--corpus needs a statistics file; a holder's folder has its own corpus"
        )
    holder = open_holder(folder)
    current = holder.epochs.current()
    path = None if current is None else holder.epochs.statistics_file(current)
    if path is None:
        raise InputError(
            f"{folder} has no exact sums; under terms with exact sums, make them "
            f"with: ridgeway client ready {folder}"
        )
    return holder.settings, path


def job_of(
    domain: str, corpus: Sequence[Path], sampling: Sampling, text_field: str
) -> PrepareJob:
    """How to read a corpus for an audit."""
    from ridgeway.client.sums.prepare import PrepareJob
    from ridgeway.common.base.jsonl import field_names
    from ridgeway.common.base.operating_system import cores

    fields = field_names(text_field)
    return PrepareJob(tuple(corpus), domain, sampling, DEFAULT.holdout, fields, cores())


@contextmanager
def watching(label: str) -> Iterator[Watch]:
    """A bar over the bytes that are read; a signal stops the reading."""
    from ridgeway.client.sums.prepare import Watch

    with stop_on_signal() as stopped, progress_bar(label) as progress:
        yield Watch(progress, stopped)


def finding_lines(
    findings: Sequence[Finding], title: str = ""
) -> Iterator[str | TextTable]:
    rows = []
    for each in findings:
        facts = each.to_json()
        shares = (_percent(facts.get(name)) for name in _SHARES)
        proven = "yes" if each.proven else "no"
        seconds = f"{each.seconds:.0f} s"
        sampling = str(each.sampling)
        rows.append([each.view, sampling, facts["found"], *shares, proven, seconds])
    measured = ("recovered", "rare", "by chance", "precision", "counts exact")
    headings = ["view", "samples", "found", *measured, "proven", "time"]
    yield TextTable(headings, rows, title)
    if any(each.measures for each in findings):
        yield RARE
        yield CHANCE


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def _token_lines(finding: Finding, encoder: TableEncoder) -> Iterator[str]:
    """The most frequent and some of the rarest tokens that the attack believes in."""
    import numpy as np

    from ridgeway.client.audit import token_texts

    found = np.flatnonzero(finding.counts)
    ranked = found[np.argsort(-finding.counts[found], kind="stable")].tolist()
    shown = {
        "most frequent": ranked[:TOKENS_SHOWN],
        "rarest": ranked[TOKENS_SHOWN:][-TOKENS_SHOWN:],
    }
    for words, chosen in shown.items():
        texts = zip(token_texts(encoder, chosen), chosen, strict=True)
        counted = (f"{text!r} {finding.counts[number]:,}" for text, number in texts)
        yield f"{words}: {'  '.join(counted)}"
