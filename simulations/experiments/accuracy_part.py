"""The part `accuracy`: how often prompts reach the right expert, and what that costs, beside other
routers.
"""

from __future__ import annotations

from ridgeway.simulations.experiments.baselines.comparison import (
    PASSES,
    PROMPTS,
    Compared,
    compare,
)
from ridgeway.simulations.experiments.dataset import HELD_OUT
from ridgeway.simulations.experiments.plan import ExperimentPlan, machine_in_words
from ridgeway.simulations.experiments.report.report_tables import (
    Column,
    Plot,
    ReportPart,
    Series,
    Table,
)

KEY = "accuracy"
TITLE = "How often prompts reach the right expert"
CODE = 3

METHOD = (
    f"Each router learns from the training text; baselines keep {HELD_OUT:.0%} of it"
    " aside to choose their hyper-parameters on, as holders of ours keep theirs, and"
    " none learns again after the choice. Test texts serve for the figures alone,"
    " except in rows that say so."
)
SHORT_RUN = (
    "This is the short run: sentence encoders learn from few texts, and routers are"
    " compared on a sample of the test texts."
)


def run(plan: ExperimentPlan) -> ReportPart:
    found = [compare(plan, dataset) for dataset in plan.datasets]
    return ReportPart(
        KEY,
        TITLE,
        words=(METHOD if plan.full else f"{METHOD} {SHORT_RUN}",),
        tables=tuple(
            table
            for each in found
            for table in (accuracy_table(each), cost_table(each))
        ),
        plots=tuple(map(plot, found)),
        facts={
            "settings": {each.dataset.name: each.dataset.source for each in found},
            "test texts": {
                each.dataset.name: sum(map(len, each.task.shown.values()))
                for each in found
            },
            "trained on": {
                each.dataset.name: sorted({row.machine for row in each.rows})
                for each in found
            },
            "timed on": machine_in_words(plan.device),
        },
        left_out=tuple(
            dict.fromkeys(words for each in found for words in each.left_out)
        ),
    )


def accuracy_table(found: Compared) -> Table:
    """Percent of the texts of each domain, and the mean over domains."""
    every = not found.task.full
    domains = found.task.domains
    columns = [
        Column("router"),
        *(Column(name, "%", 1, "more") for name in (*domains, "mean")),
    ]
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
    shown, whole = (
        sum(map(len, texts.values()))
        for texts in (found.task.shown, found.dataset.test)
    )
    note = f"Routing accuracy over {shown:,} test texts, the same for all routers."
    if every:
        note += (
            f" The last column is over all {whole:,} test texts, where a router is"
            " quick enough to read them."
        )
    name = found.dataset.name
    return Table(
        f"accuracy-{name}", f"Accuracy on {name}", tuple(columns), tuple(rows), note
    )


def cost_table(found: Compared) -> Table:
    """What a router takes, and what must be in one place for it."""
    base = found.ours.milliseconds
    name = found.dataset.name
    columns = (
        *(
            Column("router"),
            Column("made of"),
            Column("set to"),
            Column("training", "s", 1, "less"),
        ),
        *(
            Column("per prompt", "ms", 2, "less"),
            Column("times ours", "", 1),
            Column("sees all text"),
        ),
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
        "Training is all from reading text to a chosen router, on the machine named in"
        f" the facts. Time for a prompt is the median of {PASSES} passes over"
        f" {PROMPTS[found.task.full]} test texts, one at a time, all routers in turns"
        " in one process on the CPU."
        f" {' '.join(f'{key}: {words}.' for key, words in notes.items())}"
    )
    return Table(f"cost-{name}", f"Cost on {name}", columns, rows, note)


def plot(found: Compared) -> Plot:
    timed = [row for row in found.rows if row.milliseconds is not None]
    return Plot(
        f"accuracy-time-{found.dataset.name}",
        f"Accuracy and time on {found.dataset.name}",
        "time for one prompt (ms)",
        "mean accuracy (%)",
        tuple(
            Series(row.name, (row.milliseconds or 0.0,), (row.shown.accuracy,))
            for row in timed
        ),
        x_scale="log",
        level=("one expert for everything", 100 / len(found.task.domains)),
    )
