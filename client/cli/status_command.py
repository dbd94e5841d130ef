"""ridgeway client status: what a holder was asked for and sent, what it has spent, and what stands
ready.
"""

from __future__ import annotations

from typing import Any

from ridgeway.client.cli.holder_commands import (
    SHOWN_DIGITS,
    HolderFolder,
    open_holder,
)
from ridgeway.client.deploy.holder_folder import has_left
from ridgeway.client.deploy.notices import tell_unapproved, unapproved
from ridgeway.client.round.holder import Holder
from ridgeway.client.round.known_keys import FORKED_KEY, HANDED_OVER
from ridgeway.client.round.roster import load_roster
from ridgeway.client.round.spending import epsilon_words
from ridgeway.common.base.errors import FormatError
from ridgeway.common.cli.options import Json
from ridgeway.common.cli.terminal import count, show

Line = tuple[str, ...]


def status(folder: HolderFolder, json: Json = False) -> None:
    """What DIR has sent and spent, and which epoch is open."""
    holder = open_holder(folder)
    approved = holder.settings.bundles
    sent = [
        {"time": entry.time, **entry.facts} for entry in holder.journal.entries("sent")
    ]
    epoch = _epoch(holder)
    handovers = _handovers(holder)
    notices = _notices(holder)
    modes = holder.policy.modes
    key = holder.key
    facts = {
        "domain": holder.domain,
        "key": key,
        "release": holder.newest,
        "coordinator": holder.coordinator,
        "handovers": handovers,
        "modes": modes,
        "bundles": approved,
        "unapproved": [bundle.sha256 for bundle in unapproved(folder, approved)],
        "privacy": holder.account.to_json(),
        "epoch": epoch,
        "notices": notices,
        "left": has_left(holder.journal),
        "sent": sent,
    }
    show(
        facts,
        ("holder", holder.domain, f"key {key[:12]}", f"of {holder.settings.address}"),
        ("left", "this federation") if facts["left"] else None,
        *map(_handover_line, handovers),
        ("modes", ", ".join(modes)),
        ("release", f"{holder.newest:04}" if holder.newest else "none so far"),
        _epoch_line(epoch),
        spent_line(holder),
        *(("notice", notice["sentence"]) for notice in notices),
        *(("waiting", words) for words in tell_unapproved(folder, approved)),
        ("sent", count(len(sent), "message"), f"see: ridgeway client export {folder}"),
        json=json,
    )


def _epoch(holder: Holder) -> dict[str, Any] | None:
    """What stands ready. used: whether something made of it has left, or may have."""
    try:
        current = holder.epochs.current()
    except FormatError as error:
        return {"problem": str(error)}
    if current is None:
        return None
    used = any(expense.epoch == current.name for expense in holder.account.expenses())
    return {"name": current.name, "documents": current.documents, "used": used}


def _epoch_line(epoch: dict[str, Any] | None) -> Line:
    if epoch is None:
        return "epoch", "none open yet", "open one with `ridgeway client ready`"
    if "problem" in epoch:
        return "warning", epoch["problem"]
    documents = count(epoch["documents"], "document")
    used = "used: results of it have left" if epoch["used"] else "not used yet"
    return "epoch", epoch["name"][:SHOWN_DIGITS], documents, used


def spent_line(holder: Holder) -> Line:
    account = holder.account
    if exact := account.exact():
        outputs = count(len(exact), "exact output")
        return "spent", "ε ∞", f"{outputs} left: no ε bounds what they reveal"
    share = f"ε {account.epsilon():.3g} of {epsilon_words(account.max_epsilon)}"
    left = f"{epsilon_words(account.left())} left"
    return "spent", share, left, f"δ {account.delta:g}"


def _notices(holder: Holder) -> list[dict[str, Any]]:
    """Pairs of opened totals that few members joined or left between, each with a sentence."""
    names = {place.key: place.name for place in load_roster(holder.folder)} | {
        holder.key: "you"
    }
    known = holder.handovers
    by_owner = {known.owner(key): name for key, name in names.items()}
    notices = []
    for notice in holder.totals.notices():
        called = [by_owner.get(key, f"{key[:12]}…") for key in notice["members"]]
        notices.append(
            {
                **notice,
                "sentence": notice_sentence(notice["before"], notice["after"], called),
            }
        )
    return notices


def notice_sentence(before: str, after: str, members: list[str]) -> str:
    rounds = f"the totals of rounds {before[:8]} and {after[:8]}"
    if not members:
        return (
            f"{rounds} have the same members: their difference reveals the sum of all "
            "changes"
        )
    return (
        f"{rounds} differ by {count(len(members), 'member')} ({', '.join(members)}): "
        "their difference reveals what these contributed, together with changes of "
        "the others"
    )


def _handover_line(handover: dict[str, Any]) -> Line:
    words = f"{handover['before'][:12]}… handed over to {handover['after'][:12]}…"
    if handover["fork"]:
        forked = "a second time, so it is ignored; ask its owner"
        return "warning", handover["whose"], words, forked
    return "key", handover["whose"], words, handover["time"][:10]


def _handovers(holder: Holder) -> list[dict[str, Any]]:
    """The keys that took over from others, whose they are, and when this holder met that."""
    known = holder.handovers
    whose = {known.owner(place.key): place.name for place in load_roster(holder.folder)}
    whose |= {known.owner(holder.key): "(you)"}
    whose |= {known.owner(holder.policy.coordinator): "the coordinator"}
    return [
        {
            "time": entry.time,
            "whose": whose.get(known.owner(entry.facts["before"]), "a former member"),
            "before": entry.facts["before"],
            "after": entry.facts["after"],
            "fork": entry.kind == FORKED_KEY,
        }
        for entry in holder.journal.entries(HANDED_OVER, FORKED_KEY)
    ]
