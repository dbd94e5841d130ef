"""ridgeway coordinator round, deliver: what an operator asks all holders for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

from ridgeway.common.base.errors import InputError, RidgewayError
from ridgeway.common.cli.options import Json, ModeOption, option
from ridgeway.common.cli.terminal import emit_json, show, stamped_steps
from ridgeway.coordinator.cli.federation_commands import (
    CoordinatorFolder,
    open_federation,
)
from ridgeway.coordinator.cli.release_commands import show_held_out
from ridgeway.coordinator.deploy.supervisor import run_work
from ridgeway.coordinator.page.narrator import Narrator
from ridgeway.coordinator.round.federation import Federation
from ridgeway.coordinator.round.progress import (
    AnswerRefused,
    Event,
    ExchangeDone,
    HoldersAbsent,
    ReleaseStands,
)
from ridgeway.coordinator.round.run_order import RunOrder

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
