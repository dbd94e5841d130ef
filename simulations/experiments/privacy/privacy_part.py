"""The part `privacy`: what the known attacks bring back of a holder's text, over windows, sizes,
widths and holders; and what rounds with differential privacy cost and protect.

    Dataset ──▶ Ground (tokens, encoder) ──▶ Trials ──▶ the audit's attacks ──▶ shares of the true
    tokens

Runs the attacks of `ridgeway audit`, in short on an encoder that is cut to fewer tokens and
columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial

from pydantic import TypeAdapter

from ridgeway.client.audit import CLEAR, COLUMN
from ridgeway.common.base.settings import DEFAULT, Sampling
from ridgeway.common.base.threads import cores, one_blas_thread
from ridgeway.common.encoding.encoder_sources import find_encoder
from ridgeway.common.encoding.table_encoder import TableEncoder, bare_name
from ridgeway.common.statistics.sums import triangle_size
from ridgeway.simulations.experiments.plan import ExperimentPlan
from ridgeway.simulations.experiments.privacy import private_tables
from ridgeway.simulations.experiments.privacy.attack_trials import (
    CALLED,
    USUAL,
    AttackResult,
    Ground,
    Trial,
    attacked,
    lay_ground,
)
from ridgeway.simulations.experiments.privacy.private_tables import PrivateSizes
from ridgeway.simulations.experiments.report.report_tables import (
    Cell,
    Column,
    Plot,
    ReportPart,
    Series,
    Table,
)

KEY = "privacy"
TITLE = "What the sums give away"
CODE = 1
RESULTS = TypeAdapter(list[AttackResult])
TRIALS_AT_ONCE = 4
"""No more trials than this at a time: each holds the whole table several times over."""
NO_TABLE = (
    "a contextual encoder has no table, so the known attacks do not apply as they are;"
    " nothing was measured"
)
SHARES = (
    Column("distinct tokens", digits=0),
    Column("found", digits=0),
    Column("recovered", "%"),
    Column("of all tokens", "%"),
    Column("rare", "%"),
    Column("counts exact", "%"),
    Column("precision", "%"),
    Column("by chance", "%"),
)
LEGEND = (
    "recovered: the share of the holder's distinct tokens that the attack names; of"
    " all tokens: the same by how often they occur; rare: of the tokens that occur"
    " once or twice; precision: the share of the named tokens that are the holder's;"
    f" by chance: what naming as many tokens at random would hit; window {USUAL}:"
    f" {DEFAULT.sampling}"
)
TOKENS = Column("tokens", digits=0)
HOLDERS = Column("holders of the domain", digits=0)
WIDTHS = (Column("h", digits=0), Column("sums for each token of the table", digits=2))
NAMES = {view: view for view in (CLEAR, COLUMN, CALLED)}
SHARED = {
    CLEAR: "sums of the domain",
    COLUMN: "the domain's column of B",
    CALLED: "total of the cohort: called the domain's",
}
"""What the views are once the domain has several holders."""
WORDS = (
    (
        "The attacks are run on the sums of one holder, whose text is known here, so"
        " that the shares are true ones. The attacker is given what a coordinator sees:"
        " the public table, the window and the sums. Clear statistics of single tokens"
        " give counts back whole; longer windows blur them and do not hide them, which"
        " is why rounds are masked unless asked otherwise. A masked round shows a"
        " domain's column of B where it has a single holder, and otherwise the total of"
        " the cohort alone."
    ),
    (
        "These are the attacks that are known to this project, so the shares are lower"
        " bounds: a better attack may find more. A small share of the tokens is still a"
        " share of a private text; what protects a holder is the masked round, in which"
        " its own sums are never seen, together with other holders of its domain."
    ),
)


@dataclass(frozen=True, slots=True)
class PrivacySizes:
    """How much is attacked.

    rows:     how many tokens the table is cut to; None for all.
    width:    how many of its columns are kept where the width is not what is looked at; None for
              all.
    tokens:   of the corpus, where its size is looked at; `middle` elsewhere.
    share:    tokens of each holder, where holders are counted.
    domains:  of the cohort there.
    windows:  plain ones; what is usual is attacked too.
    """

    rows: int | None
    width: int | None
    widths: tuple[int, ...]
    tokens: tuple[int, ...]
    middle: int
    share: int
    domains: int
    holders: tuple[int, ...] = (1, 2, 4, 8)
    windows: tuple[int, ...] = (1, 8, 16, 64)
    few_windows: tuple[int, ...] = (1, 64)


SHORT = PrivacySizes(
    rows=6144,
    width=96,
    widths=(24, 48, 96, 192),
    tokens=(500, 2000, 8000),
    middle=2000,
    share=1000,
    domains=3,
)
FULL = PrivacySizes(
    rows=None,
    width=None,
    widths=(64, 144, 288, 576),
    tokens=(1000, 4000, 16_000, 64_000),
    middle=16_000,
    share=4000,
    domains=6,
)


def run(plan: ExperimentPlan) -> ReportPart:
    part = attack(plan, FULL if plan.full else SHORT)
    return with_private_rounds(
        plan, part, private_tables.FULL if plan.full else private_tables.SHORT
    )


def with_private_rounds(
    plan: ExperimentPlan, part: ReportPart, size: PrivateSizes
) -> ReportPart:
    """The part with what rounds under differential privacy cost and protect; they know tables of
    tokens alone.
    """
    encoder = find_encoder(bare_name(plan.encoder))
    if not isinstance(encoder, TableEncoder):
        return part
    tables, plots, left_out = private_tables.private_tables(plan, size, encoder)
    return replace(
        part,
        words=(*part.words, *private_tables.EXPLAINED),
        tables=(*part.tables, *tables),
        plots=(*part.plots, *plots),
        left_out=(*part.left_out, *left_out),
    )


def attack(plan: ExperimentPlan, size: PrivacySizes) -> ReportPart:
    """Every trial of this size on the first dataset."""
    encoder = find_encoder(plan.encoder)
    if not isinstance(encoder, TableEncoder):
        words = f"Nothing was attacked: {NO_TABLE}."
        return ReportPart(
            KEY, TITLE, (words,), facts=plan.facts(), left_out=(NO_TABLE,)
        )
    return _part(plan, size, encoder)


def _part(
    plan: ExperimentPlan, size: PrivacySizes, encoder: TableEncoder
) -> ReportPart:
    dataset = plan.datasets[0]
    others = max(size.holders) * size.share
    most = max(*size.tokens, size.middle, others)
    ground = lay_ground(
        dataset,
        encoder,
        domains=size.domains,
        tokens=most,
        others=others,
        rows=size.rows,
        seed=plan.seed,
    )
    width = min(size.width or encoder.width, encoder.width)
    corpus, width_trials, holders = _trials(size, width, encoder.width)
    there, left_out = _possible([*corpus, *width_trials, *holders], ground)
    found = _found(plan, size, ground, there)

    def seen(trials: Sequence[Trial]) -> list[AttackResult]:
        return sorted(
            (each for trial in trials for each in found.get(trial, [])),
            key=lambda each: each.view,
        )

    by_corpus = seen(corpus)
    by_width = seen(width_trials)
    by_holders = seen(holders)
    about = f"{ground.domain} of {dataset.name}"
    rows = ground.encoder.rows
    back = "What comes back of a corpus, by"
    own = f"{about}, {size.share:,} tokens each, h={width}"
    title = (
        "What comes back of one holder's corpus, by the number of holders its domain"
        f" has; {own}"
    )
    by_widths = f"{back} the width h; {about}, {size.middle:,} tokens"
    tables = (
        _table(
            "corpus",
            f"{back} its size; {about}, h={width}",
            by_corpus,
            (TOKENS,),
            lambda each: (each.tokens,),
        ),
        _table(
            "holders",
            title,
            by_holders,
            (HOLDERS,),
            lambda each: (each.holders,),
            SHARED,
        ),
        _table(
            "width",
            by_widths,
            by_width,
            WIDTHS,
            lambda each: (each.width, triangle_size(each.width + 1) / rows),
        ),
    )
    facts = {
        **plan.facts(),
        "attacked": (
            {
                "domain": ground.domain,
                "rows": rows,
                "rows_of_the_encoder": encoder.rows,
                "width": width,
            }
            | {
                "width_of_the_encoder": encoder.width,
                "used_tokens": ground.used,
                "cohort": sorted(ground.rows),
            }
        ),
    }
    left_out += [
        f"{each.name}: only the first dataset is attacked" for each in plan.datasets[1:]
    ]
    words = (_attacked(ground, encoder, width), *WORDS)
    shown = plots(by_corpus, by_holders, by_width)
    return ReportPart(KEY, TITLE, words, tables, shown, facts, tuple(left_out))


def _trials(
    size: PrivacySizes, width: int, widest: int
) -> tuple[list[Trial], list[Trial], list[Trial]]:
    """Over sizes of the corpus, over widths, over holders."""
    widths = sorted({min(each, widest) for each in size.widths})
    corpus = [
        Trial(tokens, width, each)
        for each in _samplings(size.windows)
        for tokens in size.tokens
    ]
    by_width = [
        Trial(size.middle, each, Sampling(window=window))
        for window in size.few_windows
        for each in widths
    ]
    holders = [
        Trial(size.share, width, each, count, cohort=True)
        for each in _samplings(size.few_windows)
        for count in size.holders
    ]
    return corpus, by_width, holders


def _samplings(windows: Sequence[int]) -> list[Sampling]:
    """Plain windows, and how documents are usually sampled."""
    return list(
        dict.fromkeys(
            [*(Sampling(window=window) for window in windows), DEFAULT.sampling]
        )
    )


def _possible(trials: Sequence[Trial], ground: Ground) -> tuple[list[Trial], list[str]]:
    """The trials that there is text for, each once, and a sentence for every amount of text that
    there is not.
    """
    tokens = len(ground.rows[ground.domain].ids)
    short = sorted({trial.needed for trial in trials if trial.needed > tokens})
    missed = [
        f"{needed:,} tokens of {ground.domain}: it has {tokens:,}" for needed in short
    ]
    return (
        list(dict.fromkeys(trial for trial in trials if trial.needed <= tokens)),
        missed,
    )


def _found(
    plan: ExperimentPlan, size: PrivacySizes, ground: Ground, trials: Sequence[Trial]
) -> dict[Trial, list[AttackResult]]:
    """Several trials at once, each on one thread, so that rounding does not depend on how many
    there are.
    """

    def one(trial: Trial) -> list[AttackResult]:
        key = {
            **plan.facts(),
            "size": asdict(size),
            "trial": asdict(trial),
            "code": CODE,
        }
        return RESULTS.validate_python(
            plan.cache.kept("attack", key, partial(attacked, ground, trial))
        )

    found = {}
    workers = min(cores(), TRIALS_AT_ONCE)
    with (
        one_blas_thread(),
        ThreadPoolExecutor(workers) as pool,
        plan.ticking("attacks", len(trials)) as tick,
    ):
        for trial, seen in zip(trials, pool.map(one, trials), strict=True):
            found[trial] = seen
            tick()
    return found


# What is shown


def _attacked(ground: Ground, encoder: TableEncoder, width: int) -> str:
    cut = (
        f"The encoder is cut to {ground.encoder.rows:,} of its {encoder.rows:,} tokens"
        f" (the {ground.used:,} that occur, and others drawn at random) and the first"
        f" {width} of its {encoder.width} columns. Fewer tokens make an attack easier,"
        " fewer columns harder: the figures show how things change, and a full run"
        " attacks the whole encoder."
    )
    whole = (
        f"The encoder is attacked whole: {encoder.rows:,} tokens, {encoder.width}"
        " columns."
    )
    is_cut = ground.encoder.rows < encoder.rows or width < encoder.width
    return f"Attacked is one holder of {ground.domain}. {cut if is_cut else whole}"


def _table(
    key: str,
    title: str,
    seen: Sequence[AttackResult],
    columns: Sequence[Column],
    cells: Callable[[Trial], tuple[Cell, ...]],
    names: Mapping[str, str] = NAMES,
) -> Table:
    heads = (Column("view"), Column("window"), *columns, *SHARES)
    rows = tuple(
        (names[each.view], each.trial.words, *cells(each.trial), *_shares(each))
        for each in seen
    )
    return Table(f"privacy-{key}", title, heads, rows, LEGEND)


def plots(
    corpus: Sequence[AttackResult],
    holders: Sequence[AttackResult],
    width: Sequence[AttackResult],
) -> tuple[Plot, ...]:
    recovered = "distinct tokens recovered, %"
    named = "Of what is named, how much is the one holder's"
    by_tokens = _lines(corpus, COLUMN, lambda each: (each.trial.tokens, each.recovered))
    by_holders = _lines(
        holders, CALLED, lambda each: (each.trial.holders, each.precision), SHARED
    )
    by_width = _lines(width, COLUMN, lambda each: (each.trial.width, each.recovered))
    size = "What comes back, by the size of the corpus"
    over_width = "What comes back, by the width"
    return (
        Plot(
            "privacy-corpus-plot",
            size,
            "tokens of the corpus",
            recovered,
            by_tokens,
            x_scale="log",
        ),
        Plot(
            "privacy-holders-plot",
            named,
            "holders of the domain",
            "precision, %",
            by_holders,
            x_scale="log",
        ),
        Plot("privacy-width-plot", over_width, "h", recovered, by_width, x_scale="log"),
    )


def _lines(
    seen: Sequence[AttackResult],
    view: str,
    point: Callable[[AttackResult], tuple[float, float | None]],
    names: Mapping[str, str] = NAMES,
) -> tuple[Series, ...]:
    """A line for each window of clear sums and of another view; of columns, nearly alike, the first
    window alone.
    """
    found: dict[str, list[AttackResult]] = {}
    columns = [each.trial.sampling for each in seen if each.view == COLUMN]
    for each in seen:
        if each.view in (CLEAR, view) and not (
            each.view == COLUMN and each.trial.sampling != columns[0]
        ):
            window = (
                each.trial.words
                if each.trial.words == USUAL
                else f"w={each.trial.words}"
            )
            found.setdefault(f"{names[each.view]}, {window}", []).append(each)
    return tuple(
        Series(name, *zip(*map(point, own), strict=True)) for name, own in found.items()
    )


def _shares(each: AttackResult) -> tuple[Cell, ...]:
    shares = (
        each.recovered,
        each.mass,
        each.rare,
        each.exact,
        each.precision,
        each.chance,
    )
    return (each.distinct, each.found, *shares)
