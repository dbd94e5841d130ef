"""ridgeway audit: what a coordinator could learn of a holder's tokens, measured where the text is
known.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ridgeway.client.cli.audit_commands import (
    RARE,
    AuditedEpsilon,
    AuditedMode,
    EncoderOption,
    PriorFile,
    audit_under_noise,
    audited_terms,
    finding_lines,
    job_of,
    private_lines,
    told_findings,
    watching,
)
from ridgeway.common.base.errors import InputError
from ridgeway.common.base.settings import DEFAULT, Sampling
from ridgeway.common.cli.options import Json, option
from ridgeway.common.cli.terminal import count, show, step, ticking

if TYPE_CHECKING:
    from ridgeway.client.audit import Finding
    from ridgeway.common.encoding.table_encoder import TableEncoder

CANARY_RUNS = 100


def audit(
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
    encoder: EncoderOption = DEFAULT.encoder,
    epsilon: AuditedEpsilon = None,
    privacy: AuditedMode = "columns",
    prior: PriorFile = None,
    canaries: Annotated[
        int, option("With --epsilon: documents to plant in each run.", min=0)
    ] = 200,
    json: Json = False,
) -> None:
    """Attack the sums of a cohort, where the text is known.

    Every view that a coordinator may get of a holder is attacked.

    The views: the holder's statistics in the clear, its column of B alone, a total over all
    holders, and two totals that differ by the holder. Each attack takes up to a few minutes with
    the default encoder.

    With --epsilon, the holder's documents are summed under noise, as in a private round, and held
    against a control; and planted documents (canaries) show the ε that can be proven at least.
    """
    from ridgeway.common.encoding.encoder_sources import find_encoder
    from ridgeway.common.encoding.table_encoder import without_words

    samplings = [Sampling(window=each) for each in sorted({*(windows or ())})]
    found = find_encoder(encoder)
    with _texts(data) as texts:
        chosen = holder or min(texts, key=lambda name: texts[name].stat().st_size)
        if chosen not in texts:
            raise InputError(
                f"there is no holder {chosen!r}; there are {', '.join(texts)}"
            )
        if epsilon is None:
            usual = [Sampling(window=1), DEFAULT.sampling]
            _audit_sums(texts, chosen, samplings or usual, found, json)
            return
        plain = without_words(found)
        _audit_private(
            texts[chosen], chosen, plain, (epsilon, privacy, prior), canaries, json
        )


@contextmanager
def _texts(data: Path | None) -> Iterator[dict[str, Path]]:
    """The text of each holder, by its domain."""
    from ridgeway.simulations.corpora import TRAIN, builtin, write

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


def _audit_sums(
    texts: Mapping[str, Path],
    holder: str,
    samplings: Sequence[Sampling],
    encoder: TableEncoder,
    json: bool,
) -> None:
    """Attack one holder of a cohort by every view of its exact sums."""
    from ridgeway.client.audit import AuditedHolder, attack_cohort, read_summed

    read = {}
    with watching("corpora") as watch:
        for domain, path in texts.items():
            job = job_of(domain, [path], Sampling(), "text")
            counts, sums = read_summed(job, encoder, samplings, watch)
            read[domain] = counts, sums
            tokens = count(int(counts.sum()), "token")
            step("holder", domain, tokens, f"{(counts > 0).sum():,} distinct tokens")
    findings: list[Finding] = []
    for sampling in samplings:
        members = [
            AuditedHolder(domain, sums[sampling], counts)
            for domain, (counts, sums) in read.items()
        ]
        place = list(read).index(holder)
        attacks = attack_cohort(members, place, sampling, encoder)
        findings += told_findings(attacks)
    facts = {
        "holder": holder,
        "cohort": list(texts),
        "rare": RARE,
        "findings": [each.to_json() for each in findings],
    }
    title = f"holder {holder} in a cohort of {len(texts)}"
    show(facts, *finding_lines(findings, title), json=json)


def _audit_private(
    path: Path,
    holder: str,
    encoder: TableEncoder,
    asked: tuple[float, str, Path | None],
    planted: int,
    json: bool,
) -> None:
    """Attack the documents of one holder under noise, then those that are planted."""
    import numpy as np

    from ridgeway.client.audit import canaries, plant

    terms, public = audited_terms(encoder, *asked)
    job = job_of(holder, [path], DEFAULT.sampling, "text")
    told = audit_under_noise(job, encoder, terms, public)
    if planted:
        rng = np.random.default_rng()
        rows = canaries(encoder, public, planted, rng)
        with ticking("planted", CANARY_RUNS) as tick:
            found = plant(terms, rows, CANARY_RUNS, rng, tick=tick)
        told = replace(told, canaries=found)
    show({"holder": holder, **asdict(told)}, *private_lines(told), json=json)
