"""What a holder's folder gathers over the years and can do without, and taking it away.

What stays: the journal and the log of opened sums, whole, by which sums are judged and what left is proved; keys and
settings; the newest releases; the present sums. Knows the folder; knows no process.
"""

from __future__ import annotations

from ridgeway.client.deploy.notices import kept_notice
from ridgeway.client.round.holder import Holder
from ridgeway.common.deploy.leftovers import Leftover, outdated_apps


def holder_leftovers(holder: Holder, keep: int) -> list[Leftover]:
    """Everything that may go, by kind. keep: how many releases stay, the newest ones."""
    folder, notice = holder.folder, kept_notice(holder.folder)
    numbers = sorted(int(entry.facts["number"]) for entry in holder.releases())
    stored = [holder.release_folder(number) for number in numbers[:-keep]]
    announced = {f"{each.sha256}.fab" for each in notice.bundles} if notice else set()
    bundles = [path for path in sorted((folder / "bundles").glob("*.fab")) if path.name not in announced]
    terms = sorted((folder / "cache" / "prepared").glob("*"), key=lambda path: path.stat().st_mtime)
    return [
        Leftover("old releases", f"the newest {keep}", tuple(path for path in stored if path.exists())),
        Leftover("bundles that were looked at", "those that are announced", tuple(bundles)),
        Leftover("parts of sums under earlier terms", "those under the present ones", tuple(terms[:-1])),
        outdated_apps(folder / "flwr-home", holder.settings.bundles),
    ]


def prune_holder(holder: Holder, keep: int) -> list[Leftover]:
    """Take it all away; the journal says which releases."""
    found = holder_leftovers(holder, keep)
    if found[0].paths:
        holder.journal.append(("pruned", {"releases": [int(path.name) for path in found[0].paths]}))
    with holder.sessions.alone():
        for each in found:
            each.remove()
    return found
