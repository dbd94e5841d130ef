"""How often prompts reach the right expert, and what that costs, beside other routers.

Knows how trials become tables and words. Knows nothing of how any router works.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulations.lab import pooled
from simulations.lab.findings import Column, Part, Plot, Series, Table
from simulations.lab.plan import Plan
from simulations.lab.routers import knn, ours, plain
from simulations.lab.routers.comparing import Compared, Row, compare
from simulations.lab.routers.timing import PASSES, PROMPTS
from simulations.lab.routers.trying import machine
from simulations.lab.setting import HELD_OUT

KEY = "accuracy"
TITLE = "How often prompts reach the right expert"
CODE = 1


def run(plan: Plan) -> Part:
    found = [compare(plan, setting) for setting in plan.settings]
    settings = plan.settings if plan.full else plan.settings[:1]
    equal = [pooled.compare(plan, setting) for setting in settings]
    return Part(
        KEY,
        TITLE,
        words=(*(words for each in found for words in in_words(each)), *(each.words for each in equal), _how(plan)),
        tables=(
            *(table for each in found for table in (accuracy_table(each), cost_table(each))),
            *(each.table for each in equal),
        ),
        plots=tuple(plot(each) for each in found),
        facts={
            "settings": {each.setting.name: each.setting.source for each in found},
            "test texts": {each.setting.name: sum(map(len, each.task.shown.values())) for each in found},
            "trained on": {each.setting.name: sorted({row.machine for row in each.rows}) for each in found},
            "timed on": machine(found[0].task),
        },
        left_out=tuple(dict.fromkeys(words for each in found for words in each.left_out)),
    )


# Tables


def accuracy_table(found: Compared) -> Table:
    """Percent of the texts of each domain, and the mean over domains."""
    every = not found.task.full
    columns = [Column("router"), *(Column(name, "%", 1, "more") for name in found.task.domains)]
    columns += [Column("mean", "%", 1, "more"), *([Column("mean, all texts", "%", 1, "more")] if every else [])]
    rows = [
        (
            row.name,
            *(row.shown.by_domain[name] for name in found.task.domains),
            row.shown.accuracy,
            *([row.whole.accuracy if row.whole else None] if every else []),
        )
        for row in found.rows
    ]
    shown, whole = (sum(map(len, texts.values())) for texts in (found.task.shown, found.setting.test))
    note = f"Routing accuracy over {shown:,} test texts, the same for all routers."
    if every:
        note += f" The last column is over all {whole:,} test texts, where a router is quick enough to read them."
    return Table(
        f"accuracy-{found.setting.name}", f"Accuracy on {found.setting.name}", tuple(columns), tuple(rows), note
    )


def cost_table(found: Compared) -> Table:
    """What a router takes, and what must be in one place for it."""
    base = found.ours.milliseconds
    columns = (
        Column("router"),
        Column("made of"),
        Column("set to"),
        Column("training", "s", 1, "less"),
        Column("per prompt", "ms", 2, "less"),
        Column("times ours", "", 1),
        Column("sees all text"),
    )
    rows = tuple(
        (
            row.name,
            row.method.made_of,
            row.variant,
            row.seconds if row.milliseconds is not None else None,
            row.milliseconds,
            row.milliseconds / base if row.milliseconds and base else None,
            "yes" if row.method.gathers else "no",
        )
        for row in found.rows
    )
    prompts = PROMPTS[found.task.full]
    note = (
        "Training is all from reading text to a chosen router, on the machine named in the facts. Time for a prompt is "
        f"the median of {PASSES} passes over {prompts} test texts, one at a time, all routers in turns in one process "
        f"on the CPU. {' '.join(_notes(found))}"
    )
    return Table(f"cost-{found.setting.name}", f"Cost on {found.setting.name}", columns, rows, note)


def _notes(found: Compared) -> Iterator[str]:
    """What was decided for each method, once."""
    notes = {row.method.key: row.note for row in found.rows if row.note}
    return (f"{key}: {note}." for key, note in notes.items())


def plot(found: Compared) -> Plot:
    series = tuple(
        Series(row.name, (row.milliseconds,), (row.shown.accuracy,))
        for row in found.rows
        if row.milliseconds is not None
    )
    return Plot(
        f"accuracy-time-{found.setting.name}",
        f"Accuracy and time on {found.setting.name}",
        "time for one prompt (ms)",
        "mean accuracy (%)",
        series,
        x_scale="log",
        level=("one expert for everything", 100 / len(found.task.domains)),
    )


# Words


def _how(plan: Plan) -> str:
    size = (
        "Every text is used."
        if plan.full
        else (
            "This is the short run: sentence encoders learn from few texts, and routers are compared on a sample of "
            "the test texts."
        )
    )
    return (
        f"Each router learns from the training text; baselines keep {HELD_OUT:.0%} of it aside to choose their "
        "hyper-parameters on, as holders of ours keep theirs, and none learns again after the choice. Test texts serve "
        f"for the figures alone, except in rows that say so. {size}"
    )


def in_words(found: Compared) -> Iterator[str]:
    """Who is ahead, by how much, and what it takes."""
    own, name = found.ours, found.setting.name
    others = [row for row in found.rows if row.method.key not in (ours.KEY, plain.RANDOM.key, plain.SINGLE.key)]
    if others:
        best = max(others, key=lambda row: row.shown.accuracy)
        yield (
            f"On {name} our router sends {own.shown.accuracy:.1f} % of the prompts to the right expert, in the mean "
            f"over {len(found.task.domains)} domains; {_against(own, best)}{_of_all(own, best, found)}"
        )
    papers = [row for row in found.of("ir3de") if row.name.endswith("as in the paper")]
    if papers:
        gap = own.shown.accuracy - papers[0].shown.accuracy
        yield (
            f"The paper's method on {name}, with the k that does best on the test, reaches "
            f"{papers[0].shown.accuracy:.1f} %: {_points(gap)} than ours."
        )
    neighbours = found.of(knn.KNN.key)
    if neighbours and neighbours[0].milliseconds and own.milliseconds:
        times = neighbours[0].milliseconds / own.milliseconds
        compared = f"{times:,.0f} times as long as" if times >= 1 else f"{times:.2f} of the time of"
        yield (
            f"One prompt takes ours {own.milliseconds:.2f} ms on the CPU. kNN over sentence embeddings needs "
            f"{neighbours[0].milliseconds:,.1f} ms, {compared} ours, and all training text in one place."
        )


def _of_all(own: Row, best: Row, found: Compared) -> str:
    """How both do on all test texts, where fewer are shown."""
    if found.task.full or own.whole is None or best.whole is None:
        return ""
    return f" Over all test texts it is {own.whole.accuracy:.1f} % against {best.whole.accuracy:.1f} %."


def _against(own: Row, best: Row) -> str:
    gap = own.shown.accuracy - best.shown.accuracy
    where = "" if not best.method.gathers else ", which sees all text in one place"
    if round(gap, 1) == 0:
        return f"as many as the best of the others, {best.name}{where}."
    return (
        f"the best of the others, {best.name}{where}, reaches {best.shown.accuracy:.1f} %, so ours is "
        f"{abs(gap):.1f} points {'ahead' if gap > 0 else 'behind'}."
    )


def _points(gap: float) -> str:
    return f"{abs(gap):.1f} points {'fewer' if gap >= 0 else 'more'}"
