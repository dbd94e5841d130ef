"""The part `accuracy`: how often prompts reach the right expert, and what that costs, beside other routers; and that
federated equals centralised: the same text, dealt out to few holders or many, gives the same bytes.

Compared by their SHA-256 are the weights and the compiled table of the release. Rounds are production's, in this
process, in the clear and masked. Knows how trials become tables. Knows nothing of how any router works.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ridgeway.common.base.errors import RoundFailed
from ridgeway.common.base.files import sha256
from ridgeway.common.base.schema import Mode
from ridgeway.common.base.settings import DEFAULT, Weighting
from ridgeway.common.masking.agreement import SMALLEST_COHORT
from ridgeway.common.routing.release import ROUTER
from ridgeway.common.statistics.statistics_file import Prepared
from ridgeway.coordinator.solving.publish import publish
from ridgeway.simulations.experiments import experiment_rounds as rounds
from ridgeway.simulations.experiments.baselines.comparison import PASSES, PROMPTS, Compared, compare
from ridgeway.simulations.experiments.baselines.token_routers import prepared
from ridgeway.simulations.experiments.dataset import HELD_OUT, Dataset
from ridgeway.simulations.experiments.plan import ExperimentPlan, Tick, machine_in_words
from ridgeway.simulations.experiments.report.report_tables import Column, Plot, ReportPart, Series, Table
from ridgeway.simulations.simulated_federation import SimulatedFederation

KEY = "accuracy"
TITLE = "How often prompts reach the right expert"
CODE = 2

METHOD = (
    f"Each router learns from the training text; baselines keep {HELD_OUT:.0%} of it aside to choose their "
    "hyper-parameters on, as holders of ours keep theirs, and none learns again after the choice. Test texts serve for "
    "the figures alone, except in rows that say so."
)
SHORT_RUN = (
    "This is the short run: sentence encoders learn from few texts, and routers are compared on a sample of the test "
    "texts."
)
EQUAL = (
    "Federated equals centralised: where the last tables say `yes`, a round among few holders or many, in the clear or "
    "masked, gives byte for byte the weights and the table of one machine that has all text."
)


MANY_HOLDERS, HOLDERS_PER_DOMAIN = 50, 4
"""Text is dealt out to one holder a domain, to this many a domain, and to this many in all."""
SHORT_TEXTS, FULL_TEXTS = 80, 200
"""Training texts of a domain that are dealt out: more would show nothing else."""
EQUALITY_CODE = 4
SHOWN_DIGITS = 12
"""Hexadecimal digits of a SHA-256 that are shown; compared are always all of them."""
WEIGHTINGS: tuple[Weighting, ...] = ("tokens", "equal")
SUMS = {"tokens": "plain sums", "equal": "equal domains"}
ONE, FILES = "all text on one machine", "files of sums, added"
ROUNDS: Mapping[Mode, str] = {"clear": "a round in the clear", "masked": "a masked round"}


def run(plan: ExperimentPlan) -> ReportPart:
    found = [compare(plan, dataset) for dataset in plan.datasets]
    equal = [equality(plan, dataset) for dataset in (plan.datasets if plan.full else plan.datasets[:1])]
    return ReportPart(
        KEY,
        TITLE,
        words=(*map(headline, found), EQUAL, METHOD if plan.full else f"{METHOD} {SHORT_RUN}"),
        tables=(*(table for each in found for table in (accuracy_table(each), cost_table(each))), *equal),
        plots=tuple(map(plot, found)),
        facts={
            "settings": {each.dataset.name: each.dataset.source for each in found},
            "test texts": {each.dataset.name: sum(map(len, each.task.shown.values())) for each in found},
            "trained on": {each.dataset.name: sorted({row.machine for row in each.rows}) for each in found},
            "timed on": machine_in_words(plan.device),
        },
        left_out=tuple(dict.fromkeys(words for each in found for words in each.left_out)),
    )


def headline(found: Compared) -> str:
    own, best = found.ours, max(found.rows, key=lambda row: row.shown.accuracy)
    time = f", {own.milliseconds:.2f} ms a prompt" if own.milliseconds is not None else ""
    return (
        f"{found.dataset.name}: our router {own.shown.accuracy:.1f} %{time}; the highest mean has {best.name} with "
        f"{best.shown.accuracy:.1f} %."
    )


def accuracy_table(found: Compared) -> Table:
    """Percent of the texts of each domain, and the mean over domains."""
    every, domains = not found.task.full, found.task.domains
    columns = [Column("router"), *(Column(name, "%", 1, "more") for name in (*domains, "mean"))]
    columns += [Column("mean, all texts", "%", 1, "more")] if every else []
    rows = [
        (
            row.name,
            *(row.shown.by_domain[name] for name in domains),
            row.shown.accuracy,
            *([row.whole.accuracy if row.whole else None] if every else []),
        )
        for row in found.rows
    ]
    shown, whole = (sum(map(len, texts.values())) for texts in (found.task.shown, found.dataset.test))
    note = f"Routing accuracy over {shown:,} test texts, the same for all routers."
    if every:
        note += f" The last column is over all {whole:,} test texts, where a router is quick enough to read them."
    name = found.dataset.name
    return Table(f"accuracy-{name}", f"Accuracy on {name}", tuple(columns), tuple(rows), note)


def cost_table(found: Compared) -> Table:
    """What a router takes, and what must be in one place for it."""
    base, name = found.ours.milliseconds, found.dataset.name
    columns = (
        *(Column("router"), Column("made of"), Column("set to"), Column("training", "s", 1, "less")),
        *(Column("per prompt", "ms", 2, "less"), Column("times ours", "", 1), Column("sees all text")),
    )
    rows = tuple(
        (
            *(row.name, row.method.made_of, row.variant),
            row.seconds if row.milliseconds is not None else None,
            row.milliseconds,
            row.milliseconds / base if row.milliseconds and base else None,
            "yes" if row.method.gathers else "no",
        )
        for row in found.rows
    )
    notes = {row.method.key: row.note for row in found.rows if row.note}
    note = (
        "Training is all from reading text to a chosen router, on the machine named in the facts. Time for a prompt is "
        f"the median of {PASSES} passes over {PROMPTS[found.task.full]} test texts, one at a time, all routers in "
        f"turns in one process on the CPU. {' '.join(f'{key}: {words}.' for key, words in notes.items())}"
    )
    return Table(f"cost-{name}", f"Cost on {name}", columns, rows, note)


def plot(found: Compared) -> Plot:
    timed = [row for row in found.rows if row.milliseconds is not None]
    return Plot(
        f"accuracy-time-{found.dataset.name}",
        f"Accuracy and time on {found.dataset.name}",
        "time for one prompt (ms)",
        "mean accuracy (%)",
        tuple(Series(row.name, (row.milliseconds or 0.0,), (row.shown.accuracy,)) for row in timed),
        x_scale="log",
        level=("one expert for everything", 100 / len(found.task.domains)),
    )


# Federated and centralised


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What was made one way. sums: made under the same terms; the first of them is the reference.

    router: SHA-256 of a release's router file: weights and compiled table.
    """

    sums: str
    holders: int
    way: str
    router: str


def equality(plan: ExperimentPlan, dataset: Dataset) -> Table:
    """Every way to make a router of a dataset, and whether they come to the same."""
    key = {"setting": dataset.digest, "encoder": plan.encoder, "full": plan.full, "seed": plan.seed}
    key |= {"decides": repr(DEFAULT), "code": EQUALITY_CODE}
    names = dataset.domains if plan.full else dataset.domains[:SMALLEST_COHORT]
    train, test = ({name: texts[name] for name in names} for texts in (dataset.train, dataset.test))
    most = FULL_TEXTS if plan.full else SHORT_TEXTS
    dealt = replace(dataset, train=train, test=test).sampled(plan.seed, train=most)

    def make() -> list[dict[str, Any]]:
        steps = sum(len(deals(dealt, weighting)) for weighting in WEIGHTINGS)
        with plan.ticking(f"federated and centralised, {dataset.name}", steps) as tick:
            return [asdict(each) for each in _fingerprints(dealt, plan, tick)]

    return equality_table(dataset, dealt, [Fingerprint(**each) for each in plan.cache.kept("pooled", key, make)])


def deals(dataset: Dataset, weighting: Weighting) -> list[int]:
    """To how many holders the text is dealt, so that each has some.

    Under equal weighting a holder weights its own sums to its share, so only one holder a domain gives what the pooled
    text gives.
    """
    count, texts = len(dataset.domains), min(map(len, dataset.train.values()))
    counts = {count} if weighting == "equal" else {count, HOLDERS_PER_DOMAIN * count, max(MANY_HOLDERS, count)}
    return sorted(holders for holders in counts if -(-holders // count) <= texts)


def _fingerprints(dataset: Dataset, plan: ExperimentPlan, tick: Tick) -> Iterator[Fingerprint]:
    for weighting in WEIGHTINGS:
        for holders in deals(dataset, weighting):
            folder = plan.work / f"equality-{dataset.name}-{weighting}-{holders}"
            simulated = rounds.settled(plan, dataset, folder, "clear", holders, weighting)
            made = [(mode, _round(simulated, mode)) for mode in ROUNDS if mode == "clear" or holders >= SMALLEST_COHORT]
            if holders == len(dataset.domains):
                sampling = simulated.federation.terms.sampling.sampling
                text = prepared(dataset.train, simulated.federation.encoder, folder / "text", sampling, DEFAULT.holdout)
                yield Fingerprint(SUMS[weighting], 1, ONE, _without_round(simulated, text))
                files = [rounds.own_sums(simulated, name) for name in simulated.nodes]
                yield Fingerprint(SUMS[weighting], holders, FILES, _without_round(simulated, files))
            for mode, router in made:
                yield Fingerprint(SUMS[weighting], holders, ROUNDS[mode], router)
            tick()


def _round(simulated: SimulatedFederation, mode: Mode) -> str:
    done = rounds.watched_round(simulated, mode=mode)
    if done.published is None:
        raise RoundFailed(done.refused)
    return sha256((simulated.federation.release_folder(done.published.number) / ROUTER).read_bytes())


def _without_round(simulated: SimulatedFederation, parts: Sequence[Prepared]) -> str:
    """What these sums give, added up and solved with the λ and the columns that the holders' release has."""
    federation, folder = simulated.federation, simulated.folder / "release"
    choices = rounds.choices_of(federation, rounds.newest(federation))
    publish(parts, federation.encoder, choices, federation.identity, folder)
    return sha256((folder / ROUTER).read_bytes())


def equality_table(dataset: Dataset, dealt: Dataset, found: Sequence[Fingerprint]) -> Table:
    """All are compared with the first row of the same sums; a row that differs says NO."""
    first = {each.sums: each for each in reversed(found)}
    verdicts = [
        "reference" if each is first[each.sums] else "yes" if each.router == first[each.sums].router else "NO"
        for each in found
    ]
    rows = tuple(
        (each.sums, each.holders, each.way, each.router[:SHOWN_DIGITS], verdict)
        for each, verdict in zip(found, verdicts, strict=True)
    )
    names = ("sums", "holders", "made by", "SHA-256 of weights and table", "same bytes")
    note = (
        f"{sum(map(len, dealt.train.values())):,} training texts of {len(dealt.domains)} domains, dealt out in turn. "
        f"{verdicts.count('yes')} rows have the same bytes as the first row of their sums, {verdicts.count('NO')} have "
        "others."
    )
    title = f"Federated and centralised on {dataset.name}"
    return Table(f"pooled-{dataset.name}", title, tuple(map(Column, names)), rows, note)
