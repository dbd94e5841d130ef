"""What the attacks brought, as tables and plots. Knows nothing of how it was found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from client.audit import CLEAR, COLUMN
from common.settings import DEFAULT
from common.statistics import triangle_size
from simulations.lab.findings import Cell, Column, Plot, Series, Table
from simulations.lab.privacy.trials import CALLED, USUAL, Seen

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
    "recovered: the share of the holder's distinct tokens that the attack names; of all tokens: the same by how often "
    "they occur; rare: of the tokens that occur once or twice; precision: the share of the named tokens that are the "
    f"holder's; by chance: what naming as many tokens at random would hit; window {USUAL}: {DEFAULT.sampling}"
)
SHARED = {
    CLEAR: "sums of the domain",
    COLUMN: "the domain's column of B",
    CALLED: "total of the cohort: called the domain's",
}
"""What the views are once the domain has several holders."""

RECOVERED = "distinct tokens recovered, %"

Place = Callable[[Seen], float]


def corpus_table(seen: Sequence[Seen], about: str) -> Table:
    rows = [(each.view, each.trial.words, each.trial.tokens, *_shares(each)) for each in seen]
    columns = (Column("view"), Column("window"), Column("tokens", digits=0), *SHARES)
    return Table("privacy-corpus", f"What comes back of a corpus, by its size; {about}", columns, tuple(rows), LEGEND)


def holders_table(seen: Sequence[Seen], about: str) -> Table:
    rows = [(SHARED[each.view], each.trial.words, each.trial.holders, *_shares(each)) for each in seen]
    columns = (Column("view"), Column("window"), Column("holders of the domain", digits=0), *SHARES)
    title = f"What comes back of one holder's corpus, by the number of holders its domain has; {about}"
    return Table("privacy-holders", title, columns, tuple(rows), LEGEND)


def width_table(seen: Sequence[Seen], rows_kept: int, about: str) -> Table:
    rows = [
        (each.view, each.trial.words, each.trial.width, triangle_size(each.trial.width + 1) / rows_kept, *_shares(each))
        for each in seen
    ]
    sums = Column("sums for each token of the table", digits=2)
    columns = (Column("view"), Column("window"), Column("h", digits=0), sums, *SHARES)
    return Table("privacy-width", f"What comes back of a corpus, by the width h; {about}", columns, tuple(rows), LEGEND)


def plots(corpus: Sequence[Seen], holders: Sequence[Seen], width: Sequence[Seen]) -> tuple[Plot, ...]:
    by_tokens = _lines(corpus, {CLEAR, COLUMN}, lambda each: each.trial.tokens)
    by_holders = _lines(holders, {CLEAR, CALLED}, lambda each: each.trial.holders, _precision, SHARED)
    by_width = _lines(width, {CLEAR, COLUMN}, lambda each: each.trial.width)
    size, whose = "What comes back, by the size of the corpus", "Of what is named, how much is the one holder's"
    return (
        _plot("privacy-corpus-plot", size, "tokens of the corpus", RECOVERED, by_tokens),
        _plot("privacy-holders-plot", whose, "holders of the domain", "precision, %", by_holders),
        _plot("privacy-width-plot", "What comes back, by the width", "h", RECOVERED, by_width),
    )


def _precision(each: Seen) -> float | None:
    return each.precision


def _recovered(each: Seen) -> float | None:
    return each.recovered


def _lines(
    seen: Sequence[Seen],
    views: Iterable[str],
    place: Place,
    value: Callable[[Seen], float | None] = _recovered,
    names: dict[str, str] | None = None,
) -> tuple[Series, ...]:
    """A line for each view and window; the column's, which are nearly alike, for the first window alone."""
    found: dict[str, list[Seen]] = {}
    columns = [each.trial.sampling for each in seen if each.view == COLUMN]
    for each in seen:
        if each.view in views and not (each.view == COLUMN and each.trial.sampling != columns[0]):
            name = (names or {}).get(each.view, each.view)
            found.setdefault(
                f"{name}, {each.trial.words if each.trial.words == USUAL else f'w={each.trial.words}'}", []
            ).append(each)
    return tuple(Series(name, tuple(map(place, own)), tuple(map(value, own))) for name, own in found.items())


def _plot(key: str, title: str, x: str, y: str, series: tuple[Series, ...]) -> Plot:
    return Plot(key, title, x, y, series, x_scale="log")


def _shares(each: Seen) -> tuple[Cell, ...]:
    shares = (each.recovered, each.mass, each.rare, each.exact, each.precision, each.chance)
    return (each.distinct, each.found, *shares)
