"""The figure of `calibrate`: accuracy over coverage, in colours that the colour-blind can tell
apart.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.files import check_output, write_whole

if TYPE_CHECKING:
    from ridgeway.common.routing.coverage import Point

_KINDS = (".png", ".svg", ".pdf")
LINE_COLOUR = "#0072B2"
MARK_COLOUR = "#E69F00"


def check_plot(path: Path) -> None:
    """Raise before any work unless a figure can be drawn and written here."""
    if path.suffix.lower() not in _KINDS:
        raise InputError(
            f"a plot cannot be written as {path.name}; end its name in"
            f" {', '.join(_KINDS)}"
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


def draw_curve(
    path: Path,
    points: Sequence[Point],
    wish: float,
    chosen: Point | None,
) -> None:
    """Write a figure of accuracy over the share of prompts answered, the wish as a dashed line, the
    chosen threshold as a dot.

    points: all with an accuracy.
    """
    figure = figure_class()(figsize=(6.4, 4.2), layout="constrained")
    axis = figure.subplots()
    answered = [100 * point.coverage for point in points]
    low = [100 * point.low for point in points]
    high = [100 * point.high for point in points]
    right = [100 * (point.accuracy or 0) for point in points]
    axis.fill_between(answered, low, high, color=LINE_COLOUR, alpha=0.2, linewidth=0)
    axis.plot(answered, right, color=LINE_COLOUR, label="accuracy, 95 % interval")
    target = {"color": "black", "linestyle": "--", "label": f"target: {100 * wish:g} %"}
    axis.axhline(100 * wish, **target)
    if chosen is not None and chosen.accuracy is not None:
        place = [100 * chosen.coverage], [100 * chosen.accuracy]
        label = f"threshold {chosen.threshold}"
        axis.plot(*place, "o", color=MARK_COLOUR, markeredgecolor="black", label=label)
    axis.set_xlabel("prompts answered (%)")
    axis.set_ylabel("right among them (%)")
    axis.set_title("Coverage against accuracy")
    axis.legend(frameon=False, loc="lower left")
    image = io.BytesIO()
    figure.savefig(image, format=path.suffix.lower().removeprefix("."), dpi=160)
    write_whole(path, image.getvalue())
