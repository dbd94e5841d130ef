"""ridgeway coordinator preflight, round, schedule, deliver: what an operator asks all holders
for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer

from ridgeway.common.base.errors import InputError, RidgewayError
from ridgeway.common.base.schema import MODE_SENTENCES
from ridgeway.common.cli.options import Json, ModeOption, argument, option
from ridgeway.common.cli.terminal import (
    TextTable,
    emit_json,
    show,
    stamped_steps,
    step,
    stop_on_signal,
)
from ridgeway.coordinator.cli.federation_commands import (
    NOT_AS_WISHED,
    CoordinatorFolder,
    open_federation,
)
from ridgeway.coordinator.cli.release_commands import show_held_out
from ridgeway.coordinator.deploy.schedule import keep_schedule
from ridgeway.coordinator.deploy.supervisor import run_work
from ridgeway.coordinator.page.narrator import Narrator, tell_event
from ridgeway.coordinator.round.federation import Federation
from ridgeway.coordinator.round.progress import (
    AnswerRefused,
    Event,
    ExchangeDone,
    HolderChecked,
    HoldersAbsent,
    OperatorNote,
    ReleaseStands,
    RoundForeseen,
)
from ridgeway.coordinator.round.remedies import (
    BUNDLE,
    CHECKED,
    EPOCH_USED,
    REMEDIES,
    check_of,
)
from ridgeway.coordinator.round.run_order import RunOrder

RunsBundle = Annotated[
    str | None,
    option("Bundle to run. (default: the most widely approved)", metavar="HASH"),
]


def preflight(
    folder: CoordinatorFolder, bundle: RunsBundle = None, json: Json = False
) -> None:
    """Ask every holder of DIR whether it could take part in a round.

    It prints what each must do. Nothing is opened, and no corpus is read.

    The exit code is 0 without problems, 1 with problems, and 2 if holders could not be asked.
    """
    federation = open_federation(folder)
    told: list[Event] = []
    runs = run_work(federation, RunOrder(work="preflight"), told.append, bundle)
    for event in told:
        if isinstance(event, OperatorNote):
            tell_event(event)
    holders = [each for each in told if isinstance(each, HolderChecked)]
    mode = federation.settings.mode
    privacy = None
    if mode == "private":
        privacy = federation.settings.privacy.model_dump(mode="json")
    stops = [each.reason for each in told if isinstance(each, RoundForeseen)]
    is_clear = not stops and not any(each.obstacles for each in holders)
    rows = [
        {
            "name": each.name,
            "domain": each.domain,
            "obstacles": [
                {"code": code, "names": names, "remedy": REMEDIES.get(code)}
                for code, names in each.obstacles
            ],
            "total_of_round": each.total_of,
        }
        for each in holders
    ]
    show(
        {
            "clear": is_clear,
            "mode": mode,
            "sentence": MODE_SENTENCES[mode],
            "privacy": privacy,
            "bundle": runs,
            "stops": stops[0] if stops else None,
            "holders": rows,
        },
        ("mode", mode, MODE_SENTENCES[mode]),
        ("cost", _cost_words(privacy)) if privacy else None,
        TextTable(["holder", "domain", *CHECKED], [_marks(each) for each in holders]),
        *(line for each in holders for line in _remedies(each, runs)),
        *(("stops", f"a round would end without a release: {each}") for each in stops),
        ("clear", "no problems found") if is_clear else None,
        json=json,
    )
    if not is_clear:
        raise typer.Exit(NOT_AS_WISHED)


def _cost_words(privacy: Mapping[str, Any]) -> str:
    return (
        f"ε {privacy['epsilon']:g} per document of a new epoch at δ"
        f" {privacy['delta']:g}, for sums and counts together; holders with too little"
        " budget are listed below"
    )


def _remedies(checked: HolderChecked, bundle: str) -> Iterator[tuple[str, ...]]:
    """What a holder has to do before a round."""
    for code, names in checked.obstacles:
        about = f"{code}: {', '.join(names)}" if names else code
        which = f"bundle {bundle}" if code == BUNDLE else ""
        yield "next", checked.name, about, REMEDIES.get(code, ""), which
        if code == EPOCH_USED:
            total = (
                "a total that is not in this ledger, or may be"
                if checked.total_of is None
                else f"the total of round {checked.total_of}"
            )
            waits = f"{checked.name} waits for its next epoch"
            yield "", f"{waits}: its data is in {total}"


def _marks(checked: HolderChecked) -> list[str]:
    """A row of the table: what holds, what does not, and what could not be asked because of
    that.
    """
    failed = [check_of(code) for code, _ in checked.obstacles]
    asked = 1 if "online" in failed else 2 if "code" in failed else len(CHECKED)
    marks = ["no" if check in failed else "yes" for check in CHECKED[:asked]]
    return [checked.name, checked.domain, *marks, *["?"] * (len(CHECKED) - asked)]


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
        bool,
        option("End a rollback and publish again.", "--end-rollback"),
    ] = False,
    times: Annotated[
        bool, option("Start every line with a timestamp.", "--times")
    ] = False,
    bundle: RunsBundle = None,
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

    The exit code is 0 if there is a release. If not, --json prints {"error": ..., "released":
    false}.
    """
    worse = tuple(accept_worse or ())
    missing = tuple(allow_missing or ())
    unevaluated = tuple(accept_unevaluated or ())
    told: list[Event] = []
    tell = Narrator()

    def watch(event: Event) -> None:
        told.append(event)
        tell(event)

    order = RunOrder(
        work="round",
        mode=mode,
        accept_worse=worse,
        accept_unevaluated=unevaluated,
        allow_missing=missing,
        even_unchanged=even_unchanged,
        end_rollback=end_rollback,
    )
    try:
        federation = open_federation(folder)
        _check_domains(federation, {*worse, *missing, *unevaluated})
        with stamped_steps(times):
            run_work(federation, order, watch, bundle)
    except RidgewayError as error:
        if json:
            emit_json({"error": str(error), "released": False})
        raise
    newest = federation.newest
    assert newest is not None
    absent = (each.names for each in told if isinstance(each, HoldersAbsent))
    facts = {
        "released": True,
        "number": newest.number,
        "release": newest.release,
        "unchanged": any(isinstance(each, ReleaseStands) for each in told),
        "domains": list(newest.domains),
        "evaluation": federation.manifest(newest.number)["evaluation"],
        "absent": sorted({name for names in absent for name in names}),
        "refused": [asdict(each) for each in told if isinstance(each, AnswerRefused)],
        "exchanges": [asdict(each) for each in told if isinstance(each, ExchangeDone)],
        "folder": str(federation.release_folder(newest.number)),
    }
    show(facts, json=json)
    if not json:
        show_held_out(federation, newest.number)


def _check_domains(federation: Federation, named: set[str]) -> None:
    domains = set(federation.standing.kept_domains.values())
    if unknown := named - domains:
        raise InputError(
            f"there is no domain {min(unknown)!r}; the domains are"
            f" {', '.join(sorted(domains))}"
        )


def schedule(
    folder: CoordinatorFolder,
    line: Annotated[
        str,
        argument("Cron expression in UTC: minute, hour, day, month, weekday.", "CRON"),
    ],
    min_changed: Annotated[
        int,
        option(
            "Minimum number of holders that are new or have changed since the newest"
            " release.",
            min=0,
        ),
    ] = 0,
) -> None:
    """Run rounds in DIR at fixed times until Ctrl-C.

    "0 3 * * 0" means Sundays at 3:00 UTC.

    `coordinator up` must be running. If a round cannot run, or if fewer than --min-changed holders
    have changed, it prints why, opens nothing, and waits for the next time.
    """

    def work() -> None:
        run_work(
            open_federation(folder),
            RunOrder(work="round", min_changed=min_changed),
            Narrator(),
        )

    open_federation(folder)
    with stamped_steps(True), stop_on_signal() as stopped:
        keep_schedule(line, work, stopped, lambda words: step("note", words))


def deliver(folder: CoordinatorFolder) -> None:
    """Send the newest release of DIR to holders that do not have it."""
    federation = open_federation(folder)
    if federation.newest is None:
        raise InputError(f"{folder} has no release yet; run a round first")
    run_work(federation, RunOrder(work="deliver"), Narrator())
