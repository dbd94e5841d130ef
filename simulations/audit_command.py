"""ridgeway audit: what a coordinator could learn of a holder's text by the sums that it is sent."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import numpy as np

from ridgeway.client.sums.prepare import PrepareJob, Watch
from ridgeway.common.base.errors import InputError
from ridgeway.common.base.files import field_names
from ridgeway.common.base.operating_system import cores
from ridgeway.common.base.settings import (
    DEFAULT,
    ENCODERS,
    PRIVATE_ENCODER,
    Sampling,
)
from ridgeway.common.cli.terminal import (
    Fields,
    Json,
    SkipBroken,
    TextTable,
    argument,
    count,
    option,
    progress_bar,
    show,
    step,
    stop_on_signal,
    ticking,
)
from ridgeway.common.privacy.accountant import Privacy, check_privacy
from ridgeway.common.privacy.public_prior import (
    LETTER_BUCKETS,
    built_in_prior,
    private_reader,
    read_prior,
)
from ridgeway.common.statistics import Integers, Prepared, load_prepared
from ridgeway.common.text.encoder_files import find_by_fingerprint, find_encoder
from ridgeway.common.text.table_encoder import TableEncoder
from ridgeway.simulations.audit import (
    AuditedHolder,
    Finding,
    PrivateAudit,
    advice,
    attack_cohort,
    audit_halves,
    canaries,
    halves,
    must_fit,
    plant,
    read_summed,
    summed_documents,
    survives_weighting,
    token_texts,
    true_counts,
)
from ridgeway.simulations.corpora import TRAIN, builtin, write

CANARY_RUNS = 100
RARE = "rare tokens: those that occur once or twice in what was summed"
CHANCE = "by chance: what a random guess of as many tokens recovers"
RUNS = (
    f"named: of {LETTER_BUCKETS} buckets of runs of letters, those that the documents seem"
    " to have more of than public text (column), or to vary most in (products); by"
    " chance: what naming as many at random recovers"
)
UNDONE = (
    "hides nothing; the raw sums and the number of samples were computed from the"
    " weighted ones"
)
HIDES = "hides the raw sums; they could not be computed from the weighted ones"
TOKENS_SHOWN = 12
_SHARES = ("recovered", "rare_recovered", "chance", "precision", "exact")


def audit(
    statistics: Annotated[
        Path | None,
        argument("A statistics file. (default: a cohort, as --data has it)", "[FILE]"),
    ] = None,
    corpus: Annotated[
        list[Path] | None,
        option("With FILE: the files and folders it was made of; repeatable."),
    ] = None,
    text_field: Fields = "text",
    skip_broken: SkipBroken = 0.0,
    data: Annotated[
        Path | None,
        option("A folder with DOMAIN.train.jsonl. (default: text on this machine)"),
    ] = None,
    windows: Annotated[
        list[int] | None,
        option("Tokens per sample; repeatable. (default: 1, and the default)"),
    ] = None,
    holder: Annotated[
        str | None,
        option(
            "Holder to attack. (default: the one with the least text)", metavar="DOMAIN"
        ),
    ] = None,
    encoder: Annotated[
        str | None,
        option(
            f"{ENCODERS} (default: that of FILE, or {DEFAULT.encoder}; with --epsilon"
            f" {PRIVATE_ENCODER})"
        ),
    ] = None,
    epsilon: Annotated[
        float | None, option("Attack sums under noise of this ε instead.")
    ] = None,
    privacy: Annotated[
        str, option("What the noise covers: columns or full.")
    ] = "columns",
    prior: Annotated[
        Path | None,
        option("The public prior. (default: of built-in text)", metavar="FILE"),
    ] = None,
    canaries: Annotated[
        int, option("With --epsilon: documents to plant in each run.", min=0)
    ] = 200,
    json: Json = False,
) -> None:
    """Attack the sums of a holder, as a coordinator could. Nothing is sent.

    Of FILE, the attacks are those on statistics in the clear and on a column of B alone. With its
    corpus, the result is the share of its tokens that come back; without, what the attack believes
    to have found, and whether that is proven.

    Of a cohort, where the text is known, every view of one holder is attacked: also a total over
    all holders, and two totals that differ by the holder.

    With --epsilon, one half of the holder's documents is summed under noise, as in a private round.
    The attacks name runs of letters, in buckets; they are held against both halves: the other one
    is a control. Planted documents (canaries) show the ε that can be proven at least.
    """
    noise = None if epsilon is None else (epsilon, privacy, prior)
    if statistics is not None:
        if data or windows or holder:
            raise InputError(
                "--data, --windows and --holder are for a cohort, not FILE"
            )
        prepared = load_prepared(statistics)
        job = _job(prepared.domain, corpus or [], prepared.sampling, text_field)
        job = replace(job, holdout=prepared.holdout, skip_broken=skip_broken)
        if noise:
            private = find_encoder(encoder or PRIVATE_ENCODER)
            _audit_under_noise(job, private, noise, canaries, json)
            return
        chosen_encoder = find_by_fingerprint(
            prepared.fingerprint, prepared.encoder_name, encoder
        )
        must_fit(prepared, chosen_encoder)
        _audit_file(prepared, job, chosen_encoder, json)
        return
    if corpus:
        raise InputError(
            "--corpus is that of a statistics file; of a cohort, use --data"
        )
    samplings = [Sampling(window=window) for window in sorted({*(windows or ())})]
    usual_encoder = PRIVATE_ENCODER if noise else DEFAULT.encoder
    chosen_encoder = find_encoder(encoder or usual_encoder)
    with _texts(data) as texts:
        chosen = holder or min(texts, key=lambda name: texts[name].stat().st_size)
        if chosen not in texts:
            raise InputError(
                f"there is no holder {chosen!r}; there are {', '.join(texts)}"
            )
        if noise:
            job = _job(chosen, [texts[chosen]], DEFAULT.sampling)
            _audit_under_noise(job, chosen_encoder, noise, canaries, json)
        else:
            usual = [Sampling(window=1), DEFAULT.sampling]
            _audit_cohort(texts, chosen, samplings or usual, chosen_encoder, json)


@contextmanager
def _texts(data: Path | None) -> Iterator[dict[str, Path]]:
    """The text of each holder, by its domain."""
    if data is not None and not data.is_dir():
        raise InputError(f"there is no folder {data}")
    with tempfile.TemporaryDirectory(prefix="ridgeway-") as name:
        if data is None:
            write(builtin(), Path(name))
        paths = sorted((data or Path(name)).glob(f"*{TRAIN}"))
        if not paths:
            raise InputError(
                f"{data} has no file named DOMAIN{TRAIN}; an audit needs at least one"
            )
        yield {path.name.removesuffix(TRAIN): path for path in paths}


def _job(
    domain: str, corpus: Sequence[Path], sampling: Sampling, text_field: str = "text"
) -> PrepareJob:
    """How to read a corpus for an audit."""
    fields = field_names(text_field)
    return PrepareJob(tuple(corpus), domain, sampling, DEFAULT.holdout, fields, cores())


@contextmanager
def _watching(label: str) -> Iterator[Watch]:
    """A bar over the bytes that are read; a signal stops the reading."""
    with stop_on_signal() as stopped, progress_bar(label) as progress:
        yield Watch(progress, stopped)


# Exact sums


def _audit_file(
    prepared: Prepared, job: PrepareJob, encoder: TableEncoder, json: bool
) -> None:
    """Attack the sums of a file; what comes back is held against its corpus, if that is given."""
    truth = None
    if job.roots:
        with _watching(job.domain) as watch:
            truth = true_counts(prepared, job, encoder, watch)
        _say_read(job.domain, truth)
    alone = AuditedHolder(job.domain, prepared.statistics, truth)
    findings = _followed(attack_cohort([alone], 0, prepared.sampling, encoder))
    weighting = survives_weighting(prepared.statistics)
    words = advice(findings[0])
    show(
        {
            "domain": job.domain,
            "rare": RARE,
            "findings": [finding.to_json() for finding in findings],
            "weighting_undone": weighting,
            "advice": words,
        },
        *_finding_lines(findings),
        *(_token_lines(findings[0], encoder) if truth is None else ()),
        f"equal weighting: {UNDONE if weighting else HIDES}",
        words,
        json=json,
    )


def _audit_cohort(
    texts: Mapping[str, Path],
    holder: str,
    samplings: Sequence[Sampling],
    encoder: TableEncoder,
    json: bool,
) -> None:
    """Attack one holder of a cohort by every view of its exact sums."""
    read = {}
    with _watching("corpora") as watch:
        for domain, path in texts.items():
            job = _job(domain, [path], Sampling())
            read[domain] = read_summed(job, encoder, samplings, watch)
            _say_read(domain, read[domain][0])
    findings = []
    for sampling in samplings:
        members = [
            AuditedHolder(domain, sums[sampling], counts)
            for domain, (counts, sums) in read.items()
        ]
        index = list(read).index(holder)
        findings += _followed(attack_cohort(members, index, sampling, encoder))
    facts = {
        "holder": holder,
        "cohort": list(texts),
        "rare": RARE,
        "findings": [finding.to_json() for finding in findings],
    }
    title = f"holder {holder} in a cohort of {len(texts)}"
    show(facts, *_finding_lines(findings, title), json=json)


def _say_read(domain: str, counts: Integers) -> None:
    distinct = f"{(counts > 0).sum():,} distinct"
    step("read", domain, count(int(counts.sum()), "token"), distinct)


def _followed(attacks: Iterator[Finding]) -> list[Finding]:
    """A line about each attack as it ends."""
    findings = []
    for attack in attacks:
        step("attacked", attack.view, str(attack.sampling), f"{attack.seconds:.0f} s")
        findings.append(attack)
    return findings


def _finding_lines(
    findings: Sequence[Finding], title: str = ""
) -> Iterator[str | TextTable]:
    rows = []
    for finding in findings:
        facts = finding.to_json()
        shares = (_percent(facts.get(name)) for name in _SHARES)
        proven = "yes" if finding.proven else "no"
        seconds = f"{finding.seconds:.0f} s"
        sampling = str(finding.sampling)
        rows.append([finding.view, sampling, facts["found"], *shares, proven, seconds])
    measured = ("recovered", "rare", "by chance", "precision", "counts exact")
    headings = ["view", "samples", "found", *measured, "proven", "time"]
    yield TextTable(headings, rows, title)
    if any(attacked.measures for attacked in findings):
        yield RARE
        yield CHANCE


def _token_lines(finding: Finding, encoder: TableEncoder) -> Iterator[str]:
    """The most frequent and some of the rarest tokens that the attack believes in."""
    believed = np.flatnonzero(finding.counts)
    ranked = believed[np.argsort(-finding.counts[believed], kind="stable")].tolist()
    shown = {
        "most frequent": ranked[:TOKENS_SHOWN],
        "rarest": ranked[TOKENS_SHOWN:][-TOKENS_SHOWN:],
    }
    for words, chosen in shown.items():
        texts = zip(token_texts(encoder.tokenizer, chosen), chosen, strict=True)
        counted = (f"{text!r} {finding.counts[number]:,}" for text, number in texts)
        yield f"{words}: {'  '.join(counted)}"


# Sums under noise


def _audit_under_noise(
    job: PrepareJob,
    encoder: TableEncoder,
    noise: tuple[float, str, Path | None],
    planted: int,
    json: bool,
) -> None:
    """Attack the documents of one holder under noise, then those that are planted.

    noise: ε, what it covers, and the file of the prior.
    """
    private_reader(encoder)
    epsilon, mode, path = noise
    chosen = check_privacy(mode, epsilon)
    public = built_in_prior(encoder) if path is None else read_prior(path)
    public.must_fit(encoder)
    terms = Privacy(mode=chosen, epsilon=epsilon, prior=public.fingerprint)
    if not job.roots:
        raise InputError("an audit under noise needs the text; use --corpus")
    with _watching(job.domain) as watch:
        texts = summed_documents(replace(job, whole=True), watch)
        own, control = halves(texts, encoder, public)
    documents = count(len(own.rows), "document")
    step("read", job.domain, documents, f"{len(control.rows):,} as a control")
    audited = audit_halves(own, control, public, terms)
    if planted:
        rng = np.random.default_rng()
        rows = canaries(encoder, public, planted, rng)
        with ticking("planted", CANARY_RUNS) as tick:
            planted_result = plant(terms, rows, CANARY_RUNS, rng, tick=tick)
        audited = replace(audited, canaries=planted_result)
    show({"domain": job.domain, **asdict(audited)}, *_private_lines(audited), json=json)


def _private_lines(audited: PrivateAudit) -> Iterator[str | TextTable]:
    rows = [
        [
            finding.view,
            finding.own.found,
            _percent(finding.own.recovered),
            _percent(finding.control.recovered),
            _percent(finding.own.chance),
            _percent(finding.own.precision),
            _percent(finding.control.precision),
        ]
        for finding in audited.findings
    ]
    of_precision = "by chance", "precision", "of the control"
    headings = ["view", "named", "recovered", "of the control", *of_precision]
    yield TextTable(headings, rows)
    yield RUNS
    auc = audited.membership_auc
    yield (
        "membership AUC (50 % is guessing):"
        f" {_percent(auc.own_against_control)} measured, {_percent(auc.worst_case)} for"
        " an attacker who knows all else, and"
        f" ε = {audited.epsilon:g} allows {_percent(auc.allowed)}"
    )
    if planted := audited.canaries:
        yield (
            f"canaries: AUC {_percent(planted.auc)} over {planted.guesses:,} guesses,"
            f" which proves ε ≥ {planted.at_least:.2f} (95 %) where {audited.epsilon:g} is"
            " promised"
        )


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"
