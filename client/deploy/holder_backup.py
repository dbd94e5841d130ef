"""A holder's folder in one file, and back, without giving a budget back.

A copy does not know what left after it was made. What bounds it is the owner's own doing: of an
epoch one vector of sums and one of counts leave, and only the owner opens epochs (`client ready`).
So whoever restores a copy says how many epochs were opened since. Each is charged as the most that
the policy allows for a round, and so is what had not left yet of the epoch that was open; no epoch
is open afterwards. No word of the coordinator's can lower this. If it knows of more outputs than
were charged, rounds refuse (`Account.check_record`).

Epochs, sessions, caches and logs are not in a backup.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path

from ridgeway.client.round.holder import CARD, CLIENT_TOML, IDENTITY, PRIOR, Holder
from ridgeway.client.round.roster import ROSTER
from ridgeway.client.round.spending import RESTORED, SPENT, UNPACKED, Expense
from ridgeway.common.base.files import write_whole
from ridgeway.common.base.identity import next_key
from ridgeway.common.deploy.archive import (
    BackupManifest,
    copy_files,
    copy_journal,
    unpacked,
    write_backup,
)
from ridgeway.common.deploy.notice import ANNOUNCED_ROSTER, NOTICE
from ridgeway.common.protocol.invitation import AUTHORITY, INVITE

JOURNAL = "journal.db"
SPENDING = "spending.jsonl"
"""In a backup: what this corpus had cost, through whichever folder."""
HOLDER_FILES = (
    CLIENT_TOML,
    IDENTITY,
    next_key(Path(IDENTITY)).name,
    "node.key",
    CARD,
    ROSTER,
    ANNOUNCED_ROSTER,
    NOTICE,
    INVITE,
    AUTHORITY,
    PRIOR,
)
"""Those that are there are taken."""


def back_up_holder(holder: Holder, target: Path) -> BackupManifest:
    """Write a backup, and read it again. The SuperNode may be running meanwhile."""

    def fill(draft: Path) -> int:
        copy_journal(holder.folder / JOURNAL, draft / JOURNAL)
        copy_files(holder.folder, _names(holder.folder), draft)
        lines = (json.dumps(output) for output in holder.account.outputs())
        write_whole(draft / SPENDING, "\n".join(lines).encode(), private=True)
        with Holder(draft).journal as journal:
            return journal.verify()

    return write_backup(target, fill, holder.coordinator, holder.key)


def _names(folder: Path) -> Iterator[str]:
    yield from (name for name in HOLDER_FILES if (folder / name).is_file())
    for part in ("releases", "in-totals"):
        for path in (folder / part).rglob("*"):
            if path.is_file():
                yield path.relative_to(folder).as_posix()


def restore_holder(source: Path, folder: Path) -> Holder:
    """Make a holder's folder of a backup, whole or not at all; what its corpus had cost is known
    again. Nothing was charged yet, and until then the folder takes part in nothing.
    """
    with unpacked(source, folder, "client") as (draft, _):
        copy = Holder(draft)
        with copy.journal as journal:
            journal.verify()
            journal.append((UNPACKED, {}))
        spent = draft / SPENDING
        lines = spent.read_text(encoding="utf-8").splitlines()
        copy.account.take_in(map(json.loads, lines))
        spent.unlink()
    return Holder(folder)


def charge_restored(holder: Holder, epochs_since: int) -> list[Expense]:
    """Charge what may have left since the copy was made, note that the folder was restored, and
    close its epoch; returns what was charged.

    epochs_since: how many epochs the owner has opened since, at most.
    """
    account = holder.account
    settings = holder.settings
    modes = settings.policy.modes
    most_epsilon = settings.policy.max_round_epsilon
    with holder.sessions.exclusive_lock(), account.exclusive():
        known = account.forgotten()
        holder.journal.append(*((SPENT, expense.facts()) for expense in known))
        names = [secrets.token_hex(32) for _ in range(epochs_since)]
        if opened := holder.epochs.current_name():
            names.append(opened)
        paid = {expense.id for expense in account.noted()}
        charged = [
            expense
            for name in names
            for expense in account.most(name, modes, most_epsilon, settings.holdout)
            if expense.id not in paid
        ]
        facts = {"epochs": epochs_since, "known": len(known)}
        account.pay(*charged)
        holder.journal.append((RESTORED, facts))
        holder.sessions.erase()
    return charged
