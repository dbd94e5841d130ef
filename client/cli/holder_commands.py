"""ridgeway client init, ready, join, status, releases, bundle, pin, unpin, roster: what a holder in a federation runs.

Knows options and how results are shown; the work is done elsewhere and imported when it is needed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.settings import DEFAULT
from ridgeway.common.cli.options import Fields, Json, SkipBroken
from ridgeway.common.cli.terminal import count, emit_json, progress_bar, stamped_steps, step, stop_on_signal, table

if TYPE_CHECKING:
    from ridgeway.client.round.holder import Holder
    from ridgeway.common.protocol.invitation import Invite, Place

SMALL_WINDOW_TOKENS = 16
"""Below this a holder is warned."""

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The holder's folder.")]


def init(
    folder: Folder,
    invite: Annotated[Path, typer.Option(help="The folder that the operator handed over.")],
    domain: Annotated[str, typer.Option(help="The domain that the text belongs to.")],
    corpus: Annotated[
        list[Path] | None, typer.Option(help="A file or folder with the domain's text; may be given again.")
    ] = None,
    statistics: Annotated[
        Path | None, typer.Option(help="Instead of a corpus: sums made ahead with `client prepare`.")
    ] = None,
    held_out: Annotated[
        Path | None, typer.Option(help="With --statistics: documents made with `client held-out`.")
    ] = None,
    scores: Annotated[
        Path | None, typer.Option(help="Scores of experts on prompts of the domain, whose sums rounds may learn.")
    ] = None,
    text_field: Fields = "text",
    holdout: Annotated[float, typer.Option(help="Share of documents kept for evaluation.")] = DEFAULT.holdout,
    skip_broken: SkipBroken = 0.0,
    encoder: Annotated[
        str | None, typer.Option(help="Where this machine finds the encoder, if not under its own name.")
    ] = None,
    coordinator_key: Annotated[
        str | None, typer.Option(help="The coordinator's key as you know it: refuse an invitation by any other.")
    ] = None,
    approve_bundle: Annotated[
        str | None, typer.Option(help="Approve a bundle that is not the code of this installation, by its SHA-256.")
    ] = None,
    json: Json = False,
) -> None:
    """Make the holder's folder DIR from an invitation: an identity, a card for the operator, client.toml."""
    from pydantic import ValidationError

    from ridgeway.client.deploy.holder_folder import create_holder
    from ridgeway.client.round.holder import CARD, SETTINGS, HolderSettings
    from ridgeway.client.round.policy import Policy
    from ridgeway.common.base.identity import HandOvers, public_key
    from ridgeway.common.base.settings import check_domain_name
    from ridgeway.common.base.settings_file import plain_reason
    from ridgeway.common.encoding.encoder_sources import absolute_source
    from ridgeway.common.protocol.invitation import AUTHORITY, INVITE, read_invitation

    check_domain_name(domain)
    _check_sources(corpus, statistics, held_out, scores)
    paper = read_invitation(invite)
    known = HandOvers().told(paper.handovers)
    if coordinator_key is not None and known.newest(public_key(coordinator_key)) != paper.coordinator:
        raise InputError(
            f"the invitation is by {paper.coordinator[:12]}…, not by the key you gave; ask the operator which is right"
        )
    same = _check_bundle(paper, approve_bundle)
    try:
        settings = HolderSettings(
            domain=domain,
            corpus=tuple(str(path.resolve()) for path in corpus or ()),
            statistics=str(statistics.resolve()) if statistics else None,
            held_out=str(held_out.resolve()) if held_out else None,
            scores=str(scores.resolve()) if scores else None,
            text_field=text_field,
            holdout=holdout,
            skip_broken=skip_broken,
            encoder=absolute_source(encoder) if encoder else None,
            address=paper.address,
            bundles=(paper.bundle,),
            policy=Policy(  # what the holder agrees to by taking the invitation up, and no more
                coordinator=paper.coordinator,
                encoders=(paper.terms.encoder,),
                weightings=(paper.terms.weighting,),
                **paper.terms.sampling.sampling.to_json(),
                require_masking=paper.terms.mode == "masked",
            ),
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"--{first['loc'][0]}: {plain_reason(first['msg'])}") from None
    made = create_holder(folder, settings, {name: (invite / name).read_bytes() for name in (INVITE, AUTHORITY)})
    if json:
        key = made.identity.public
        emit_json({"folder": str(folder), "card": str(folder / CARD), "key": key, "bundle": paper.bundle})
        return
    step("made", str(folder), f"domain {domain}", f"key {made.identity.public[:12]}")
    step("pinned", f"coordinator {paper.coordinator}")
    step("bundle", paper.bundle, "the code of this very installation" if same else "approved by you")
    step("agreed", f"encoder {paper.terms.encoder_name}", str(paper.terms.sampling.sampling), paper.terms.mode)
    _warn(paper)
    step("next", f"read {folder / SETTINGS}, and hand {folder / CARD} to the operator, who admits you")
    step("then", f"ridgeway client ready {folder}", f"ridgeway client join {folder}")
    if paper.terms.mode == "masked":
        step("and", f"pin the other holders, by their cards or by a later invitation: ridgeway client pin {folder} …")


def _check_sources(
    corpus: list[Path] | None, statistics: Path | None, held_out: Path | None, scores: Path | None
) -> None:
    if (corpus is None) == (statistics is None):
        raise InputError("name the text with --corpus, or sums made ahead with --statistics, one of them")
    if held_out is not None and statistics is None:
        raise InputError("--held-out belongs to --statistics; with a corpus, documents are held out by themselves")
    for path in (*(corpus or ()), *filter(None, (statistics, held_out, scores))):
        if not path.exists():
            raise InputError(f"there is no {path}")


def _warn(paper: Invite) -> None:
    """Say plainly what unusual terms would give away."""
    sampling = paper.terms.sampling
    apart = max(sampling.window, sampling.stride)
    smallest = min(apart, sampling.max_tokens or apart)
    if smallest < SMALL_WINDOW_TOKENS:
        words = f"a window for every {count(smallest, 'token')} gives away how often tokens occur in your text"
        step("warning", words, "ask the operator for larger ones")
    if paper.terms.mode == "clear":
        step("warning", "statistics travel in the clear: the coordinator will see yours", "see `ridgeway client audit`")
    if paper.terms.weighting == "tokens":
        step("warning", "weighting by tokens tells how large your corpus is")


def _check_bundle(paper: Invite, approved: str | None) -> bool:
    """Whether the bundle is this installation's own code; any other must be approved by its hash."""
    from ridgeway.common.deploy.bundle import installed_sha256

    same = installed_sha256() == paper.bundle
    if not same and approved != paper.bundle:
        raise InputError(
            f"rounds would run the bundle {paper.bundle} on this machine, which is not the code of your installation; "
            "install the coordinator's version of Ridgeway, or, if you have looked at it, name it with --approve-bundle"
        )
    return same


def ready(folder: Folder, json: Json = False) -> None:
    """Sum the corpus of DIR ahead, so that a round need not wait for it. Unchanged files are not read again."""
    from ridgeway.client.sums.prepare import Interrupted, Watch
    from ridgeway.common.protocol.invitation import INVITE, Invite, read_paper

    holder = open_holder(folder)
    terms = read_paper(folder / INVITE, Invite).terms
    with stop_on_signal() as stopped, progress_bar(holder.domain) as progress:
        try:
            made = holder.ready(terms, Watch(progress, stopped))
        except Interrupted:
            raise KeyboardInterrupt("interrupted; what was summed is kept, and the same command goes on") from None
    held_out = len(holder.held_out(terms).lengths)
    if json:
        emit_json(
            {"domain": holder.domain, "source": made.content, "samples": made.statistics.mass, "held_out": held_out}
        )
        return
    if holder.broken_list.exists():
        broken = count(len(holder.broken_list.read_text(encoding="utf-8").splitlines()), "record")
        step("skipped", "broken", broken, f"listed in {holder.broken_list}")
    step("ready", holder.domain, count(made.statistics.mass, "sample"), f"{count(held_out, 'document')} to evaluate on")


def join(folder: Folder) -> None:
    """Run the SuperNode of DIR: it answers rounds until you stop it with Ctrl-C, and runs only approved code.

    What it answers, what it refuses and what stands in its way is told as it happens, with times in UTC.
    """
    from ridgeway.client.deploy.join_report import JoinReport
    from ridgeway.client.deploy.notices import Gate, NoticeWatch
    from ridgeway.client.deploy.supernode import NodeSettings, run

    holder = open_holder(folder)

    def approved() -> tuple[str, ...]:
        return open_holder(folder).settings.bundles

    settings = NodeSettings(
        folder=folder,
        superlink=holder.settings.address,
        approved=approved,
        proxy=holder.settings.proxy,
        config={"holder": str(folder.resolve())},
    )
    gate = Gate(folder, holder.settings.address, holder.settings.proxy)
    watch = NoticeWatch(gate, holder.settings.policy.coordinator, approved)
    with stamped_steps(), stop_on_signal() as stopped, watch as news:
        step("joining", holder.settings.address, f"domain {holder.domain}", f"key {holder.identity.public[:12]}")
        run(settings, stopped, lambda words: step("note", words), news, JoinReport(holder, step).tick)
        step("left", "every process has ended")


def accept(
    folder: Folder,
    invite: Annotated[Path, typer.Option(help="The folder that the operator handed over.")],
    json: Json = False,
) -> None:
    """Take from an invitation what the coordinator of DIR has renewed since: the authority of its certificates.

    The key that is pinned in DIR must have signed it. A SuperNode that is running takes it from the coordinator itself;
    this is for one that could not.
    """
    from datetime import UTC, datetime

    from ridgeway.client.deploy.notices import take_notice
    from ridgeway.common.deploy.notice import NOTICE

    holder = open_holder(folder)
    if not (invite / NOTICE).is_file():
        raise InputError(f"{invite} has no {NOTICE}; ask the operator for an invitation of this version of Ridgeway")
    news = take_notice(folder, (invite / NOTICE).read_bytes(), holder.settings.policy.coordinator, datetime.now(UTC))
    if json:
        emit_json({"news": news})
        return
    for words in news or ["nothing is new; what stands there was taken already"]:
        step("accepted" if news else "note", words)


def renew(
    folder: Folder,
    identity: Annotated[
        bool, typer.Option("--identity", help="Instead: give the holder another key to sign with, and hand over to it.")
    ] = False,
    json: Json = False,
) -> None:
    """Give the SuperNode of DIR another key to log in with, as after a theft; the holder's own key stays as it is.

    With --identity it is the other way round: the holder signs with a new key, the key before signs that, and all who
    know the holder know it as the same one. The operator admits the new card under the name of before, and the old key
    is shut out.
    """
    from ridgeway.client.deploy.holder_folder import renew_identity, renew_node_key
    from ridgeway.client.round.holder import CARD, Holder

    open_holder(folder)
    line = None if identity else renew_node_key(folder)
    link = renew_identity(folder) if identity else None
    if json:
        key = Holder(folder).identity.public
        emit_json({"card": str(folder / CARD), "node": line, "key": key, "before": link.before if link else None})
        return
    if link:
        step("renewed", "the key of this holder", f"{link.before[:12]}… signed for", link.after)
    else:
        step("renewed", "the key of the SuperNode", str(folder / CARD))
    step("next", f"hand {folder / CARD} to the operator, who runs: ridgeway coordinator admit … --name as before")
    step("then", f"start again: ridgeway client join {folder}")


def status(folder: Folder, json: Json = False) -> None:
    """What the holder of DIR was asked for and sent, and when."""
    from ridgeway.client.deploy.notices import tell_unapproved, unapproved
    from ridgeway.client.round.kept_log import fork

    holder = open_holder(folder)
    approved = holder.settings.bundles
    sent, counted = (holder.journal.entries(kind) for kind in ("sent", "counted"))
    if json:
        lists = {
            name: [{"time": entry.time, **entry.facts} for entry in entries]
            for name, entries in (("sent", sent), ("counted", counted))
        }
        facts = {"domain": holder.domain, "key": holder.identity.public, "release": holder.newest}
        facts |= {"coordinator": holder.coordinator, "handovers": _handovers(holder)}
        facts |= {"bundles": approved, "unapproved": [each.sha256 for each in unapproved(folder, approved)]}
        emit_json({**facts, "fork": fork(folder), **lists})
        return
    step("holder", holder.domain, f"key {holder.identity.public[:12]}", f"of {holder.settings.address}")
    for each in _handovers(holder):
        words = f"{each['before'][:12]}… handed over to {each['after'][:12]}…"
        if each["fork"]:
            step("warning", each["whose"], words, "a second time, so it counts for nothing here; ask its owner")
        else:
            step("key", each["whose"], words, each["time"][:10])
    step("release", f"{holder.newest:04}" if holder.newest else "none so far")
    for words in tell_unapproved(folder, approved):
        step("waiting", words)
    _warn_of_fork(holder)
    rows_ = [
        [
            entry.time[:19],
            str(entry.facts.get("number") or "–"),
            str(entry.facts["round"])[:8],
            str(entry.facts["kind"]).replace("_", " "),
            str(entry.facts.get("lot", "")),
            f"{entry.facts['bytes']:,}",
            str(entry.facts.get("reason", "")),
        ]
        for entry in sent
    ]
    table(["sent at (UTC)", "round", "nonce", "what", "of", "bytes", "why not"], rows_, numbers_from=7)
    if counted:
        asked = [
            [time[:19], facts["round"][:8], facts["total"][:8], _counted(facts), str(len(facts["candidates"]))]
            for time, facts in ((entry.time, entry.facts) for entry in counted)
        ]
        table(["counted at (UTC)", "round", "total", "what", "candidates"], asked, numbers_from=4)


def _handovers(holder: Holder) -> list[dict[str, Any]]:
    """The keys that took over from others, whose they are, and when this holder met that."""
    from ridgeway.client.round.known_keys import FORKED_KEY, HANDED_OVER
    from ridgeway.client.round.roster import load_roster

    known = holder.handovers
    whose = {known.owner(place.key): place.name for place in load_roster(holder.folder)}
    whose |= {known.owner(holder.identity.public): "(you)"}
    whose |= {known.owner(holder.settings.policy.coordinator): "the coordinator"}
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


def _counted(facts: Mapping[str, Any]) -> str:
    """What was counted in answer to a question."""
    return f"{facts['lot']} and reliability" if facts.get("calibrated") and facts["lot"] == "scores" else facts["lot"]


def releases(folder: Folder, json: Json = False) -> None:
    """The releases that the holder of DIR received, verified and stored."""
    holder = open_holder(folder)
    received = holder.releases()
    if json:
        emit_json(
            [
                {"time": entry.time, **entry.facts, "folder": str(holder.release_folder(entry.facts["number"]))}
                for entry in received
            ]
        )
        return
    rows = [
        [
            f"{entry.facts['number']:04}",
            entry.facts["release"][:12],
            entry.time[:19],
            ", ".join(entry.facts["domains"]),
            str(holder.release_folder(entry.facts["number"])),
        ]
        for entry in received
    ]
    table(["release", "id", "stored at (UTC)", "domains", "folder"], rows, numbers_from=5)


def bundle(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="A holder's folder: compare with what it has approved.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the bundle's files to this new folder, to read or compare them.")
    ] = None,
    json: Json = False,
) -> None:
    """List the code that a round runs on this machine: every file of the bundle, its lines and its SHA-256.

    The bundle is the newest that the coordinator of DIR has announced and DIR has not approved, fetched from it and
    held against its hash, with what it changes beside the one that is approved; else that of this installation. It
    holds the rooms that a round needs and nothing else. A SuperNode runs it only if its hash stands in the holder's
    client.toml.
    """
    from ridgeway.common.deploy.bundle import (
        bundle_changes,
        bundle_sha256,
        installed_bundle,
        unpacked_bundle,
        write_files,
    )

    shown, earlier = _bundles(open_holder(folder)) if folder is not None else (installed_bundle(), None)
    digest, files = bundle_sha256(shown), unpacked_bundle(shown)
    approved = None if folder is None else digest in open_holder(folder).settings.bundles
    changes = bundle_changes(unpacked_bundle(earlier), files) if earlier else []
    if out is not None:
        write_files(out, files)
    listed = [
        {"name": name, "lines": content.count(b"\n"), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in files.items()
    ]
    lines = sum(content.count(b"\n") for content in files.values())
    if json:
        told = [asdict(each) for each in changes]
        emit_json({"bundle": digest, "approved": approved, "lines": lines, "files": listed, "changes": told})
    else:
        table(["file", "lines", "SHA-256"], [list(map(str, entry.values())) for entry in listed])
        if earlier:
            rows = [[each.change, each.name, f"+{each.added}", f"-{each.removed}", each.sha256] for each in changes]
            table([f"beside {bundle_sha256(earlier)[:12]}", "file", "lines", "", "SHA-256"], rows, numbers_from=2)
        step("bundle", digest, count(len(files), "file"), f"{lines:,} lines")
        if out is not None:
            step("written", str(out))
    if approved is False:
        raise InputError(
            f"the client.toml in {folder} does not approve the bundle {digest}, so no round with it runs there; if you "
            f"have read what changed, run: ridgeway client approve {folder} {digest}"
        )


def _bundles(holder: Holder) -> tuple[bytes, bytes | None]:
    """The bundle to look at, and the newest approved one that can still be had, if that is another."""
    from ridgeway.client.deploy.notices import Gate, announced_bundle, kept_notice, unapproved
    from ridgeway.common.deploy.bundle import installed_bundle, installed_sha256

    settings, notice = holder.settings, kept_notice(holder.folder)
    waiting = unapproved(holder.folder, settings.bundles)
    if not waiting:
        return installed_bundle(), None
    gate = Gate(holder.folder, settings.address, settings.proxy)
    shown = announced_bundle(gate, waiting[0].sha256)
    known = [*(each.sha256 for each in notice.bundles), installed_sha256()] if notice else []
    earlier = next((digest for digest in known if digest in settings.bundles), None)
    return shown, announced_bundle(gate, earlier) if earlier else None


def approve(
    folder: Folder,
    digest: Annotated[
        str | None,
        typer.Argument(metavar="[HASH]", help="The bundle; left out: the newest that the coordinator has announced."),
    ] = None,
    json: Json = False,
) -> None:
    """Allow a bundle to run in DIR, beside those that are allowed already. `client bundle DIR` shows what it changes.

    A SuperNode that is running takes this up by itself. To take an approval back, remove the hash from `bundles` in
    client.toml.
    """
    from ridgeway.client.deploy.holder_folder import approve_bundle
    from ridgeway.client.deploy.notices import unapproved

    holder = open_holder(folder)
    waiting = [each.sha256 for each in unapproved(folder, holder.settings.bundles)]
    if digest is None:
        if not waiting:
            raise InputError(
                "the coordinator has announced no bundle that is not approved here; name one by its SHA-256"
            )
        chosen = waiting[0]
    else:
        found = [each for each in waiting if len(digest) >= 8 and each.startswith(digest.lower())]
        chosen = found[0] if len(found) == 1 else digest.lower()
    if not re.fullmatch("[0-9a-f]{64}", chosen):
        raise InputError(f"{digest!r} is not the hash of a bundle that was announced; give all its 64 digits")
    new = chosen not in holder.settings.bundles
    if new:
        approve_bundle(folder, chosen)
    if json:
        emit_json({"approved": chosen, "new": new})
        return
    step("approved", chosen, "" if new else "as before")


# Whom a holder takes part with in masked rounds


def pin(
    folder: Folder,
    cards: Annotated[
        list[Path] | None, typer.Argument(metavar="[HOLDER.PUB]...", help="Cards that other holders handed over.")
    ] = None,
    invite: Annotated[
        Path | None, typer.Option(help="Take the members from an invitation of the operator instead.")
    ] = None,
    json: Json = False,
) -> None:
    """Pin the holders that the holder of DIR takes part with: from their own cards, or from the operator's invitation.

    In a masked round the other members are who keeps the sums hidden. A coordinator that made members up could see
    what is left, so their keys must be known by another way: have the cards from the holders themselves, or compare
    what `roster` prints with them.
    """
    from ridgeway.client.round.known_keys import check_members, take_handovers
    from ridgeway.client.round.roster import pin as keep
    from ridgeway.common.protocol.invitation import Card, Place, read_paper

    if bool(cards) == (invite is not None):
        raise InputError("name the cards of other holders, or an invitation with --invite, one of them")
    holder = open_holder(folder)
    if invite is not None:
        paper = _read_members(holder, invite)
        places, handovers = list(paper.roster), paper.handovers
    else:
        papers = [read_paper(path, Card) for path in cards or ()]
        places = [Place(name=card.domain, domain=card.domain, key=card.key) for card in papers]
        handovers = tuple(link for card in papers for link in card.handovers)
    known = take_handovers(holder.journal, handovers, [place.key for place in places])
    own = known.owner(holder.identity.public)
    others = [place for place in places if known.owner(place.key) != own]
    check_members(known, holder.pinned_keys, [place.key for place in others])
    _show_roster(holder, keep(folder, others, known.owner), json)
    if invite is not None and not json:
        step("note", "these keys are the operator's word; compare them with the holders by another way")


def _read_members(holder: Holder, folder: Path) -> Invite:
    from ridgeway.client.round.known_keys import check_coordinator
    from ridgeway.common.base.errors import Refused
    from ridgeway.common.protocol.invitation import INVITE, Invite, read_paper

    paper = read_paper(folder / INVITE, Invite)
    try:
        check_coordinator(holder.journal, holder.settings.policy.coordinator, paper.coordinator, paper.handovers)
    except Refused as error:
        raise InputError(
            f"the invitation is by {paper.coordinator[:12]}…, not by the coordinator that is pinned here: {error}"
        ) from None
    if not paper.roster:
        raise InputError(
            "the invitation names no members yet; ask the operator for one that was made after holders were admitted"
        )
    return paper


def unpin(
    folder: Folder,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key of the member, or the first digits of it.")],
    json: Json = False,
) -> None:
    """Take a member off the roster of DIR: no masked round with it from now on."""
    from ridgeway.client.round.roster import load_roster
    from ridgeway.client.round.roster import unpin as take_off

    holder = open_holder(folder)
    known = holder.handovers
    found = [
        place.key
        for place in load_roster(folder)
        if any(each.startswith(key.lower()) for each in known.keys(place.key))
    ]
    if len(found) != 1 or len(key) < 8:
        raise InputError(f"{key!r} names {len(found)} pinned keys; give at least 8 of the first digits of one")
    _show_roster(holder, take_off(folder, found), json)


def roster(
    folder: Folder,
    log: Annotated[bool, typer.Option("--log", help="Show the masked sums that the coordinator has opened.")] = False,
    json: Json = False,
) -> None:
    """The members that the holder of DIR has pinned; with --log the sums that were opened, to compare with theirs.

    Every member is shown the same log. Compare the head with other members by another way: two heads of one number
    that differ are proof that the coordinator has told two stories.
    """
    from ridgeway.client.round.roster import load_roster

    holder = open_holder(folder)
    if log:
        _show_log(holder, json)
        return
    _show_roster(holder, load_roster(folder), json)


def _show_log(holder: Holder, json: bool) -> None:
    from ridgeway.client.round.kept_log import fork, kept_log, unlogged_sums
    from ridgeway.client.round.roster import load_roster
    from ridgeway.common.protocol.opened_log import hashes

    log, missing = kept_log(holder.folder), unlogged_sums(holder)
    entries = log.entries if log else ()
    chain = list(zip(entries, hashes(entries), strict=True))
    if json:
        head = log.head.model_dump(mode="json") if log else None
        rows = [{**entry.model_dump(mode="json"), "hash": hash_} for entry, hash_ in chain]
        emit_json({"entries": rows, "head": head, "unlogged": missing, "fork": fork(holder.folder)})
        return
    called = {place.key: place.name for place in load_roster(holder.folder)} | {holder.identity.public: "(you)"}
    names = {key: name for first, name in called.items() for key in holder.handovers.keys(first)}
    cells = [
        [
            *(str(entry.number), entry.round[:8], entry.lot, entry.terms[:12], entry.opened[:12], hash_[:12]),
            ", ".join(sorted(names.get(key, key[:12]) for key, _, _ in entry.parts)),
        ]
        for entry, hash_ in chain
    ]
    table(["entry", "round", "sum of", "terms", "opened", "hash", "members"], cells, numbers_from=7)
    if log:
        step("head", f"{log.head.number}", log.head.hash, "compare it with other members")
    for each in missing:
        step("note", f"{each['lot']} of round {each['round'][:8]}", "opened with your help, and not in the log yet")
    _warn_of_fork(holder)


def _warn_of_fork(holder: Holder) -> None:
    from ridgeway.client.round.kept_log import FORKED, fork

    if found := fork(holder.folder):
        step("warning", str(found["reason"]), f"the proof is {holder.folder / FORKED}")
        step("next", "show it to the other members; to answer this coordinator again, move the folder log away")


def _show_roster(holder: Holder, places: tuple[Place, ...], json: bool) -> None:
    """The pinned members by the keys that they have now, and the pinned ones where these are others."""
    newest = holder.handovers.newest
    if json:
        emit_json([{**place.model_dump(mode="json"), "key": newest(place.key)} for place in places])
        return
    step("pinned", count(len(places), "other holder"), f"in {holder.folder / 'roster.json'}")
    rows = [
        [place.name, place.domain, key, f"{place.key[:12]}…" if key != place.key else ""]
        for place, key in ((place, newest(place.key)) for place in places)
    ]
    renewed = any(row[3] for row in rows)
    headings = ["holder", "domain", "key", *(["handed over from"] if renewed else [])]
    table(headings, [row[: len(headings)] for row in rows], numbers_from=len(headings))


def prune(
    folder: Folder,
    keep: Annotated[int, typer.Option(help="How many releases stay, the newest ones.", min=1)] = 4,
    remove: Annotated[bool, typer.Option("--remove", help="Take it away; without this it is only shown.")] = False,
    json: Json = False,
) -> None:
    """Show what DIR has gathered over the years and can do without, and with --remove take it away.

    The journal and the log of opened sums, by which sums are judged and what left is proved, always stay; so do the
    keys, earlier ones too.
    """
    from ridgeway.client.deploy.holder_prune import holder_leftovers, prune_holder
    from ridgeway.common.cli.leftovers_table import show_leftovers

    holder = open_holder(folder)
    rows = [each.row() for each in holder_leftovers(holder, keep)]
    if remove:
        prune_holder(holder, keep)
    show_leftovers(rows, removed=remove, json=json)


def open_holder(folder: Path) -> Holder:
    from ridgeway.client.round.holder import SETTINGS, Holder

    if not (folder / SETTINGS).is_file():
        raise InputError(f"{folder} is not a holder's folder; make one with: ridgeway client init {folder} --invite …")
    return Holder(folder)


COMMANDS = (init, ready, join, accept, renew, status, releases, pin, unpin, roster, bundle, approve, prune)
