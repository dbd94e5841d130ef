"""ridgeway client ready, join, accept, renew, releases: what a holder in a federation runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from ridgeway.client.deploy.holder_folder import (
    LEFT,
    has_left,
    leaving,
    renew_identity,
    renew_node_key,
)
from ridgeway.client.deploy.notices import (
    JoinReport,
    NoticeWatch,
    gate_of,
    take_notice,
    tell_unapproved,
    tell_unconfirmed,
)
from ridgeway.client.deploy.supernode import NodeSettings, run
from ridgeway.client.ready import ReadyReport, open_epoch, sum_corpus_part
from ridgeway.client.round.holder import CARD, CLIENT_TOML, PRIOR, Holder
from ridgeway.client.round.policy import check_coordinator, check_terms
from ridgeway.client.round.spending import epsilon_words, finite
from ridgeway.client.sums.part_store import part_numbers
from ridgeway.client.sums.prepare import Interrupted, Watch
from ridgeway.common.base.errors import InputError, Refused
from ridgeway.common.base.files import write_whole
from ridgeway.common.base.records import MODE_SENTENCES
from ridgeway.common.cli.terminal import (
    Json,
    PartOfCorpus,
    TextTable,
    argument,
    count,
    option,
    progress_bar,
    show,
    stamped_steps,
    step,
    stop_on_signal,
)
from ridgeway.common.privacy.accountant import delta_warning
from ridgeway.common.privacy.public_prior import read_prior
from ridgeway.common.protocol.cohort import (
    AUTHORITY,
    INVITE,
    LEAVE_PATH,
    NOTICE,
    Invite,
    Terms,
    read_invitation,
    read_signed_json,
)

SHOWN_DIGITS = 12
EXACT_COST = (
    "exact sums cost ε = ∞: nothing bounds what a round reveals about a document"
)

NO_EPOCH = "interrupted; no epoch was opened; the same command resumes"

HolderFolder = Annotated[Path, argument("The holder's folder.", "DIR")]


def open_holder(folder: Path) -> Holder:

    if not (folder / CLIENT_TOML).is_file():
        raise InputError(
            f"{folder} is not a holder's folder; make one with: ridgeway client init"
            f" {folder} --invite …"
        )
    return Holder(folder)


# The invitation


def agreed_invitation(folder: Path) -> Invite:
    """An invitation, whole: with the certificate that it names, and in private rounds its public
    prior.
    """

    paper = read_invitation(folder)
    privacy = paper.terms.privacy
    if privacy is None:
        return paper
    path = folder / PRIOR
    if not path.is_file() or read_prior(path).fingerprint != privacy.prior:
        raise InputError(
            f"{path} is not the public prior of the invitation; ask the operator for "
            "the whole folder again"
        )
    return paper


def papers_of(invite: Path, paper: Invite) -> dict[str, bytes]:
    """What a holder keeps of an invitation, by its place in the holder's folder."""

    names = [INVITE, AUTHORITY, *([PRIOR] if paper.terms.privacy else [])]
    return {name: (invite / name).read_bytes() for name in names}


# The data that stands ready


def ready(
    folder: HolderFolder,
    new_epoch: Annotated[
        bool,
        option(
            "Open another epoch although little has changed since the last total.",
            "--new-epoch",
        ),
    ] = False,
    part: PartOfCorpus = "",
    json: Json = False,
) -> None:
    """Sum the corpus of DIR as it is now: open an epoch.

    Rounds never read the corpus, only the epoch. Unchanged files are not summed again. In masked
    rounds the data of an epoch is in one opened total, ever; after that a new epoch needs many
    changed documents, or --new-epoch, since comparing the two totals tells the sum of what changed.
    """
    holder = open_holder(folder)
    terms = _invited_terms(holder)
    if part:
        _sum_part(holder, terms, part, json)
        return
    current = holder.epochs.current()
    # whether the present epoch is in an exact total that was opened, or may have been
    used = current is not None and holder.account.is_paid(
        current.name, "statistics", "masked"
    )
    report = _open(holder, terms, new_epoch=new_epoch)
    facts = {
        "domain": holder.domain,
        "mode": terms.mode,
        "means": MODE_SENTENCES[terms.mode],
        "epoch": report.epoch.name,
        "samples": report.samples,
        "documents": report.epoch.documents,
        "held_out": report.held_out,
        "changed": report.changed,
        "after_a_used_epoch": used,
        "cost": _cost(holder, terms, report),
    }
    lines = _ready_lines(holder, terms, report)
    if used and terms.mode == "masked":
        lines.append(("tells", *_told_by_two_totals(report.changed)))
    show(facts, *lines, json=json)


def _invited_terms(holder: Holder) -> Terms:

    return read_signed_json(holder.folder / INVITE, Invite).terms


def _open(holder: Holder, terms: Terms, *, new_epoch: bool = False) -> ReadyReport:
    """Open an epoch, with a bar over the bytes that are read."""

    with watched(holder.domain, NO_EPOCH) as watch:
        return open_epoch(holder, terms, watch, new_epoch=new_epoch)


def _sum_part(holder: Holder, terms: Terms, part: str, json: bool) -> None:

    number, of = part_numbers(part)
    with watched(holder.domain, NO_EPOCH) as watch:
        report = sum_corpus_part(holder, terms, (number, of), watch)
    documents = report.counters.documents
    then = f"when all parts are kept: ridgeway client ready {holder.folder}"
    show(
        {"part": number, "of": of, "documents": documents},
        ("kept", f"part {number} of {of}", count(documents, "document")),
        ("next", then),
        json=json,
    )


@contextmanager
def watched(domain: str, interrupted: str) -> Iterator[Watch]:
    """Within this block a bar shows how far work on a domain is, and Ctrl-C ends it with these
    words.
    """
    with stop_on_signal() as stopped, progress_bar(domain) as progress:
        try:
            yield Watch(progress, stopped)
        except Interrupted:
            raise KeyboardInterrupt(interrupted) from None


def _cost(holder: Holder, terms: Terms, report: ReadyReport) -> dict[str, Any]:
    """What the next round will cost a document; None stands for infinity."""

    if terms.privacy is None:
        return {"epsilon": None, "spent": finite(report.spent), "afterwards": None}
    return {
        "epsilon": terms.privacy.epsilon,
        "delta": terms.privacy.delta,
        "spent": finite(report.spent),
        "afterwards": finite(report.cost),
        "allowed": finite(holder.account.max_epsilon),
        "warning": delta_warning(terms.privacy.delta, report.epoch.documents),
    }


def _ready_lines(
    holder: Holder, terms: Terms, report: ReadyReport
) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    if holder.broken_list.exists():
        records = holder.broken_list.read_text(encoding="utf-8").splitlines()
        listed = f"listed in {holder.broken_list}"
        lines.append(("skipped", "broken", count(len(records), "record"), listed))
    summed = count(report.samples, "document" if terms.privacy else "sample")
    evaluated = f"{count(report.held_out, 'document')} to evaluate on"
    changed = (
        ""
        if report.changed is None
        else f"{count(report.changed, 'document')} changed since the last one"
    )
    lines += [
        ("ready", holder.domain, summed, evaluated),
        ("epoch", report.epoch.name[:SHOWN_DIGITS], changed),
        ("mode", terms.mode, MODE_SENTENCES[terms.mode]),
    ]
    if terms.privacy is None:
        return [*lines, ("cost", EXACT_COST)]
    total = epsilon_words(report.cost)
    limit = epsilon_words(holder.account.max_epsilon)
    next_round = f"ε {terms.privacy.epsilon:g} for the next round"
    lines.append(("cost", f"{next_round}, ε {total} of {limit} afterwards"))
    if warning := _cost(holder, terms, report)["warning"]:
        lines.append(("warning", warning))
    return lines


def _told_by_two_totals(changed: int | None) -> tuple[str, str]:
    many = (
        "the documents that changed"
        if changed is None
        else count(changed, "changed document")
    )
    return (
        "the difference between the last total and the next reveals",
        f"the sum over {many}, and over the documents of members that joined or left",
    )


def join(folder: HolderFolder) -> None:
    """Run the SuperNode of DIR: it answers rounds until Ctrl-C.

    It runs approved code only.

    If no epoch is open yet, the first one is opened before. What it answers, what it refuses and
    what stands in its way is told as it happens, with times in UTC.
    """
    holder = open_holder(folder)
    if has_left(holder.journal):
        raise InputError(
            f"this holder has left the federation; to come back: ridgeway client renew"
            f" {folder}, and the operator admits {folder / CARD} again"
        )
    if holder.epochs.current() is None:
        terms = _invited_terms(holder)
        step("note", "no epoch is open yet; opening the first one")
        for line in _ready_lines(holder, terms, _open(holder, terms)):
            step(*line)

    def approved() -> tuple[str, ...]:
        return open_holder(folder).settings.bundles

    def waiting() -> list[str]:
        present = open_holder(folder)
        return [*tell_unapproved(present), *tell_unconfirmed(present, gate)]

    settings = NodeSettings(
        folder=folder,
        superlink=holder.settings.address,
        approved=approved,
        proxy=holder.settings.proxy,
        config={"holder": str(folder.resolve())},
    )
    gate = gate_of(holder)
    watch = NoticeWatch(gate, holder.policy.coordinator, waiting)
    with stamped_steps(), stop_on_signal() as stopped, watch as news:
        step(
            "joining",
            holder.settings.address,
            f"domain {holder.domain}",
            f"key {holder.key[:12]}",
        )
        report = JoinReport(holder, step)
        run(
            settings,
            lambda: stopped() or report.has_left,
            lambda words: step("note", words),
            news,
            report.tick,
        )
        step("left", "all processes have stopped")


def leave(folder: HolderFolder, json: Json = False) -> None:
    """Leave the federation of DIR: tell the coordinator, and stop the SuperNode.

    The folder stays as it is, with the journal and what its documents have cost; so does what was
    sent before. To come back, run `ridgeway client renew DIR`, and the operator admits the new
    card under the name of before.
    """
    holder = open_holder(folder)
    if has_left(holder.journal):
        raise InputError("this holder has left already")
    address = holder.settings.address
    gate_of(holder).tell(LEAVE_PATH, leaving(holder))
    holder.journal.append((LEFT, {"coordinator": holder.coordinator}))
    show(
        {"left": address, "spent": holder.account.to_json()},
        ("left", address, "a SuperNode that runs stops within seconds"),
        ("kept", str(folder), "its journal, its keys, and what its documents cost"),
        json=json,
    )


def accept(
    folder: HolderFolder,
    invite: Annotated[Path, option("The invitation folder from the operator.")],
    json: Json = False,
) -> None:
    """Take what the coordinator of DIR has renewed.

    An invitation may bring another authority, other terms, another prior.

    The key that is pinned in DIR must have signed it, and client.toml must agree to the terms. A
    SuperNode that is running takes a new authority from the coordinator itself.
    """
    holder = open_holder(folder)
    before = holder.coordinator
    paper = agreed_invitation(invite)
    check_pinned(holder, paper)
    _check_agreed(holder, paper.terms)
    news = (
        []
        if holder.coordinator == before
        else [f"the coordinator signs with {holder.coordinator} now"]
    )
    news += take_handed_notice(holder, invite)
    news += _take_terms(holder, invite, paper)
    show(
        {"news": news},
        *(("accepted", words) for words in news),
        None if news else ("note", "nothing new"),
        json=json,
    )


def take_handed_notice(holder: Holder, invite: Path) -> list[str]:
    """Take the coordinator's notice from an invitation's folder; returns what is new."""
    if not (invite / NOTICE).is_file():
        raise InputError(
            f"{invite} has no {NOTICE}; ask the operator for an invitation of this"
            " version of Ridgeway"
        )
    return take_notice(
        holder.folder,
        (invite / NOTICE).read_bytes(),
        holder.policy.coordinator,
        datetime.now(UTC),
    )


def check_pinned(holder: Holder, paper: Invite) -> None:
    """Raise InputError unless the coordinator that is pinned here made the invitation."""

    pinned = holder.policy.coordinator
    try:
        check_coordinator(holder.journal, pinned, paper.coordinator, paper.handovers)
    except Refused as error:
        raise InputError(
            f"the invitation is signed by {paper.coordinator[:12]}…, not by the "
            f"pinned coordinator: {error}"
        ) from None


def _check_agreed(holder: Holder, terms: Terms) -> None:

    try:
        check_terms(holder.policy, terms)
    except Refused as error:
        means = (
            f" ({terms.mode} rounds: {MODE_SENTENCES[terms.mode]})"
            if error.code == "mode_not_allowed"
            else ""
        )
        raise InputError(
            "the invitation's terms differ from those in client.toml: "
            f"{error.reason}{means}; if you agree to them, change [policy]"
        ) from None


def _take_terms(holder: Holder, invite: Path, paper: Invite) -> list[str]:
    """Put the invitation, and the prior that it names, in the place of those before; returns what
    is new.
    """

    before = _invited_terms(holder)
    news = []
    if paper.terms.privacy and holder.prior(paper.terms.privacy) is None:
        write_whole(holder.folder / PRIOR, (invite / PRIOR).read_bytes())
        news.append(f"the public prior {paper.terms.privacy.prior[:12]}")
    write_whole(holder.folder / INVITE, (invite / INVITE).read_bytes())
    if paper.terms != before:
        news.append(
            f"other terms, of {paper.terms.mode} rounds:"
            f" {MODE_SENTENCES[paper.terms.mode]}"
        )
    if news:
        news.append(
            "open an epoch under the new terms with: ridgeway client ready "
            f"{holder.folder}"
        )
    return news


def renew(
    folder: HolderFolder,
    identity: Annotated[
        bool,
        option(
            "Rotate the holder's signing key instead.",
            "--identity",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Give the SuperNode of DIR another key, as after a theft.

    The holder's own key stays as it is.

    With --identity it is the other way round: the holder signs with a new key, the key before signs
    that, and all who know the holder know it as the same one. The operator admits the new card
    under the name of before, and the old key is shut out.
    """

    open_holder(folder)
    line = None if identity else renew_node_key(folder)
    link = renew_identity(folder) if identity else None
    facts = {
        "card": str(folder / CARD),
        "node": line,
        "key": Holder(folder).identity.public,
        "before": link.before if link else None,
    }
    signed = (
        ("the key of this holder", f"{link.before[:12]}… signed for", link.after)
        if link
        else ("the key of the SuperNode", str(folder / CARD))
    )
    show(
        facts,
        ("renewed", *signed),
        (
            "next",
            f"send {folder / CARD} to the operator, who runs: ridgeway coordinator "
            "admit … --name as before",
        ),
        ("then", f"restart: ridgeway client join {folder}"),
        json=json,
    )


def releases(folder: HolderFolder, json: Json = False) -> None:
    """List the releases that the holder of DIR has received."""
    holder = open_holder(folder)
    facts = [
        {
            "time": entry.time,
            **entry.facts,
            "folder": str(holder.release_folder(entry.facts["number"])),
        }
        for entry in holder.releases()
    ]
    rows = [
        [
            f"{release['number']:04}",
            release["release"][:12],
            release["time"][:19],
            ", ".join(release["domains"]),
            release["folder"],
        ]
        for release in facts
    ]
    headings = ["release", "id", "stored at (UTC)", "domains", "folder"]
    show(facts, TextTable(headings, rows), json=json)
