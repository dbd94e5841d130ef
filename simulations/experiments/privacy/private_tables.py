"""What rounds with differential privacy cost and protect: tables, a plot and words of private
trials.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import mean
from typing import Any

from ridgeway.common.base.errors import CorpusError
from ridgeway.common.encoding.table_encoder import TableEncoder, bare_name
from ridgeway.common.masking.agreement import SMALLEST_COHORT
from ridgeway.common.privacy.built_in_text import built_in_text, this_machine
from ridgeway.common.privacy.document_bound import PrivacyMode
from ridgeway.common.privacy.public_prior import make_prior
from ridgeway.simulations import corpora
from ridgeway.simulations.experiments.baselines.comparison import OURS
from ridgeway.simulations.experiments.baselines.routing_method import evaluation, tried
from ridgeway.simulations.experiments.dataset import Dataset
from ridgeway.simulations.experiments.experiment_rounds import sampled
from ridgeway.simulations.experiments.plan import ExperimentPlan
from ridgeway.simulations.experiments.privacy.private_trials import (
    PrivateGround,
    PrivateTrial,
    accuracy,
    attacked_documents,
)
from ridgeway.simulations.experiments.report.report_tables import (
    Cell,
    Column,
    Plot,
    Series,
    Table,
)

CODE = 3
FAR = "built-in text"
NEAR = "and other datasets"
MODES: tuple[PrivacyMode, ...] = ("columns", "full")
ROUND_MODE = MODES[1]
ROUND_EPSILON = 1.0
EXPLAINED = (
    (
        "Under differential privacy each document adds one vector of bounded length,"
        " seen through a public prior, and holders add noise. What a round adds up is"
        " the plain sum of what its members have noised, so rounds are added up here,"
        " with noise drawn from seeds; one round is run as holders run it."
    ),
    (
        "An attack that compares documents of one half with sums of the other half is"
        " held against the best one that this noise leaves to someone who knows all"
        " else, against documents planted for the purpose, and against what ε allows."
    ),
)


@dataclass(frozen=True, slots=True)
class PrivateSizes:
    """How much is tried. documents: of a domain; None: all. seeds: draws of noise. runs: in which
    some are planted.
    """

    epsilons: tuple[float, ...]
    documents: tuple[int | None, ...]
    seeds: int
    runs: int
    train: int = 300
    test: int = 60


SHORT = PrivateSizes(epsilons=(1.0, 8.0), documents=(None,), seeds=5, runs=5)
FULL = PrivateSizes(
    epsilons=(0.3, 1.0, 3.0, 8.0), documents=(500, None), seeds=5, runs=40
)


@dataclass(frozen=True, slots=True)
class PrivateFigures:
    """What trials of one dataset came to: accuracies by trial, one a seed; of a round that was run;
    without privacy.
    """

    dataset: Dataset
    found: Mapping[PrivateTrial, Sequence[float]]
    run: float | None
    plain: float


def private_tables(
    plan: ExperimentPlan, size: PrivateSizes, encoder: TableEncoder
) -> tuple[tuple[Table, ...], tuple[Plot, ...], tuple[str, ...]]:
    """All trials of a plan's datasets; attacks on too few documents are left out, and why."""
    datasets = sampled(plan, size.train, size.test)
    public = list(built_in_text(this_machine()).values())
    far = make_prior(encoder, public)
    figures = list[PrivateFigures]()
    attacks = list[Table]()
    left_out = list[str]()
    for dataset in datasets:
        others = [
            list(own)
            for each in datasets
            if each is not dataset
            for own in each.train.values()
        ]
        priors = {FAR: far} | (
            {NEAR: make_prior(encoder, [*public, *others])} if others else {}
        )
        ground = PrivateGround(dataset, encoder, priors)
        figures.append(_figures(plan, size, ground))
        try:
            attacks.append(_attacks(plan, size, ground))
        except CorpusError as error:
            left_out.append(f"attacks on documents of {dataset.name}: {error}")
    return (
        (*map(accuracy_table, figures), *attacks),
        tuple(map(accuracy_plot, figures)),
        tuple(left_out),
    )


def _key(plan: ExperimentPlan, ground: PrivateGround, **more: Any) -> dict[str, Any]:
    priors = {name: prior.fingerprint for name, prior in ground.priors.items()}
    about = {
        "dataset": ground.dataset.digest,
        "encoder": ground.encoder.fingerprint,
        "priors": priors,
    }
    return {**about, "seed": plan.seed, "code": CODE, **more}


def _figures(
    plan: ExperimentPlan, size: PrivateSizes, ground: PrivateGround
) -> PrivateFigures:
    dataset = ground.dataset
    found = dict[PrivateTrial, Sequence[float]]()
    trials = [
        PrivateTrial(mode, epsilon, documents, prior)
        for prior in ground.priors
        for documents in size.documents
        for mode in MODES
        for epsilon in size.epsilons
    ]
    with plan.ticking(f"private rounds, {dataset.name}", len(trials) + 2) as tick:
        for trial in trials:
            key = _key(plan, ground, trial=asdict(trial), seeds=size.seeds)
            found[trial] = plan.cache.kept(
                "private-trial", key, partial(_draws, plan, size, ground, trial)
            )
            tick()
        run = None
        if len(dataset.domains) >= SMALLEST_COHORT:
            key = _key(plan, ground, mode=ROUND_MODE, epsilon=ROUND_EPSILON)
            run = plan.cache.kept("private-round", key, partial(_round, plan, ground))
        tick()
        row = tried(plan, dataset, OURS)["rows"][0]
        tick()
    return PrivateFigures(
        dataset, found, run, evaluation(dataset.domains, row["routed"]).accuracy
    )


def _draws(
    plan: ExperimentPlan, size: PrivateSizes, ground: PrivateGround, trial: PrivateTrial
) -> list[float]:
    return [accuracy(ground, trial, plan.seed + draw) for draw in range(size.seeds)]


def _round(plan: ExperimentPlan, ground: PrivateGround) -> float:
    """A round as holders run it, one holder a domain, with the system's own randomness."""
    from ridgeway.common.privacy.public_prior import write_prior
    from ridgeway.coordinator.round.federation import PrivacySettings
    from ridgeway.coordinator.round.progress import no_watch
    from ridgeway.simulations.simulate import simulate

    work = plan.work / f"private-{ground.dataset.name}"
    corpora.write(ground.dataset.corpora, work / "data")
    write_prior(ground.priors[FAR], work / "prior")
    privacy = PrivacySettings(sums=ROUND_MODE, epsilon=ROUND_EPSILON)
    done = simulate(
        work / "federation",
        no_watch,
        mode="private",
        privacy=privacy,
        data=work / "data",
        prior=work / "prior",
        encoder=bare_name(plan.encoder),
    )
    return done.evaluation.accuracy


def _attacks(plan: ExperimentPlan, size: PrivateSizes, ground: PrivateGround) -> Table:
    rows = list[tuple[Any, ...]]()
    for mode in MODES:
        for epsilon in size.epsilons:
            trial = PrivateTrial(mode, epsilon, None, FAR)
            key = _key(plan, ground, trial=asdict(trial), runs=size.runs)
            make = partial(attacked_documents, ground, trial, size.runs, plan.seed)
            rows += list(_attack_rows(plan.cache.kept("private-attack", key, make)))
    shares = ("named of its own", "of the control", "by chance")
    pairs = ("pairs told apart", "planted ones", "by this noise", "allowed")
    columns = (
        Column("mode"),
        Column("ε"),
        Column("view"),
        Column("documents", digits=0),
    )
    name = ground.dataset.name
    domain = ground.dataset.domains[0]
    return Table(
        f"private-attacks-{name}",
        f"Attacks on sums under noise: one half of {domain} of {name}, the other half"
        " as a control",
        (*columns, *(Column(each, "%") for each in (*shares, *pairs))),
        tuple(rows),
        "named: of the half's distinct tokens; pairs told apart: how often a document"
        " that was summed scores above one that was not, 50 % is guessing; planted"
        " ones: the same for documents of random tokens by someone who knows all else;"
        " by this noise: the best that can be; allowed: what ε allows any mechanism",
    )


def _attack_rows(told: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    auc = told["membership_auc"]
    pairs = (
        auc["own_against_control"],
        told["planted"]["auc"],
        auc["worst_case"],
        auc["allowed"],
    )
    for each in told["findings"]:
        own = each["own"]
        control = each["control"]
        shares = (own["recovered"], control["recovered"], own["chance"])
        about = (
            told["privacy"],
            f"{told['epsilon']:g}",
            each["view"],
            told["documents"],
        )
        yield (*about, *(100 * share for share in (*shares, *pairs)))


def accuracy_table(figures: PrivateFigures) -> Table:
    """A row for each kind of round: the mean over draws of noise, the lowest and the highest."""
    names = ("prior", "documents of a domain", "mode", "ε")
    columns = (
        *map(Column, names),
        *(Column(each, "%", 1) for each in ("mean", "lowest", "highest")),
    )
    dataset = figures.dataset
    found = figures.found
    sizes = [len(own) for own in dataset.train.values()]
    whole = f"{min(sizes):,} to {max(sizes):,}"
    rows: list[tuple[Cell, ...]] = [
        (
            each.prior,
            str(each.documents or whole),
            each.mode,
            f"{each.epsilon:g}",
            mean(own),
            min(own),
            max(own),
        )
        for each, own in found.items()
    ]
    if figures.run is not None:
        rows.append(
            (
                FAR,
                whole,
                f"{ROUND_MODE}, a round",
                f"{ROUND_EPSILON:g}",
                *[figures.run] * 3,
            )
        )
    rows.append(("–", whole, "no privacy", "–", *[figures.plain] * 3))
    draws = len(next(iter(found.values())))
    note = (
        f"Mean over domains of the test texts that reach theirs, over {draws} draws of"
        " noise; δ is 10⁻⁸."
    )
    title = f"Accuracy under differential privacy, {dataset.name}"
    return Table(f"private-{dataset.name}", title, columns, tuple(rows), note)


def accuracy_plot(figures: PrivateFigures) -> Plot:
    lines: dict[str, list[tuple[float, float]]] = {}
    for each, own in figures.found.items():
        name = f"{each.mode}, {each.documents or 'all'} documents, {each.prior}"
        lines.setdefault(name, []).append((each.epsilon, mean(own)))
    series = tuple(
        Series(name, *zip(*points, strict=True)) for name, points in lines.items()
    )
    title = f"Accuracy by ε, {figures.dataset.name}"
    level = (
        "no privacy",
        figures.plain,
    )
    return Plot(
        f"private-plot-{figures.dataset.name}",
        title,
        "ε",
        "mean accuracy (%)",
        series,
        "log",
        level=level,
    )
