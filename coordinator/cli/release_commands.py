"""ridgeway coordinator releases: what was published."""

from __future__ import annotations

from typing import Annotated, Any

from ridgeway.common.base.errors import InputError
from ridgeway.common.cli.options import Json, argument
from ridgeway.common.cli.route_commands import evaluation_lines
from ridgeway.common.cli.terminal import TextTable, count, show, step
from ridgeway.common.routing.evaluation import Evaluation
from ridgeway.coordinator.cli.federation_commands import (
    CoordinatorFolder,
    accuracy_words,
    open_federation,
    percent_words,
)
from ridgeway.coordinator.round.federation import Federation

HEADINGS = ("release", "id", "made at (UTC)", "by", "mode", "accuracy", "domains")


def releases(
    folder: CoordinatorFolder,
    number: Annotated[
        int | None, argument("Release to show; 0: the newest.", "[NUMBER]")
    ] = None,
    json: Json = False,
) -> None:
    """List the releases of DIR, or show one of them."""
    federation = open_federation(folder)
    if number is not None:
        _show_one(federation, number, json)
        return
    facts = []
    rows = []
    for release in federation.standing.releases:
        evaluation = federation.manifest(release.number)["evaluation"]
        figures = evaluation or {}
        mode = release.terms.mode
        facts.append(
            {
                "number": release.number,
                "release": release.release,
                "cause": release.cause,
                "time": release.time,
                "mode": mode,
                "accuracy": figures.get("accuracy"),
                "interval": figures.get("interval"),
                "domains": list(release.domains),
                "folder": str(federation.release_folder(release.number)),
            }
        )
        made = f"{release.number:04}", release.release[:12], release.time[:19]
        accuracy = accuracy_words(evaluation)
        domains = ", ".join(release.domains)
        rows.append([*made, release.cause, mode, accuracy, domains])
    show(facts, TextTable(HEADINGS, rows), json=json)


def _show_one(federation: Federation, number: int, json: bool) -> None:
    """Choices, held-out accuracy, confusion."""
    newest = federation.newest
    if newest is None:
        raise InputError(f"{federation.folder} has no release yet; run a round first")
    numbers = {release.number for release in federation.standing.releases}
    if number and number not in numbers:
        raise InputError(
            f"{federation.folder} has no release {number}; its newest is"
            f" {newest.number}"
        )
    number = number or newest.number
    manifest = federation.manifest(number)
    holders = count(manifest["cohort"]["holders"], "holder")
    show(
        manifest,
        ("release", f"{number:04}", str(federation.release_folder(number))),
        ("cohort", holders, ", ".join(manifest["domains"])),
        *_choices(manifest),
        json=json,
    )
    if not json:
        show_held_out(federation, number)


def _choices(manifest: dict[str, Any]) -> list[tuple[str, ...]]:
    selector = manifest["selector"]
    rule = selector["name"]
    if rule == "entropy":
        rule += f" k={selector['k']}"
    normalised = "columns normalised" if manifest["normalise_columns"] else ""
    privacy = manifest.get("privacy")
    if privacy is None:
        ridge = f"λ {manifest['ridge']['value']:g}"
        return [("chosen", ridge, rule, normalised)]
    return [
        (
            "privacy",
            privacy["mode"],
            f"ε {privacy['epsilon']:g}",
            f"δ {privacy['delta']:g}",
            privacy["adjacency"],
        ),
        ("says", privacy["sentence"]),
        ("chosen", rule, normalised),
    ]


def show_held_out(federation: Federation, number: int) -> None:
    figures = federation.manifest(number)["evaluation"]
    if figures is None:
        step("note", "holders have not evaluated this release")
        return
    order = tuple(figures["order"])
    result = Evaluation(order, tuple(tuple(row) for row in figures["confusion"]))
    if "interval" not in figures:
        show(None, *evaluation_lines(result), json=False)
        return
    intervals = figures["intervals"]
    accuracies = {
        name: percent_words(share, intervals.get(name))
        for name, share in figures["domains"].items()
    }
    step("note", "the counts below include noise")
    lines = evaluation_lines(result, accuracies, accuracy_words(figures))
    show(None, *lines, json=False)
