"""ridgeway calibrate: coverage against accuracy on held-out text, and the threshold that a wished accuracy takes.

Changes nothing. Knows options and how results are shown; the work is done elsewhere and imported when it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeway.common.base.errors import InputError
from ridgeway.common.cli.options import Fields, Json, Key, Model, ReleaseFolder, RunsOn
from ridgeway.common.cli.terminal import emit_json, step, table

if TYPE_CHECKING:
    from ridgeway.common.routing.coverage import Outcomes, Point
    from ridgeway.common.routing.release import Release
    from ridgeway.common.routing.router import Router


def calibrate(
    release: ReleaseFolder,
    data: Annotated[
        Path, typer.Argument(metavar="DATA_DIR", help="Held-out text: DOMAIN.test.jsonl for every domain.")
    ],
    accuracy: Annotated[float, typer.Option(help="The wished accuracy among answered prompts, in percent.")] = 99.0,
    tokens: Annotated[
        int, typer.Option(min=0, help="Measure on the first so many tokens of each text; 0: on all of it.")
    ] = 0,
    plot: Annotated[Path | None, typer.Option(help="Draw the curve: .png, .svg or .pdf.")] = None,
    text_field: Fields = "text",
    json: Json = False,
    key: Key = None,
    model: Model = None,
    device: RunsOn = "auto",
) -> None:
    """Print how many prompts a release answers above each threshold, how often it is right, and a threshold to set.

    RELEASE is the folder of a release; DATA_DIR holds DOMAIN.test.jsonl for every domain. Nothing is changed: `ridgeway
    coordinator calibrate` fits the confidence itself and signs the release again.
    """
    from ridgeway.common.base.jsonl import field_names, labelled_texts
    from ridgeway.common.cli.plots import check_plot
    from ridgeway.common.routing import coverage
    from ridgeway.common.routing.release import load_release
    from ridgeway.common.routing.router import router_of

    if not 1 < accuracy <= 100:
        raise InputError(f"an accuracy is in percent, above 1 and at most 100, not {accuracy:g}")
    if plot is not None:
        check_plot(plot)
    loaded = load_release(release, key=key, model=model, device=device)
    router = router_of(loaded)
    texts = labelled_texts(data, router.domains, field_names(text_field))
    found = outcomes(router, texts, tokens)
    points, chosen = coverage.curve(found), coverage.proposal(found, accuracy / 100)
    if plot is not None:
        _draw(plot, found, accuracy, chosen)
        step("drew", str(plot))
    if json:
        emit_json(
            {
                "release": router.release,
                "calibrated": router.confidence.calibrated,
                "texts": len(found.right),
                "tokens": tokens or None,
                "wished_accuracy": accuracy / 100,
                "curve": [point._asdict() for point in points],
                "proposal": chosen._asdict() if chosen else None,
                "unit": "share",
            }
        )
        return
    show_coverage(points)
    lines = advice(loaded, chosen, accuracy)
    if chosen is not None and chosen.threshold > 0:
        lines += ways_to_set(loaded, {name: len(own) for name, own in texts.items()}, release, data, chosen)
    print("\n".join(lines))


def outcomes(router: Router, texts: Mapping[str, Sequence[str]], tokens: int = 0) -> Outcomes:
    """How a router fares on labelled texts or on their beginnings, every domain weighing the same."""
    from ridgeway.common.routing.coverage import equal_domains
    from ridgeway.common.routing.evaluation import beginnings_routed

    parts = []
    for place, name in enumerate(router.domains):
        confidence, best = beginnings_routed(router, texts[name], tokens)
        parts.append((confidence, best == place))
    return equal_domains(parts)


def show_coverage(points: Sequence[Point]) -> None:
    """The curve as a table."""
    rows = [
        [
            f"{point.threshold:g}",
            f"{100 * point.coverage:.1f} %",
            "–" if point.accuracy is None else f"{_percent(point.accuracy)} %",
            "–" if point.accuracy is None else f"{100 * point.low:.1f} to {100 * point.high:.1f} %",
            f"{point.texts:,}",
        ]
        for point in points
    ]
    table(["threshold", "answered", "accuracy", "19 times of 20 within", "texts"], rows, numbers_from=0)


def _percent(share: float) -> str:
    """With one digit behind the point; what is not quite all is not called 100."""
    return f"{min(100 * share, 99.9 if share < 1 else 100.0):.1f}"


def advice(loaded: Release, chosen: Point | None, accuracy: float) -> list[str]:
    """What the curve comes to, in words."""
    from ridgeway.common.routing.coverage import MIN_ANSWERED_TEXTS

    notes = [] if loaded.confidence.calibrated else ["The confidence of this release is not calibrated."]
    if chosen is None or chosen.accuracy is None:
        missed = f"No threshold with at least {MIN_ANSWERED_TEXTS} answered texts reaches {accuracy:g} %"
        return [*notes, f"{missed}: wish for less, or measure on more or longer text."]
    figures = f"{100 * chosen.coverage:.1f} % of prompts are answered, {_percent(chosen.accuracy)} % of them right"
    within = f"19 times of 20 within {100 * chosen.low:.1f} to {100 * chosen.high:.1f} %"
    if chosen.threshold == 0:
        return [*notes, f"No threshold is needed for {accuracy:g} %: {figures} ({within})."]
    return [
        *notes,
        f"For {accuracy:g} %, abstain below {chosen.threshold}: {figures} ({within}).",
        "The threshold was picked on this same text, so expect slightly less on other text.",
    ]


def ways_to_set(loaded: Release, texts: Mapping[str, int], release: Path, data: Path, chosen: Point) -> Iterator[str]:
    """The commands that set a threshold.

    To fit a release's confidence anew changes what a threshold means, so one that was not fitted on this text is to be
    fitted before its threshold is chosen.
    """
    fallback = loaded.confidence.fallback or "NAME"
    option = f"--threshold {chosen.threshold} --fallback {quote(fallback)}"
    fit = f"ridgeway coordinator calibrate {quote(str(release))} {quote(str(data))}"
    if fitted_on(loaded.manifest, texts):
        yield f"To set it in the release:  {fit} {option}"
    else:
        yield f"To set it in the release, fit its confidence on this text, and choose again:  {fit}"
    yield f"To set it for serving:     ridgeway serve {quote(str(release))} {option}"


def fitted_on(manifest: Mapping[str, Any], texts: Mapping[str, int]) -> bool:
    """Whether a release's confidence was fitted, as far as can be seen, on this number of texts of each domain."""
    figures = manifest.get("evaluation") or {}
    rows = {name: sum(row) for name, row in zip(figures.get("order", ()), figures.get("confusion", ()), strict=True)}
    return "temperature" in figures and rows == dict(texts)


def _draw(path: Path, found: Outcomes, accuracy: float, chosen: Point | None) -> None:
    from ridgeway.common.cli.plots import draw_curve
    from ridgeway.common.routing.coverage import MIN_ANSWERED_TEXTS, curve

    points = curve(found, sorted({0.0, *found.confidence.tolist()}))
    drawn = [
        (point.coverage, point.accuracy, point.low, point.high)
        for point in points
        if point.texts >= MIN_ANSWERED_TEXTS and point.accuracy is not None
    ]
    mark = None if chosen is None or chosen.accuracy is None else (chosen.coverage, chosen.accuracy)
    words = f"threshold {chosen.threshold}" if chosen else ""
    draw_curve(path, drawn, accuracy / 100, mark, words)
