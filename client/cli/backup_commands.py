"""ridgeway client backup, restore: a holder's folder in one file, and back without its budget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ridgeway.client.cli.holder_commands import HolderFolder, open_holder
from ridgeway.client.deploy.holder_backup import (
    back_up_holder,
    charge_restored,
    restore_holder,
)
from ridgeway.client.round.spending import epsilon_words
from ridgeway.common.cli.options import Json, argument, option
from ridgeway.common.cli.terminal import count, show, size


def backup(
    folder: HolderFolder,
    target: Annotated[
        Path, argument("The file to write; none is overwritten.", "FILE")
    ],
    json: Json = False,
) -> None:
    """Write all of DIR that cannot be made again to one FILE.

    The journal, the keys, the settings, the releases, and what the corpus has cost; no text and no
    sums. FILE holds the private keys, and only its owner can read it: keep it as safe as DIR.
    """
    made = back_up_holder(open_holder(folder), target)
    room = target.stat().st_size
    files = count(len(made.files), "file")
    journal = f"journal to entry {made.entries:,}"
    show(
        {"file": str(target), "bytes": room, **made.model_dump(mode="json")},
        ("wrote", str(target), files, journal, size(room), "read again"),
        json=json,
    )


def restore(
    folder: HolderFolder,
    epochs_since: Annotated[
        int,
        option(
            "How often `client ready` was run after the copy was made, at most.", min=0
        ),
    ],
    source: Annotated[
        Path | None,
        option(
            "A file that `backup` wrote, to make DIR of; without it, DIR was put back by"
            " other means.",
            "--from",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Make the holder's folder DIR of a backup, or say that DIR is an older copy.

    A copy does not know what left after it was made. Each epoch that was opened since is charged
    as the most that one round may cost, and so is the one that was open. Run `ridgeway client
    ready` afterwards to open a new one.
    """
    if source is not None:
        restore_holder(source, folder)
    holder = open_holder(folder)
    charged = charge_restored(holder, epochs_since)
    account = holder.account
    total = epsilon_words(account.epsilon())
    limit = epsilon_words(account.max_epsilon)
    show(
        {"folder": str(folder), "charged": len(charged), "privacy": account.to_json()},
        ("restored", str(folder), f"key {holder.key[:12]}"),
        ("charged", count(len(charged), "output"), f"ε {total} of {limit} is spent"),
        ("first", "see to it that no other copy of this folder takes part any more"),
        ("then", f"ridgeway client ready {folder}", f"ridgeway client join {folder}"),
        json=json,
    )
