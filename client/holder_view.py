"""A holder's folder as its page shows it: what left, what that cost, what was refused, and the code
that may run.

Reads the folder's records, which hold no text of the corpus, and writes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from ridgeway.client.evidence import HolderRecord, SentItem
from ridgeway.client.round.holder import CLIENT_TOML
from ridgeway.client.round.spending import finite
from ridgeway.common.base.files import stamp_if_there, without_folder
from ridgeway.common.base.records import MODE_SENTENCES
from ridgeway.common.deploy.bundle import installed_sha256, listed_files, source_files
from ridgeway.common.protocol.cohort import INVITE
from ridgeway.common.web.request_context import RequestMetrics
from ridgeway.common.web.site import PageParts

JOURNAL = "journal.db"
WATCHED = (JOURNAL, f"{JOURNAL}-wal", CLIENT_TOML, INVITE, "roster.json")
CONTENTS: Mapping[str, str] = {
    "here": "that it is there, and which release it has",
    "offer": (
        "that it can take part: its domain, its epoch's random name, its public keys"
        " for this session"
    ),
    "clear_statistics": "its exact sums, in the clear",
    "noisy_statistics": "its sums over bounded documents, under noise",
    "counted": (
        "counts of its held-out documents for one router: under noise in private"
        " rounds, else in the clear"
    ),
    "envelopes": "shares of its masks' secrets, each encrypted for one other member",
    "held": "that it keeps the others' shares",
    "sealed_sums": (
        "its numbers under masks: noise until a sum over many members is opened"
    ),
    "confirmed": "its signature over who is in a sum",
    "locked": "its signature over the one sum that it will open",
    "revealed": "shares that take the masks off a sum, never off one member's part",
    "receipt": "that a release came and was verified",
    "refusal": "that it refuses, a code, and a reason without anything private",
}
"""What an answer holds, by its kind."""


def holder_page(folder: Path) -> PageParts:
    folder = folder.resolve()
    view = HolderView(folder)
    looks = {"/standing": view.standing, "/checks": view.checks}
    return PageParts(__package__, folder, looks, RequestMetrics())


class HolderView:
    """Looks again only when a file has changed."""

    def __init__(self, folder: Path) -> None:
        HolderRecord(folder)  # raises if it is none
        self._folder = folder
        self._kept: tuple[list[Any], dict[str, Any]] | None = None

    def standing(self) -> dict[str, Any]:
        """Everything but the check of the records."""
        stamps = [stamp_if_there(self._folder / name) for name in WATCHED]
        if self._kept is None or self._kept[0] != stamps:
            self._kept = stamps, self._looked()
        return self._kept[1]

    def _looked(self) -> dict[str, Any]:
        record = HolderRecord(self._folder)
        items = record.sent()
        received = record.releases()
        terms = record.terms
        return {
            "domain": record.domain,
            "key": record.key,
            "coordinator": record.coordinator,
            "address": record.settings.address,
            "release": received[-1].facts["number"] if received else None,
            "mode": terms.mode if terms else None,
            "modes": {mode: MODE_SENTENCES[mode] for mode in record.policy.modes},
            "epoch": _epoch(record),
            "notices": len(record.totals.notices()),
            **_sent(record, items),
            "kinds": _by_kind(items),
            "budget": budget(record, items),
            "bundle": _bundle(record),
        }

    def checks(self) -> list[dict[str, Any]]:
        """Whether the records are as they were written, and agree."""
        record = HolderRecord(self._folder)
        return [
            {
                "name": check.name,
                "words": without_folder(check.words, self._folder),
                "good": check.good,
            }
            for check in record.check()
        ]


def _sent(record: HolderRecord, items: Iterable[SentItem]) -> dict[str, Any]:
    """What left and what was refused, the newest first; cohorts stand once, by the names that are
    known here.
    """
    cohorts: dict[tuple[str, ...], int] = {}
    rows = []
    for item in items:
        row = asdict(item)
        row["members"] = len(item.members)
        row["cohort"] = None
        if item.members:
            row["cohort"] = cohorts.setdefault(item.members, len(cohorts))
        row["holds"] = CONTENTS.get(item.kind, "")
        rows.append(row)
    named = [
        sorted(record.names.get(key, f"{key[:12]}…") for key in keys)
        for keys in cohorts
    ]
    return {"items": rows[::-1], "cohorts": named}


def _by_kind(items: Iterable[SentItem]) -> list[dict[str, Any]]:
    """What left, by kind, the largest first."""
    sizes: dict[str, list[int]] = {}
    for item in items:
        if item.bytes:
            sizes.setdefault(item.kind, []).append(item.bytes)
    rows = [
        {
            "kind": kind,
            "holds": CONTENTS.get(kind, ""),
            "times": len(of_kind),
            "bytes": sum(of_kind),
        }
        for kind, of_kind in sizes.items()
    ]
    return sorted(rows, key=lambda row: -row["bytes"])


def budget(record: HolderRecord, items: list[SentItem]) -> dict[str, Any]:
    """What a document has cost so far and may cost, and what of this holder was seen.

    spent, allowed: an ε; None stands for infinity. exact: how many outputs had no noise.
    sums:   sums under masks with this holder's part that were opened, or may have been, by what was
            summed.
    clear:  answers that showed its own exact numbers. noisy: its own numbers under noise.
    """
    masked = [item for item in items if item.kind == "sealed_sums"]
    opened = [item for item in masked if item.opened in ("yes", "perhaps")]
    account = record.account.to_json()
    outputs = account["outputs"]
    return {
        **{name: account[name] for name in ("spent", "allowed", "delta")},
        "exact": sum(output["rho"] == "exact" for output in outputs),
        "next": _after_next(record),
        "outputs": len(outputs),
        "sums": Counter(f"{item.lot} {item.opened}" for item in opened),
        "unopened": sum(item.opened == "no" for item in masked),
        "clear": sum(item.opened == "clear" for item in items),
        "noisy": sum(item.opened == "noisy" for item in items),
        "round_limit": finite(record.policy.max_round_epsilon),
        "min_cohort": record.policy.min_cohort,
    }


def _after_next(record: HolderRecord) -> dict[str, Any] | None:
    """What a document will have cost after a private round with another epoch, and whether that is
    allowed; None in exact modes, and where the invitation is gone.
    """
    privacy = record.terms.privacy if record.terms else None
    if privacy is None:
        return None
    account = record.account
    due = account.private_round(privacy, record.settings.holdout)
    cost = account.epsilon(due)
    return {
        "cost": privacy.epsilon,
        "afterwards": finite(cost),
        "allowed": cost <= account.max_epsilon,
    }


def _epoch(record: HolderRecord) -> dict[str, Any] | None:
    """The epoch that was opened last; used: whether something made of it has left, or may have."""
    opened = record.epochs()
    if not opened:
        return None
    name = opened[-1].facts["epoch"]
    return {
        "name": name,
        "time": opened[-1].time,
        "used": any(paid.epoch == name for paid in record.account.expenses()),
        "number": len(opened),
    }


def _bundle(record: HolderRecord) -> dict[str, Any]:
    """The code of this installation, and whether it is what the owner has approved."""
    installed = _installed()
    approvals = list(record.settings.bundles)
    is_approved = installed["sha256"] in approvals
    return installed | {"approved": is_approved, "approvals": approvals}


@cache
def _installed() -> dict[str, Any]:
    files = listed_files(source_files())
    return {
        "sha256": installed_sha256(),
        "files": files,
        "lines": sum(file["lines"] for file in files),
    }
