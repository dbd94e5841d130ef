"""ridgeway coordinator releases, show: what was published."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeway.common.base.errors import InputError
from ridgeway.common.cli.options import Json
from ridgeway.common.cli.terminal import count, emit_json, step, table
from ridgeway.coordinator.cli.federation_commands import (
    Folder,
    accuracy_words,
    open_federation,
)

if TYPE_CHECKING:
    from ridgeway.coordinator.round.federation import Federation


def releases(folder: Folder, json: Json = False) -> None:
    """The releases of DIR, the newest last."""
    federation = open_federation(folder)
    listed = federation.ledger.standing().releases
    if json:
        emit_json(
            [
                {
                    "number": each.number,
                    "release": each.release,
                    "cause": each.cause,
                    "time": each.time,
                }
                | {"mode": each.terms.mode, **_accuracy(federation, each.number)}
                | {
                    "domains": list(each.domains),
                    "folder": str(federation.release_folder(each.number)),
                }
                for each in listed
            ]
        )
        return
    rows = [
        [
            f"{each.number:04}",
            each.release[:12],
            each.time[:19],
            each.cause,
            each.terms.mode,
            accuracy_words(federation.manifest(each.number)["evaluation"]),
            ", ".join(each.domains),
        ]
        for each in listed
    ]
    table(
        ["release", "id", "made at (UTC)", "by", "mode", "accuracy", "domains"],
        rows,
        numbers_from=7,
    )


def _accuracy(federation: Federation, number: int) -> dict[str, Any]:
    evaluation = federation.manifest(number)["evaluation"] or {}
    return {
        "accuracy": evaluation.get("accuracy"),
        "interval": evaluation.get("interval"),
    }


def show(
    folder: Folder,
    number: Annotated[
        int | None,
        typer.Argument(
            metavar="[NUMBER]", help="Which release; the newest if left out."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """What release NUMBER of DIR says of itself: choices, held-out accuracy, confusion."""
    federation = open_federation(folder)
    newest = federation.newest
    if newest is None:
        raise InputError(f"{folder} has no release yet; run a round first")
    if number is not None and number not in {
        each.number for each in federation.ledger.standing().releases
    }:
        raise InputError(
            f"{folder} has no release {number}; its newest is {newest.number}"
        )
    number = number or newest.number
    manifest = federation.manifest(number)
    if json:
        emit_json(manifest)
        return
    selector = manifest["selector"]
    rule = selector["name"] + (
        f" k={selector['k']}" if selector["name"] == "entropy" else ""
    )
    step("release", f"{number:04}", str(federation.release_folder(number)))
    step(
        "cohort",
        count(manifest["cohort"]["holders"], "holder"),
        ", ".join(manifest["domains"]),
    )
    normalised = "columns normalised" if manifest["normalise_columns"] else ""
    if privacy := manifest.get("privacy"):
        step(
            "privacy",
            privacy["mode"],
            f"ε {privacy['epsilon']:g}",
            f"δ {privacy['delta']:g}",
            privacy["adjacency"],
        )
        step("says", privacy["sentence"])
    step(
        "chosen",
        rule if privacy else f"λ {manifest['ridge']['value']:g}",
        "" if privacy else rule,
        normalised,
    )
    show_held_out(federation, number)


def show_held_out(federation: Federation, number: int) -> None:
    from ridgeway.common.cli.route_commands import show_evaluation
    from ridgeway.common.routing.evaluation import Evaluation

    figures = federation.manifest(number)["evaluation"]
    if figures is None:
        step("note", "this release was not evaluated by the holders")
        return
    if "interval" in figures:
        step("accuracy", accuracy_words(figures), "the counts below have noise in them")
    show_evaluation(
        Evaluation(
            tuple(figures["order"]), tuple(tuple(row) for row in figures["confusion"])
        )
    )
