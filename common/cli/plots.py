"""Figures for reports: shares as bars, in colours that the colour-blind and a printer can tell
apart.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.files import check_output, write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KINDS = (".png", ".svg", ".pdf")
COLOURS = ("#0072B2", "#E69F00", "#009E73")
HATCHES = ("", "///", "...")
BAR = 0.36
PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
LABEL: dict[str, Any] = {
    "textcoords": "offset points",
    "va": "center",
    "fontsize": 8,
    "bbox": PAPER,
    "zorder": 5,
}


@dataclass(frozen=True, slots=True)
class Panel:
    """Bars side by side for each label: shares between 0 and 1, or None where there is none.

    marks: a share for each label that is drawn as a line across its bars.
    """

    title: str
    labels: Sequence[str]
    series: dict[str, Sequence[float | None]]
    marks: Sequence[float]


def check_plot(path: Path) -> None:
    """Raise before any work unless a figure can be drawn and written here."""
    if path.suffix.lower() not in KINDS:
        raise InputError(
            f"a plot cannot be written as {path.name}; end its name in"
            f" {', '.join(KINDS)}"
        )
    check_output(path)
    nearest = next(folder for folder in path.absolute().parents if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {(error.strerror or str(error)).lower()}"
            f" ({nearest})"
        ) from error
    figure_class()


def figure_class() -> Any:
    """Matplotlib's. Raises unless plots can be drawn here."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError(
            "drawing a plot needs the package matplotlib; install ridgeway[client]"
        ) from None
    return Figure


def draw_shares(path: Path, title: str, panels: Sequence[Panel], mark: str) -> None:
    """Write a figure with one panel beside the other, which share their labels' axis."""
    most = max(len(panel.labels) for panel in panels)
    figure = figure_class()(
        figsize=(2.2 + 4.4 * len(panels), 1.9 + 0.62 * most), layout="constrained"
    )
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axis, panel in zip(axes, panels, strict=True):
        _draw_panel(axis, panel, mark)
    axes[0].invert_yaxis()
    handles, names = axes[0].get_legend_handles_labels()
    figure.suptitle(title)
    figure.legend(
        handles, names, loc="outside lower center", ncols=len(names), frameon=False
    )
    _write(figure, path)


def _draw_panel(axis: Axes, panel: Panel, mark: str) -> None:
    places = range(len(panel.labels))
    middle = (len(panel.series) - 1) / 2
    for turn, (name, shares) in enumerate(panel.series.items()):
        heights = [place + (turn - middle) * BAR for place in places]
        widths = [100 * (share or 0) for share in shares]
        style: dict[str, Any] = {
            "color": COLOURS[turn],
            "hatch": HATCHES[turn],
            "edgecolor": "black",
            "linewidth": 0.6,
        }
        axis.barh(heights, widths, BAR, label=name, **style)
        for height, width, share in zip(heights, widths, shares, strict=True):
            axis.annotate(
                "–" if share is None else f"{width:.0f} %",
                (width, height),
                (3, 0),
                **LABEL,
            )
    half = BAR * len(panel.series) / 2
    lows = [place - half for place in places]
    highs = [place + half for place in places]
    axis.vlines(
        [100 * share for share in panel.marks],
        lows,
        highs,
        color="black",
        linestyle="--",
        label=mark,
    )
    axis.set_yticks(list(places), list(panel.labels))
    axis.set_xlim(0, 112)
    axis.set_xticks(range(0, 101, 25))
    axis.set_xlabel("share of tokens (%)")
    axis.set_title(panel.title)
    axis.spines[["top", "right"]].set_visible(False)


def draw_curve(
    path: Path,
    points: Sequence[tuple[float, ...]],
    wish: float,
    mark: tuple[float, float] | None,
    words: str,
) -> None:
    """Write a figure of accuracy over the share of prompts answered, the wish as a dashed line, a
    point marked.

    points: the share answered, the accuracy, and where it may truly lie, from and to; all between 0
            and 1.
    """
    figure = figure_class()(figsize=(6.4, 4.2), layout="constrained")
    axis = figure.subplots()
    x, y, low, high = ([100 * point[place] for point in points] for place in range(4))
    axis.fill_between(x, low, high, color=COLOURS[0], alpha=0.2, linewidth=0)
    axis.plot(x, y, color=COLOURS[0], label="accuracy, and where it may truly lie")
    axis.axhline(
        100 * wish,
        color="black",
        linestyle="--",
        linewidth=0.8,
        label=f"wished: {100 * wish:g} %",
    )
    if mark is not None:
        axis.plot(
            [100 * mark[0]],
            [100 * mark[1]],
            "o",
            color=COLOURS[1],
            markeredgecolor="black",
            label=words,
        )
    axis.set_xlabel("prompts answered (%)")
    axis.set_ylabel("right among them (%)")
    axis.set_title("Coverage against accuracy")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, loc="lower left")
    _write(figure, path)


def _write(figure: Any, path: Path) -> None:
    image = io.BytesIO()
    figure.savefig(image, format=path.suffix.lower().removeprefix("."), dpi=160)
    write_whole(path, image.getvalue())
