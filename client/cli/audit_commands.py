"""ridgeway client audit: what a holder's own statistics give away, shown before they are sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.settings import DEFAULT
from ridgeway.common.cli.options import Fields, Json, SkipBroken
from ridgeway.common.cli.terminal import (
    CountingBar,
    count,
    emit_json,
    progress_bar,
    step,
    stop_on_signal,
    table,
)

if TYPE_CHECKING:
    from ridgeway.client.audit import Finding
    from ridgeway.client.private_audit import PrivateAudit
    from ridgeway.client.round.holder import HolderSettings
    from ridgeway.client.sums.prepare import PrepareJob, Watch
    from ridgeway.common.encoding.table_encoder import TableEncoder
    from ridgeway.common.privacy.privacy_settings import Privacy
    from ridgeway.common.privacy.public_prior import PublicPrior
    from ridgeway.common.statistics.statistics_file import Prepared

Plot = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Draw the shares: a file that ends in .png, .svg or .pdf."
    ),
]
EncoderOption = Annotated[str, typer.Option(help="smollm2, hf:NAME_OR_DIR or dir:PATH")]
AuditedEpsilon = Annotated[
    float | None,
    typer.Option(
        "--epsilon", help="Attack sums of documents under noise of this ε instead."
    ),
]
AuditedMode = Annotated[
    str, typer.Option("--privacy", help="What is noised and sent: columns or full.")
]
PriorFile = Annotated[
    Path | None,
    typer.Option(
        "--prior", metavar="FILE", help="The public prior. (default: of built-in text)"
    ),
]

RARE = "rare tokens: those that occur once or twice in what was summed"
CHANCE = "by chance: what finding as many tokens at random would recover"
UNDONE = (
    "hides nothing; the raw sums and the number of samples were computed from the"
    " weighted ones"
)
HIDES = "hides the raw sums; they could not be computed from the weighted ones"
TOKENS_SHOWN = 12
HEADINGS = (
    "view",
    "window",
    "found",
    "recovered",
    "rare",
    "by chance",
    "precision",
    "counts exact",
    "proven",
    "time",
)


def audit(
    statistics: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Your statistics file, or a holder's folder, which names its corpus.",
        ),
    ],
    corpus: Annotated[
        list[Path] | None,
        typer.Option(help="The files and folders it was made of; may be given again."),
    ] = None,
    encoder: EncoderOption = DEFAULT.encoder,
    text_field: Fields = "text",
    skip_broken: SkipBroken = 0.0,
    epsilon: AuditedEpsilon = None,
    privacy: AuditedMode = "columns",
    prior: PriorFile = None,
    plot: Plot = None,
    json: Json = False,
) -> None:
    """Attack your own statistics, as a coordinator that sees them could. Runs here and sends
    nothing.

    With the corpus, the result is the share of its tokens that come back; without, what the attack
    believes to have found, and whether that is proven. Of a holder's folder, the sums are those of
    its current epoch, and client.toml names corpus, fields and encoder.

    With --epsilon, one half of the documents is summed under noise, as in a round with differential
    privacy, and what the attacks find is held against both halves: the other one is a control.
    """
    from ridgeway.client.audit import must_fit
    from ridgeway.common.cli.plots import check_plot
    from ridgeway.common.encoding.encoder_sources import (
        find_by_fingerprint,
        find_encoder,
    )
    from ridgeway.common.encoding.table_encoder import of_tokens_alone
    from ridgeway.common.encoding.transformer_encoder import needs_table
    from ridgeway.common.statistics.statistics_file import load_prepared

    settings = None
    if statistics.is_dir():
        settings, statistics = _of_folder(statistics, corpus)
        corpus = list(map(Path, settings.corpus))
        text_field = settings.text_field
        skip_broken = settings.skip_broken
    if plot is not None:
        if not corpus:
            raise InputError(
                "a plot shows shares of the true tokens, so it needs the text too: give"
                " --corpus"
            )
        check_plot(plot)
    prepared = load_prepared(statistics)
    if settings is None:
        found = needs_table(find_encoder(encoder), "the audit")
    else:
        made_with = prepared.fingerprint, prepared.encoder_name, settings.encoder
        found = needs_table(find_by_fingerprint(*made_with), "the audit")
    must_fit(prepared, found)
    job = replace(job_of(prepared, corpus or [], text_field), skip_broken=skip_broken)
    if epsilon is not None:
        plain = of_tokens_alone(found)
        told = audit_under_noise(
            job, plain, *audited_terms(plain, epsilon, privacy, prior)
        )
        (
            emit_json({"domain": job.domain, **told.to_json()})
            if json
            else show_private(told)
        )
    else:
        _audit_sums(prepared, job, found, plot, json)


def _audit_sums(
    prepared: Prepared,
    job: PrepareJob,
    encoder: TableEncoder,
    plot: Path | None,
    json: bool,
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
        step(
            "read",
            prepared.domain,
            count(int(truth.sum()), "token"),
            f"{(truth > 0).sum():,} distinct",
        )
    with attack_bar() as ticks:
        findings = list(
            attack_holder(encoder, prepared.statistics, prepared.sampling, truth, ticks)
        )
    weighting = survives_weighting(prepared.statistics)
    words = advice(findings[0])
    if plot is not None:
        draw(plot, f"What the sums of {prepared.domain} give away", findings)
    if json:
        facts = {
            "domain": prepared.domain,
            "rare": RARE,
            "findings": [each.to_json() for each in findings],
        }
        emit_json({**facts, "weighting_undone": weighting, "advice": words})
        return
    show_findings(findings)
    if truth is None:
        _show_tokens(findings[0], encoder)
    print(f"equal weighting: {UNDONE if weighting else HIDES}\n{words}")


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
    from ridgeway.client.audit import summed_documents
    from ridgeway.client.private_audit import audit_halves, halves

    if not job.roots:
        raise InputError(
            "what noise leaves is held against the text, so it is needed too: give"
            " --corpus"
        )
    with watching(job.domain) as watch:
        own, control = halves(summed_documents(job, watch, whole=True), encoder, public)
    step(
        "read",
        job.domain,
        count(len(own.rows), "document"),
        f"{len(control.rows):,} as a control",
    )
    return audit_halves(own, control, encoder, public, terms)


def show_private(told: PrivateAudit) -> None:
    rows = []
    for each in told.findings:
        known = each.own, each.control
        shares = (
            [_percent(side.recovered) for side in known],
            [_percent(side.rare_recovered) for side in known],
        )
        rows.append(
            [
                each.view,
                f"{each.own.found:,}",
                *shares[0],
                *shares[1],
                _percent(each.own.chance),
            ]
        )
    table(
        (
            "view",
            "named",
            "recovered",
            "of the control",
            "rare",
            "of the control",
            "by chance",
        ),
        rows,
    )
    print(
        f"{RARE}\n{CHANCE}\na summed document scores above a control in"
        f" {_percent(told.membership)}; who knows all else tells it in"
        f" {_percent(told.of_noise)}, and ε = {told.privacy.epsilon:g} allows"
        f" {_percent(told.allowed)}; 50 % is guessing"
    )


def _of_folder(folder: Path, corpus: list[Path] | None) -> tuple[HolderSettings, Path]:
    """A holder's settings, and the file with the exact sums of its current epoch."""
    from ridgeway.client.cli.holder_commands import open_holder

    if corpus:
        raise InputError(
            "--corpus belongs to a statistics file; a holder's folder names its own"
            " corpus"
        )
    holder = open_holder(folder)
    current = holder.epochs.current()
    path = None if current is None else holder.epochs.statistics_file(current)
    if path is None:
        raise InputError(
            f"{folder} has no exact sums ready; under terms with exact sums they are"
            f" made with: ridgeway client ready {folder}"
        )
    return holder.settings, path


def job_of(prepared: Prepared, corpus: Sequence[Path], text_field: str) -> PrepareJob:
    """Read a corpus as it was read for these statistics."""
    from ridgeway.client.sums.prepare import PrepareJob
    from ridgeway.common.base.jsonl import field_names
    from ridgeway.common.base.threads import cores

    fields = field_names(text_field)
    return PrepareJob(
        tuple(corpus),
        prepared.domain,
        prepared.sampling,
        prepared.holdout,
        fields,
        cores(),
    )


@contextmanager
def watching(label: str) -> Iterator[Watch]:
    """A bar over the bytes that are read; a signal stops the reading."""
    from ridgeway.client.sums.prepare import Watch

    with stop_on_signal() as stopped, progress_bar(label) as progress:
        yield Watch(progress, stopped)


@contextmanager
def attack_bar() -> Iterator[Callable[[str], Callable[[], None]]]:
    """A bar over the steps of each attack; most end before their last step."""
    from ridgeway.common.attacks import MAX_STEPS

    with closing(CountingBar()) as bar:
        yield lambda view: lambda: bar.advance(view, MAX_STEPS)


def draw(path: Path, title: str, findings: Sequence[Finding]) -> None:
    """One panel a way of sampling: for every attack, the share of all tokens and of rare ones that
    came back.
    """
    from ridgeway.common.cli.plots import Panel, draw_shares

    panels = []
    for sampling in dict.fromkeys(finding.sampling for finding in findings):
        shown = [
            each for each in findings if each.sampling == sampling and each.measures
        ]
        measures = [each.measures for each in shown if each.measures]
        panels.append(
            Panel(
                title=(
                    "single tokens (w = 1)" if sampling.window == 1 else str(sampling)
                ),
                labels=[each.view for each in shown],
                series={
                    "distinct tokens recovered": [each.recovered for each in measures],
                    "rare tokens recovered": [each.rare_recovered for each in measures],
                },
                marks=[each.chance for each in measures],
            )
        )
    draw_shares(path, title, panels, "as many at random")
    step("wrote", str(path))


def show_findings(findings: Sequence[Finding], title: str = "") -> None:
    rows = []
    for each in findings:
        known = each.measures
        shares = (
            (
                known.recovered,
                known.rare_recovered,
                known.chance,
                known.precision,
                known.exact,
            )
            if known
            else ()
        )
        cells = [_percent(share) for share in shares] or ["–"] * 5
        proven = "yes" if each.proven else "no"
        found = f"{(each.counts > 0).sum():,}"
        rows.append(
            [
                each.view,
                str(each.sampling),
                found,
                *cells,
                proven,
                f"{each.seconds:.0f} s",
            ]
        )
    table(HEADINGS, rows, title=title)
    if any(each.measures for each in findings):
        print(f"{RARE}\n{CHANCE}")


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def _show_tokens(finding: Finding, encoder: TableEncoder) -> None:
    """The most frequent and some of the rarest tokens that the attack believes in."""
    import numpy as np

    from ridgeway.client.audit import token_texts

    found = np.flatnonzero(finding.counts)
    ranked = found[np.argsort(-finding.counts[found], kind="stable")].tolist()
    for words, chosen in (
        ("most frequent", ranked[:TOKENS_SHOWN]),
        ("rarest", ranked[TOKENS_SHOWN:][-TOKENS_SHOWN:]),
    ):
        texts = zip(token_texts(encoder, chosen), chosen, strict=True)
        print(
            f"{words}: "
            + "  ".join(
                f"{text!r} {finding.counts[number]:,}" for text, number in texts
            )
        )
