"""A plot as SVG: lines that are told apart by colour, marker and stroke, so that they read in print
without colour.

  Law: equal plots give equal
bytes, and no two plots of a page share an id.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from ridgeway.common.base.files import sha256
from ridgeway.common.cli.plots import figure_class
from ridgeway.simulations.experiments.report.report_tables import Plot, Scale, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, the pale yellow left out."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "h")
STROKES: tuple[Any, ...] = (
    "-",
    (0, (6, 2)),
    (0, (4, 1.5, 1, 1.5)),
    (0, (2, 1.2)),
    (0, (8, 2, 2, 2, 2, 2)),
)
LEVEL: dict[str, Any] = {
    "color": "#444444",
    "linestyle": (0, (1, 2)),
    "linewidth": 1.4,
    "zorder": 1.5,
}
WIDTH = 5.8
HEIGHT = 3.3
LINE = 0.2
"""In inches: of a plot, of its axes with their labels, and of one line of its legend."""
LETTERS_PER_LINE = 75
HANDLE_LETTERS = 11
"""How many letters of a legend stand beside each other, and how many the piece of line before a
name is worth.
"""
MAX_TICKS = 9
"""On a logarithm up to this many measured places are ticks."""
STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "axes.labelsize": 10,
    "legend.fontsize": 9.5,
}
FONT = "system-ui, 'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', sans-serif"
UNSHOWABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
"""What XML cannot hold."""
SMALL = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


@cache
def svg(plot: Plot) -> str:
    """The plot as one <svg> element with a title and a description."""
    import matplotlib as mpl

    name = f"plot-{sha256(plot.key.encode(errors='replace'))[:10]}"
    image = io.StringIO()
    style: Any = {**STYLE, "svg.hashsalt": name}
    with mpl.rc_context(style), warnings.catch_warnings():
        # text stays text; who shows it has other fonts
        warnings.filterwarnings("ignore", "Glyph .* missing")
        figure = figure_class()(
            figsize=(WIDTH, HEIGHT), layout="constrained", facecolor="white"
        )
        _draw(figure.add_subplot(), plot)
        figure.set_figheight(HEIGHT + LINE * _add_legend(figure, plot))
        figure.savefig(
            image,
            format="svg",
            metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")),
        )
    return _finished(image.getvalue(), plot, name)


def _draw(axes: Axes, plot: Plot) -> None:
    for place, series in enumerate(plot.series):
        _draw_series(axes, series, place, len(plot.series))
    if plot.level is not None:
        axes.axhline(plot.level[1], label=plot.level[0], **LEVEL)
    heights = [
        value for series in plot.series for value in series.y if value is not None
    ]
    _scale(
        axes, "x", plot.x_scale, [value for series in plot.series for value in series.x]
    )
    _scale(
        axes,
        "y",
        plot.y_scale,
        heights if plot.level is None else [*heights, plot.level[1]],
    )
    axes.set_xlabel(plot.x_label)
    axes.set_ylabel(plot.y_label)
    axes.grid(color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.04, y=0.08)


def _draw_series(axes: Axes, series: Series, place: int, of: int) -> None:
    heights = [math.nan if value is None else value for value in series.y]
    axes.plot(
        series.x,
        heights,
        label=series.name,
        color=COLOURS[place % len(COLOURS)],
        marker=MARKERS[place % len(MARKERS)],
        linestyle=STROKES[place % len(STROKES)],
        linewidth=1.8,
        markersize=6,
        markeredgecolor="white",
        markeredgewidth=0.7,
        zorder=2 + (of - place) / of,
    )
    known = [height for height in heights if not math.isnan(height)]
    # gaps have their place, too
    axes.update_datalim([(x, known[0]) for x in series.x if known], updatey=False)


def _add_legend(figure: Any, plot: Plot) -> int:
    """Below the axes, so that it never covers a line; as many names beside each other as fit. Gives
    its lines.
    """
    handles, names = figure.axes[0].get_legend_handles_labels()
    if not names or names in ([""], [plot.y_label]):
        return 0
    longest = max(map(len, names)) + HANDLE_LETTERS
    beside = max(1, min(len(names), 4, LETTERS_PER_LINE // longest))
    figure.legend(
        handles,
        names,
        loc="outside lower center",
        ncols=beside,
        frameon=False,
        handlelength=3.4,
    )
    return math.ceil(len(names) / beside)


def _scale(axes: Axes, which: str, scale: Scale, values: Sequence[float]) -> None:
    """Linear or logarithmic, with plain numbers beside it. A logarithm's zero stands apart, left of
    its first tick.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    axis: Axis = axes.xaxis if which == "x" else axes.yaxis
    positive = [value for value in values if value > 0]
    if scale == "log" and positive:
        apart = (
            {"linthresh": min(positive), "linscale": 0.4}
            if len(positive) < len(values)
            else {}
        )
        change = axes.set_xscale if which == "x" else axes.set_yscale
        change("symlog" if apart else "log", **apart)
        places = sorted(set(values))
        measured = (which == "x" or apart) and len(places) <= MAX_TICKS
        axis.set_major_locator(
            FixedLocator(places) if measured else LogLocator(subs=(1.0, 2.0, 5.0))
        )
        axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, place: plain_number(value)))


def plain_number(value: float) -> str:
    """1, 0.25, 96.5, 10,000; a power of ten where zeros would have to be counted."""
    value = float(f"{value:.6g}")
    if value and (abs(value) < 1e-4 or abs(value) >= 1e9):
        figures, power = f"{value:e}".split("e")
        front = f"{float(figures):g}"
        return (
            ("" if front == "1" else f"{front} × ")
            + "10"
            + str(int(power)).translate(SMALL)
        )
    return f"{value:,.0f}" if value == int(value) else f"{value:,.6g}".rstrip()


def described(plot: Plot) -> str:
    """The plot in words, for those who cannot see it."""
    return f"{plot.y_label} over {plot.x_label}. " + " ".join(
        _told(series) for series in plot.series
    )


def _told(series: Series) -> str:
    points = [(x, y) for x, y in zip(series.x, series.y, strict=True) if y is not None]
    if not points:
        return f"{series.name}: no points."
    ends = [
        f"{plain_number(y)} at {plain_number(x)}" for x, y in (points[0], points[-1])
    ]
    return (
        f"{series.name}: {ends[0]}."
        if len(points) == 1
        else f"{series.name}: from {ends[0]} to {ends[1]}."
    )


def _finished(image: str, plot: Plot, name: str) -> str:
    """One element, whose ids and style are its own."""
    image = UNSHOWABLE.sub("\ufffd", image[image.index("<svg") :].strip())
    image = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{name}-", image)
    image = image.replace(
        '<style type="text/css">*{', f'<style type="text/css">#{name} *{{'
    )
    image = re.sub(r'font-family: [^;"]*', f"font-family: {FONT}", image)
    words = (
        f"<title>{_text(plot.title)}</title>\n <desc>{_text(described(plot))}</desc>\n"
    )
    end = image.index(">") + 1
    return (
        f'{image[: end - 1]} id="{name}" role="img">\n {words}{image[end:].lstrip()}\n'
    )


def _text(words: str) -> str:
    return escape(UNSHOWABLE.sub("\ufffd", words))
