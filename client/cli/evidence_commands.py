"""ridgeway client verify, export, statement, page: proof of what left a holder's machine, for
whoever answers for it.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from ridgeway.client.evidence import HolderRecord, SentItem
from ridgeway.client.statement import as_html, as_text
from ridgeway.client.statement import statement as state
from ridgeway.common.base.errors import InputError, JournalError
from ridgeway.common.base.files import check_output, write_whole
from ridgeway.common.cli.options import (
    AllowHost,
    Host,
    Json,
    Keys,
    Port,
    RequestRate,
    TlsCert,
    TlsKey,
    argument,
    option,
)
from ridgeway.common.cli.terminal import TextTable, show, step

Copy = Annotated[
    Path,
    argument("The holder's folder, or a copy of it; keys are not needed.", "DIR"),
]
_SHOWN_DIGITS = 12
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
        "domain": record.settings.domain,
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
            item.epoch[:_SHOWN_DIGITS],
            item.sha256[:_SHOWN_DIGITS],
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
    names = sorted(record.names.get(key, key[:_SHOWN_DIGITS]) for key in item.members)
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
    from ridgeway.client.page.holder_view import holder_page
    from ridgeway.common.cli.page_server import serve_page

    parts = holder_page(folder)
    serve_page(parts, host, port, keys, tls_cert, tls_key, rate, allow_host)
