"""ridgeway audit: what a coordinator could learn of a holder's tokens, measured where the text is
known.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeway.client.cli.audit_commands import (
    RARE,
    AuditedEpsilon,
    AuditedMode,
    EncoderOption,
    Plot,
    PriorFile,
    attack_bar,
    audit_under_noise,
    audited_terms,
    draw,
    job_of,
    show_findings,
    show_private,
    watching,
)
from ridgeway.common.base.errors import InputError
from ridgeway.common.base.settings import DEFAULT
from ridgeway.common.cli.options import Fields, Json
from ridgeway.common.cli.terminal import count, emit_json, step, ticking

if TYPE_CHECKING:
    from ridgeway.client.sums.prepare import PrepareJob
    from ridgeway.common.base.settings import Sampling
    from ridgeway.common.encoding.table_encoder import TableEncoder
    from ridgeway.common.statistics.statistics_file import Prepared
    from ridgeway.simulations.cohort_audit import AuditedHolder


def audit(
    statistics: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[STATS]...", help="Statistics files, one a domain."),
    ] = None,
    corpus: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DOMAIN=PATH",
            help="The text that a file was made of; may be given again.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help=(
                "A folder with DOMAIN.train.jsonl, instead of files. (default: text on"
                " this machine)"
            )
        ),
    ] = None,
    windows: Annotated[
        str | None,
        typer.Option(
            help=(
                "Tokens per sample, without files: one or more. (default: 1, and the"
                " default)"
            )
        ),
    ] = None,
    holder: Annotated[
        str | None,
        typer.Option(
            metavar="DOMAIN", help="Whom to attack. (default: who has the least text)"
        ),
    ] = None,
    encoder: EncoderOption = DEFAULT.encoder,
    text_field: Fields = "text",
    epsilon: AuditedEpsilon = None,
    privacy: AuditedMode = "columns",
    prior: PriorFile = None,
    canaries: Annotated[
        int, typer.Option(min=0, help="With --epsilon: documents to plant in each run.")
    ] = 200,
    runs: Annotated[
        int, typer.Option(min=1, help="With --epsilon: how often to plant them.")
    ] = 100,
    plot: Plot = None,
    json: Json = False,
) -> None:
    """Run the known attacks on every view that a coordinator may get of a holder, and say what
    comes back.

    The views: the holder's statistics in the clear, its column of B alone, a total over all
    holders, and two totals that differ by the holder. Each attack takes up to a few minutes with
    the default encoder.

    With --epsilon, the holder's documents are summed under noise, as in a round with differential
    privacy, and held against a control; and planted documents show the ε that can be proven at
    least.
    """
    from ridgeway.common.encoding.encoder_sources import find_encoder
    from ridgeway.common.encoding.table_encoder import of_tokens_alone
    from ridgeway.common.encoding.transformer_encoder import needs_table
    from ridgeway.common.statistics.statistics_file import load_prepared
    from ridgeway.simulations.cohort_audit import parse_windows

    _check_options(statistics, corpus, data, windows, plot)
    if epsilon is not None:
        if statistics or plot is not None:
            raise InputError(
                "an audit under noise reads text and draws nothing; give --data,"
                " without files and --plot"
            )
        plain = of_tokens_alone(needs_table(find_encoder(encoder), "the audit"))
        _audit_private(
            data, holder, plain, epsilon, privacy, prior, canaries, runs, json
        )
        return
    parts = [load_prepared(path) for path in statistics or []]
    jobs = _jobs(parts, corpus or [], text_field)
    chosen = [parts[0].sampling] if parts else parse_windows(windows)
    found = needs_table(find_encoder(encoder), "the audit")
    _audit_sums(
        list(_members(parts, jobs, data, chosen, found)),
        holder,
        chosen,
        found,
        plot,
        json,
    )


def _audit_sums(
    members: Sequence[AuditedHolder],
    holder: str | None,
    chosen: Sequence[Sampling],
    found: TableEncoder,
    plot: Path | None,
    json: bool,
) -> None:
    """Attack one holder of a cohort by every view of its exact sums."""
    from ridgeway.simulations.cohort_audit import audit as attack
    from ridgeway.simulations.cohort_audit import choose_holder

    place = choose_holder(members, holder)
    if plot is not None and members[place].counts is None:
        raise InputError(
            "a plot shows shares of the true tokens: give --corpus"
            f" {members[place].domain}=PATH"
        )
    findings = []
    with attack_bar() as ticks:
        for finding in attack(members, place, chosen, found, ticks):
            step(
                "attacked",
                finding.view,
                str(finding.sampling),
                f"{finding.seconds:.0f} s",
            )
            findings.append(finding)
    if plot is not None:
        draw(plot, f"What a coordinator learns of {members[place].domain}", findings)
    if json:
        facts = {
            "holder": members[place].domain,
            "cohort": [member.domain for member in members],
            "rare": RARE,
        }
        emit_json({**facts, "findings": [each.to_json() for each in findings]})
        return
    show_findings(
        findings, f"holder {members[place].domain} in a cohort of {len(members)}"
    )


def _audit_private(
    data: Path | None,
    holder: str | None,
    encoder: TableEncoder,
    epsilon: float,
    mode: str,
    prior: Path | None,
    count_planted: int,
    runs: int,
    json: bool,
) -> None:
    """Attack the documents of one holder under noise, then those that are planted."""
    import numpy as np

    from ridgeway.client.sums.prepare import PrepareJob
    from ridgeway.common.base.jsonl import DEFAULT_FIELDS
    from ridgeway.common.base.settings import DEFAULT
    from ridgeway.common.base.threads import cores
    from ridgeway.simulations import corpora
    from ridgeway.simulations.canaries import canaries, plant

    terms, public = audited_terms(encoder, epsilon, mode, prior)
    with tempfile.TemporaryDirectory(prefix="ridgeway-") as name:
        if data is None:
            corpora.write(corpora.builtin(), Path(name))
        texts = {
            path.name.removesuffix(corpora.TRAIN): path
            for path in (data or Path(name)).glob(f"*{corpora.TRAIN}")
        }
        chosen = holder or min(
            texts, key=lambda each: texts[each].stat().st_size, default=""
        )
        if chosen not in texts:
            raise InputError(
                f"there is no holder {chosen!r}; there are"
                f" {', '.join(sorted(texts)) or 'none'}"
            )
        job = PrepareJob(
            (texts[chosen],),
            chosen,
            DEFAULT.sampling,
            DEFAULT.holdout,
            DEFAULT_FIELDS,
            cores(),
        )
        told = audit_under_noise(job, encoder, terms, public)
    rng = np.random.default_rng()
    with ticking("planted", runs) as tick:
        planted = (
            plant(
                terms,
                canaries(encoder, public, count_planted, rng),
                runs,
                rng,
                tick=tick,
            )
            if count_planted
            else None
        )
    if json:
        emit_json(
            {
                "holder": chosen,
                **told.to_json(),
                "canaries": planted and planted.to_json(),
            }
        )
        return
    show_private(told)
    if planted:
        print(
            f"of documents planted or not, {planted.guesses:,} guesses: right in"
            f" {100 * planted.auc:.1f} % of pairs, which proves ε ≥"
            f" {planted.at_least:.2f} (95 %) where {epsilon:g} is promised"
        )


def _check_options(
    statistics: Sequence[Path] | None,
    corpus: Sequence[str] | None,
    data: Path | None,
    windows: str | None,
    plot: Path | None,
) -> None:
    if statistics and data is not None:
        raise InputError(
            "statistics files and --data cannot both be audited; give one of them"
        )
    if statistics and windows is not None:
        raise InputError(
            "statistics files have windows of their own; leave --windows out"
        )
    if corpus and not statistics:
        raise InputError(
            "--corpus says what a statistics file was made of, and none is given; name"
            " the file"
        )
    if data is not None and not data.is_dir():
        raise InputError(f"there is no folder {data}")
    if plot is not None:
        from ridgeway.common.cli.plots import check_plot

        check_plot(plot)


def _jobs(
    parts: Sequence[Prepared], corpus: Sequence[str], text_field: str
) -> dict[str, PrepareJob]:
    """How to read the corpus of each domain that has one."""
    roots: dict[str, list[Path]] = {}
    for words in corpus:
        domain, mark, path = words.partition("=")
        if not mark or not path:
            raise InputError(
                f"{words!r} does not say whose text it is; write --corpus DOMAIN=PATH"
            )
        roots.setdefault(domain, []).append(Path(path))
    by_domain = {part.domain: part for part in parts}
    for domain in roots:
        if domain not in by_domain:
            raise InputError(
                f"no statistics of {domain!r} are given; there are those of"
                f" {', '.join(by_domain)}"
            )
    return {
        domain: job_of(by_domain[domain], paths, text_field)
        for domain, paths in roots.items()
    }


def _members(
    parts: Sequence[Prepared],
    jobs: dict[str, PrepareJob],
    data: Path | None,
    samplings: Sequence[Sampling],
    encoder: TableEncoder,
) -> Iterator[AuditedHolder]:
    """The cohort, a line about each of its holders."""
    from ridgeway.simulations import corpora
    from ridgeway.simulations.cohort_audit import members_of_files, members_of_folder

    with (
        watching("corpora") as watch,
        tempfile.TemporaryDirectory(prefix="ridgeway-") as name,
    ):
        if parts:
            members = members_of_files(parts, jobs, encoder, watch)
        else:
            if data is None:
                corpora.write(corpora.builtin(), Path(name))
            members = members_of_folder(data or Path(name), samplings, encoder, watch)
        for member in members:
            samples = count(
                max(each.mass for each in member.statistics.values()), "sample"
            )
            known = member.counts
            step(
                "holder",
                member.domain,
                samples,
                "" if known is None else f"{(known > 0).sum():,} distinct tokens",
            )
            yield member
