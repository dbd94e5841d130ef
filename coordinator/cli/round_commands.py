"""ridgeway coordinator admit, invite, retire, remove, rollback, round, deliver: who takes part, and
what an operator asks all holders for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from ridgeway.common.base.errors import InputError, LinkDown, RidgewayError
from ridgeway.common.base.identity import check_public_line
from ridgeway.common.base.records import MODE_SENTENCES
from ridgeway.common.base.settings import check_domain_name
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
from ridgeway.common.protocol.cohort import AUTHORITY, Card, read_signed_json
from ridgeway.common.routing.evaluation import Evaluation
from ridgeway.coordinator.cli.federation_commands import (
    CoordinatorFolder,
    accuracy_words,
    open_federation,
    percent_words,
    tell_too_few,
)
from ridgeway.coordinator.deploy.superlink import SuperLinkClient
from ridgeway.coordinator.deploy.supervisor import (
    announce,
    register,
    run_work,
    write_invite,
)
from ridgeway.coordinator.history import Narrator
from ridgeway.coordinator.round import membership
from ridgeway.coordinator.round.ask import RunOrder
from ridgeway.coordinator.round.federation import Federation
from ridgeway.coordinator.round.progress import (
    AnswerRefused,
    Event,
    ExchangeDone,
    HoldersAbsent,
    ReleaseStands,
)

# ridgeway coordinator admit, invite, retire, remove, rollback: who takes part, and what a release
# holds of whom.


HIDDEN = (
    "its sums are hidden in a masked total, so they cannot be removed from the newest"
    " release"
)
_RETIRE = "drop its domain now with `retire`; the next total will not contain its sums"
TOO_FEW_DOMAINS = (
    "fewer than two domains are left, so no release was made: the newest one still"
    " contains its sums"
)


def admit(
    folder: CoordinatorFolder,
    card: Annotated[Path, argument("The holder's card.", "HOLDER.PUB")],
    name: Annotated[str, option("Name of the holder.")],
    json: Json = False,
) -> None:
    """Add the holder with the card HOLDER.PUB to the roster of DIR."""
    check_domain_name(name, "holder")
    federation = open_federation(folder)
    paper = read_signed_json(card, Card)
    check_public_line(paper.node)
    holder = federation.ledger.admit(name, paper)
    registered = _register(federation)
    down = (
        "the coordinator is not running; the holder can connect after `coordinator up`"
    )
    show(
        {
            "name": holder.name,
            "domain": holder.domain,
            "key": holder.key,
            "registered": registered,
        },
        ("admitted", holder.name, f"domain {holder.domain}", f"key {holder.key[:12]}"),
        None if registered else ("note", down),
        json=json,
    )
    if not json:
        tell_too_few(federation)


def _register(federation: Federation) -> bool:
    """Let holders know the members, and bring the SuperLink's list of nodes up to date, if it is
    up; else `up` will.
    """
    if (federation.link / AUTHORITY).exists():  # not in a simulated federation
        announce(federation)
    client = SuperLinkClient(federation.link)
    try:
        if client.is_up():
            register(federation, client, lambda words: step("note", words))
            return True
    except LinkDown:
        pass
    return False


def invite(folder: CoordinatorFolder, json: Json = False) -> None:
    """Write DIR/invite, the folder to send to holders.

    It holds addresses, keys and hashes, and no secrets.
    """
    federation = open_federation(folder)
    made = write_invite(federation)
    target = str(folder / "invite")
    mode = made.terms.mode
    show(
        {"folder": target, **made.model_dump(mode="json")},
        ("wrote", target, "send this folder to holders"),
        ("address", made.address),
        ("key", made.coordinator, "also send it to holders over another channel"),
        ("encoder", made.terms.encoder_name, made.terms.encoder[:12]),
        ("mode", mode, MODE_SENTENCES[mode]),
        ("bundle", made.bundle, "the code that rounds run on holders' machines"),
        json=json,
    )


def retire(
    folder: CoordinatorFolder,
    domain: Annotated[str, argument("Domain to drop.", "DOMAIN")],
    json: Json = False,
) -> None:
    """Drop DOMAIN from the router of DIR now, without a round.

    Later rounds leave it out.
    """
    federation = open_federation(folder)
    done = membership.retire(federation, domain)
    _register(federation)
    _show_change("retired", domain, done, json)


def remove(
    folder: CoordinatorFolder,
    name: Annotated[str, argument("Holder to remove from the roster.", "NAME")],
    json: Json = False,
) -> None:
    """Remove the holder NAME from the roster of DIR.

    Its sums are subtracted exactly and erased, and the router is solved again.
    """
    federation = open_federation(folder)
    done = membership.remove(federation, name)
    _register(federation)
    _show_change("removed", name, done, json)
    if not json:
        tell_too_few(federation)


def rollback(
    folder: CoordinatorFolder,
    number: Annotated[
        int, argument("Number of the earlier release to publish again.", "NUMBER")
    ],
    json: Json = False,
) -> None:
    """Publish the earlier release NUMBER of DIR again.

    It gets the next number; `deliver` sends it to holders. Rounds publish nothing until you run one
    with --end-rollback.
    """
    federation = open_federation(folder)
    done = membership.rollback(federation, number)
    _show_change("rolled", f"back to {number:04}", done, json)
    if not json and federation.standing.rolled_back is not None:
        words = "rounds publish nothing until you run one with --end-rollback"
        step("note", words)


def _show_change(verb: str, subject: str, done: membership.Change, json: bool) -> None:
    published = done.published
    if done.note:
        step("note", done.note)
    release = published and {"number": published.number, "release": published.release}
    facts = {
        verb: subject,
        "release": release,
        "unbalanced": list(done.unbalanced),
        "newest_release_is_as_it_was": done.names_it,
        "hidden_in_a_masked_total": done.hidden,
    }
    lines: list[tuple[str, ...]] = [(verb, subject)]
    if published is not None:
        domains = ", ".join(published.domains)
        number = f"{published.number:04}"
        lines.append(("release", number, published.release[:12], domains))
    if done.hidden:
        lines += [("note", HIDDEN), ("next", _RETIRE)]
    elif done.names_it:
        lines.append(("note", TOO_FEW_DOMAINS))
    if done.unbalanced:
        words = "will get the full weight of the domain in the next round"
        lines.append(("note", f"{', '.join(done.unbalanced)} {words}"))
    show(facts, *lines, json=json)


# ridgeway coordinator round, deliver: what an operator asks all holders for.


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
