"""ridgeway coordinator round, deliver: what an operator asks all holders for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

from ridgeway.common.base.errors import InputError, RidgewayError
from ridgeway.common.cli.route_commands import evaluation_lines
from ridgeway.common.cli.terminal import (
    Json,
    ModeOption,
    TextTable,
    argument,
    count,
    emit_json,
    option,
    show,
    stamped_steps,
    step,
)
from ridgeway.common.routing.evaluation import Evaluation
from ridgeway.coordinator.cli.federation_commands import (
    CoordinatorFolder,
    accuracy_words,
    open_federation,
    percent_words,
)
from ridgeway.coordinator.deploy.supervisor import run_work
from ridgeway.coordinator.narrator import Narrator
from ridgeway.coordinator.round.ask import RunOrder
from ridgeway.coordinator.round.federation import Federation
from ridgeway.coordinator.round.progress import (
    AnswerRefused,
    Event,
    ExchangeDone,
    HoldersAbsent,
    ReleaseStands,
)

# ridgeway coordinator releases: what was published.


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


AcceptWorse = Annotated[
    list[str] | None,
    option(
        "Publish even if this domain is routed worse than before; repeatable.",
        metavar="DOMAIN",
    ),
]
AcceptUnevaluated = Annotated[
    list[str] | None,
    option(
        "Publish even if no holder of this domain has counted; repeatable.",
        metavar="DOMAIN",
    ),
]
AllowMissing = Annotated[
    list[str] | None,
    option(
        "Publish even if no holder of this domain is present; repeatable.",
        metavar="DOMAIN",
    ),
]


def round_(
    folder: CoordinatorFolder,
    mode: ModeOption = None,
    accept_worse: AcceptWorse = None,
    accept_unevaluated: AcceptUnevaluated = None,
    allow_missing: AllowMissing = None,
    even_unchanged: Annotated[
        bool,
        option("Evaluate and publish even if nothing has changed.", "--even-unchanged"),
    ] = False,
    end_rollback: Annotated[
        bool, option("End a rollback and publish again.", "--end-rollback")
    ] = False,
    times: Annotated[
        bool, option("Start every line with a timestamp.", "--times")
    ] = False,
    dry_run: Annotated[
        bool, option("Stop before any sums are asked for.", "--dry-run")
    ] = False,
    json: Json = False,
) -> None:
    """Run a round in DIR and publish its release.

    Wait for holders, gather their total, solve, evaluate, publish, deliver.

    --mode overrides the mode in coordinator.toml; holders refuse modes that they do not allow.

    A router is not published if it is worse than the newest release on a domain's held-out text
    (unless --accept-worse), if no holder of a domain has counted for it (unless
    --accept-unevaluated), or if it would lose a domain of the newest release (unless
    --allow-missing). Without new sums or settings the newest release stays (unless
    --even-unchanged). After `coordinator rollback` no round runs without --end-rollback.

    With --dry-run holders are asked whether they take part, and for nothing else: the round is
    judged by their offers, and leaves no trace in the ledger but who refused or was absent.

    The exit code is 0 if there is a release, or could be one after a dry run. If not, --json prints
    {"error": ..., "released": false}.
    """
    events: list[Event] = []
    narrator = Narrator()

    def watch(event: Event) -> None:
        events.append(event)
        narrator(event)

    order = RunOrder(
        work="dry_run" if dry_run else "round",
        mode=mode,
        accept_worse=tuple(accept_worse or ()),
        accept_unevaluated=tuple(accept_unevaluated or ()),
        allow_missing=tuple(allow_missing or ()),
        even_unchanged=even_unchanged,
        end_rollback=end_rollback,
    )
    try:
        federation = open_federation(folder)
        _check_domains(federation, order)
        with stamped_steps(times):
            run_work(federation, order, watch)
    except RidgewayError as error:
        if json:
            emit_json({"error": str(error), "released": False})
        raise
    absent = (event.names for event in events if isinstance(event, HoldersAbsent))
    facts: dict[str, Any] = {
        "released": not dry_run,
        "absent": sorted(set().union(*absent)),
        "refused": _of_kind(AnswerRefused, events),
        "exchanges": _of_kind(ExchangeDone, events),
    }
    if dry_run:
        show(facts, ("clear", "a round could make a release"), json=json)
        return
    newest = federation.newest
    assert newest is not None
    facts |= {
        "number": newest.number,
        "release": newest.release,
        "unchanged": bool(_of_kind(ReleaseStands, events)),
        "domains": list(newest.domains),
        "evaluation": federation.manifest(newest.number)["evaluation"],
        "folder": str(federation.release_folder(newest.number)),
    }
    show(facts, json=json)
    if not json:
        show_held_out(federation, newest.number)


def _of_kind(kind: type[Event], events: Sequence[Event]) -> list[dict[str, Any]]:
    return [asdict(event) for event in events if isinstance(event, kind)]


def _check_domains(federation: Federation, order: RunOrder) -> None:
    named = {*order.accept_worse, *order.accept_unevaluated, *order.allow_missing}
    domains = set(federation.standing.kept_domains.values())
    if unknown := named - domains:
        raise InputError(
            f"there is no domain {min(unknown)!r}; the domains are"
            f" {', '.join(sorted(domains))}"
        )


def deliver(folder: CoordinatorFolder) -> None:
    """Send the newest release of DIR to holders that do not have it."""
    federation = open_federation(folder)
    if federation.newest is None:
        raise InputError(f"{folder} has no release yet; run a round first")
    run_work(federation, RunOrder(work="deliver"), Narrator())
