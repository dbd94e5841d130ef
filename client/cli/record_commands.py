"""The commands that show an owner what has left: status, page, statement, evidence."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from ridgeway.client.cli.holder_commands import (
    SHOWN_DIGITS,
    HolderFolder,
    open_holder,
)
from ridgeway.client.deploy.holder_folder import has_left
from ridgeway.client.deploy.notices import tell_unapproved, unapproved
from ridgeway.client.evidence import HolderRecord, SentItem
from ridgeway.client.round.holder import Holder
from ridgeway.client.round.policy import FORKED_KEY, HANDED_OVER, load_roster
from ridgeway.client.round.spending import epsilon_words
from ridgeway.client.statement import as_html, as_text
from ridgeway.client.statement import statement as state
from ridgeway.common.base.errors import FormatError, InputError, JournalError
from ridgeway.common.base.files import check_output, write_whole
from ridgeway.common.cli.terminal import (
    AllowHost,
    Host,
    Json,
    Keys,
    Port,
    RequestRate,
    TextTable,
    TlsCert,
    TlsKey,
    argument,
    count,
    option,
    show,
    step,
)

# ridgeway client status: what a holder was asked for and sent, what it has spent, and what stands
# ready.


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
        "unapproved": [bundle.sha256 for bundle in unapproved(holder)],
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
        *(("waiting", words) for words in tell_unapproved(holder)),
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
    by_owner = _names(holder, "you")
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


def _names(holder: Holder, you: str) -> dict[str, str]:
    """How this holder and the members that it knows are called, by the first keys that they had."""
    known = holder.handovers
    names = {
        known.owner(member.key): member.name for member in load_roster(holder.folder)
    }
    return names | {known.owner(holder.key): you}


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
    whose = _names(holder, "(you)")
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


# ridgeway client verify, export, statement, page: proof of what left a holder's machine, for
# whoever answers for it.


Copy = Annotated[
    Path,
    argument("The holder's folder, or a copy of it; keys are not needed.", "DIR"),
]
MEMBERS_SHOWN = 6


def verify(folder: Copy, json: Json = False) -> None:
    """Check the journal of DIR and the stored releases.

    What was signed, opened and paid for is checked; nothing is written.

    The exit code is 0 only if all of it is as it was written.
    """
    results = list(HolderRecord(folder).check())
    facts = [
        {"checked": check.name, "good": check.good, "found": check.words}
        for check in results
    ]
    lines = (
        f"{'verified' if check.good else 'wrong':<10}{check.name:<26}  {check.words}"
        for check in results
    )
    show(facts, *lines, json=json)
    wrong = [check for check in results if not check.good]
    if wrong:
        raise JournalError(f"{wrong[0].name}: {wrong[0].words}")


def export(
    folder: Copy,
    json: Json = False,
    as_csv: Annotated[bool, option("Print CSV, for a spreadsheet.", "--csv")] = False,
) -> None:
    """List what left the machine of DIR, when and with whom.

    What was refused is listed too; nothing is written.

    `opened` says whether the coordinator has seen it: `clear` as it is; `noisy` under noise; of
    sums under masks `yes` if the sum with the other members was opened, `perhaps` if this holder
    signed for it and was not told, else `no`.
    """
    if json and as_csv:
        raise InputError("--json and --csv exclude each other; give one")
    record = HolderRecord(folder)
    items = record.sent()
    if as_csv:
        _print_csv(items)
        return
    facts = {
        "domain": record.domain,
        "key": record.key,
        "sent": [asdict(item) for item in items],
    }
    show(facts, sent_table(record, items), json=json)


def _print_csv(items: Sequence[SentItem]) -> None:
    writer = csv.DictWriter(
        sys.stdout, [field.name for field in fields(SentItem)], lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(
        {**asdict(item), "members": " ".join(item.members)} for item in items
    )


def sent_table(record: HolderRecord, items: Sequence[SentItem]) -> TextTable:
    rows = [
        [
            item.time[:19],
            str(item.number or "–"),
            item.round[:8],
            item.kind.replace("_", " "),
            item.lot,
            item.epoch[:SHOWN_DIGITS],
            item.sha256[:SHOWN_DIGITS],
            _members(record, item),
            item.opened,
            item.reason,
            item.bytes,
        ]
        for item in items
    ]
    headings = (
        "sent at (UTC)",
        "round",
        "nonce",
        "what",
        "of",
        "epoch",
        "SHA-256",
        "members",
        "opened",
        "why not",
        "bytes",
    )
    return TextTable(headings, rows)


def _members(record: HolderRecord, item: SentItem) -> str:
    names = sorted(record.names.get(key, key[:SHOWN_DIGITS]) for key in item.members)
    more = (
        [f"and {len(names) - MEMBERS_SHOWN} more"] if len(names) > MEMBERS_SHOWN else []
    )
    return ", ".join([*names[:MEMBERS_SHOWN], *more])


def statement(
    folder: Copy,
    html: Annotated[
        Path | None,
        option("Write a self-contained page to print.", metavar="FILE"),
    ] = None,
    json: Json = False,
) -> None:
    """State what one document of DIR has cost and may cost.

    It also states what left, and whom one must trust.

    One page for a privacy officer, in plain words. Works on an archived copy without keys.
    """
    if html is not None:
        check_output(html)
    stated = state(
        HolderRecord(folder), datetime.now(UTC).isoformat(timespec="seconds")
    )
    if html is not None:
        write_whole(html, as_html(stated).encode())
        step("wrote", str(html))
    show(stated.to_json(), as_text(stated).rstrip("\n"), json=json)


def page(
    folder: Copy,
    host: Host = "127.0.0.1",
    port: Port = 8082,
    keys: Keys = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    rate: RequestRate = None,
    allow_host: AllowHost = None,
) -> None:
    """Show DIR as a page in the browser.

    What left this machine, what that cost, what was refused, the approved code.

    The page only reads, and shows no text of the corpus. Any address but loopback needs --keys, as
    with `serve`.
    """
    from ridgeway.client.holder_view import holder_page
    from ridgeway.common.cli.web_commands import serve_page

    parts = holder_page(folder)
    serve_page(parts, host, port, keys, tls_cert, tls_key, rate, allow_host)
