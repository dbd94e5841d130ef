"""The part `privacy`: what the known attacks bring back of a holder's text, over windows, sizes, widths and holders.

    Setting ──▶ Ground (tokens, encoder) ──▶ Trials ──▶ the audit's attacks ──▶ shares of the true tokens

Runs the attacks of `ridgeway audit`, in short on an encoder that is cut to fewer tokens and columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial

from common.encoder import Encoder
from common.settings import DEFAULT, Sampling
from common.threads import cores
from simulations.lab.findings import Part
from simulations.lab.plan import Plan
from simulations.lab.privacy.ground import Ground, lay_ground
from simulations.lab.privacy.showing import corpus_table, holders_table, plots, width_table
from simulations.lab.privacy.trials import Seen, Trial, attacked, seen_of
from simulations.lab.privacy.wording import words

KEY = "privacy"
TITLE = "What the sums give away"
CODE = 1
AT_ONCE = 4
"""No more trials than this at a time: each holds the whole table several times over."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is attacked.

    rows:     how many tokens the table is cut to; None for all.
    width:    how many of its columns are kept where the width is not what is looked at; None for all.
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


SHORT = Size(
    rows=6144, width=96, widths=(24, 48, 96, 192), tokens=(500, 2000, 8000), middle=2000, share=1000, domains=3
)
FULL = Size(
    rows=None,
    width=None,
    widths=(64, 144, 288, 576),
    tokens=(1000, 4000, 16_000, 64_000),
    middle=16_000,
    share=4000,
    domains=6,
)


def run(plan: Plan) -> Part:
    return attack(plan, FULL if plan.full else SHORT)


def attack(plan: Plan, size: Size) -> Part:
    """Every trial of this size on the first setting."""
    from common.encoder_sources import find_encoder

    encoder = find_encoder(plan.encoder)
    if not isinstance(encoder, Encoder):
        reason = (
            "a contextual encoder has no table, so the known attacks do not apply as they are; nothing was measured"
        )
        return Part(KEY, TITLE, (f"Nothing was attacked: {reason}.",), facts=plan.facts(), left_out=(reason,))
    return _part(plan, size, encoder)


def _part(plan: Plan, size: Size, encoder: Encoder) -> Part:
    setting, others = plan.settings[0], max(size.holders) * size.share
    most = max(*size.tokens, size.middle, others)
    ground = lay_ground(
        setting, encoder, domains=size.domains, tokens=most, others=others, rows=size.rows, seed=plan.seed
    )
    width = min(size.width or encoder.width, encoder.width)
    corpus, width_trials, holders = _trials(size, width, encoder.width)
    there, left_out = _possible([*corpus, *width_trials, *holders], ground)
    found = _found(plan, size, ground, there)

    def seen(trials: Sequence[Trial]) -> list[Seen]:
        return sorted((each for trial in trials for each in found.get(trial, [])), key=lambda each: each.view)

    by_corpus, by_width, by_holders = seen(corpus), seen(width_trials), seen(holders)
    about = f"{ground.domain} of {setting.name}"
    rows = ground.encoder.rows
    tables = (
        corpus_table(by_corpus, f"{about}, h={width}"),
        holders_table(by_holders, f"{about}, {size.share:,} tokens each, h={width}"),
        width_table(by_width, rows, f"{about}, {size.middle:,} tokens"),
    )
    facts = {
        **plan.facts(),
        "attacked": {"domain": ground.domain, "rows": rows, "rows_of_the_encoder": encoder.rows, "width": width}
        | {"width_of_the_encoder": encoder.width, "used_tokens": ground.used, "cohort": sorted(ground.rows)},
    }
    left_out += [f"{each.name}: only the first setting is attacked" for each in plan.settings[1:]]
    return Part(
        KEY,
        TITLE,
        words(ground, encoder, width, by_corpus, by_holders, by_width),
        tables,
        plots(by_corpus, by_holders, by_width),
        facts,
        tuple(left_out),
    )


def _trials(size: Size, width: int, widest: int) -> tuple[list[Trial], list[Trial], list[Trial]]:
    """Over sizes of the corpus, over widths, over holders."""
    widths = sorted({min(each, widest) for each in size.widths})
    corpus = [Trial(tokens, width, each) for each in _samplings(size.windows) for tokens in size.tokens]
    by_width = [Trial(size.middle, each, Sampling(window=window)) for window in size.few_windows for each in widths]
    holders = [
        Trial(size.share, width, each, count, cohort=True)
        for each in _samplings(size.few_windows)
        for count in size.holders
    ]
    return corpus, by_width, holders


def _samplings(windows: Sequence[int]) -> list[Sampling]:
    """Plain windows, and how documents are usually sampled."""
    return list(dict.fromkeys([*(Sampling(window=window) for window in windows), DEFAULT.sampling]))


def _possible(trials: Sequence[Trial], ground: Ground) -> tuple[list[Trial], list[str]]:
    """The trials that there is text for, each once, and a sentence for every amount of text that there is not."""
    tokens = len(ground.rows[ground.domain].ids)
    short = sorted({trial.needed for trial in trials if trial.needed > tokens})
    missed = [f"{needed:,} tokens of {ground.domain}: it has {tokens:,}" for needed in short]
    return list(dict.fromkeys(trial for trial in trials if trial.needed <= tokens)), missed


def _found(plan: Plan, size: Size, ground: Ground, trials: Sequence[Trial]) -> dict[Trial, list[Seen]]:
    """Several trials at once, each on one thread, so that rounding does not depend on how many there are."""
    from threadpoolctl import threadpool_limits

    def one(trial: Trial) -> list[Seen]:
        key = {**plan.facts(), "size": asdict(size), "trial": asdict(trial), "code": CODE}
        return [seen_of(each) for each in plan.shelf.kept("attack", key, partial(attacked, ground, trial))]

    found = {}
    workers = min(cores(), AT_ONCE)
    with threadpool_limits(1), ThreadPoolExecutor(workers) as pool, plan.ticking("attacks", len(trials)) as tick:
        for trial, seen in zip(trials, pool.map(one, trials), strict=True):
            found[trial] = seen
            tick()
    return found
