"""ridgeway client init, ready, join, accept, renew, status, releases, prune: what a holder in a federation runs.

Knows options and how results are shown; the work is done elsewhere and imported when it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.settings import DEFAULT
from ridgeway.common.cli.options import Fields, Json, SkipBroken
from ridgeway.common.cli.terminal import count, emit_json, progress_bar, stamped_steps, step, stop_on_signal, table

if TYPE_CHECKING:
    from ridgeway.client.round.holder import Holder, HolderSettings
    from ridgeway.common.protocol.cohort import Terms
    from ridgeway.common.protocol.invitation import Invite

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
    from ridgeway.client.deploy.holder_folder import agreed_policy, create_holder
    from ridgeway.client.sums.corpus_places import place_name, real_place
    from ridgeway.common.base.settings import check_domain_name
    from ridgeway.common.encoding.encoder_sources import absolute_source
    from ridgeway.common.protocol.invitation import read_invitation

    check_domain_name(domain)
    _check_sources(corpus, statistics, held_out, scores)
    paper = read_invitation(invite)
    _check_key(paper, coordinator_key)
    same = _check_bundle(paper, approve_bundle)
    named = {"statistics": statistics, "held_out": held_out, "scores": scores}
    settings = _settings(
        domain=domain,
        corpus=tuple(place_name(real_place(path)) for path in corpus or ()),
        **{name: str(path.resolve()) for name, path in named.items() if path},
        text_field=text_field,
        holdout=holdout,
        skip_broken=skip_broken,
        encoder=absolute_source(encoder) if encoder else None,
        address=paper.address,
        bundles=(paper.bundle,),
        policy=agreed_policy(paper.terms, paper.coordinator),
    )
    _show_made(create_holder(folder, settings, _papers(invite, paper)), paper, same, json)


def _papers(invite: Path, paper: Invite) -> dict[str, bytes]:
    """What a holder keeps of an invitation, by its place in the holder's folder."""
    from ridgeway.client.round.private_sums import FOLDER, PRIOR
    from ridgeway.common.protocol.invitation import AUTHORITY, INVITE

    papers = {name: (invite / name).read_bytes() for name in (INVITE, AUTHORITY)}
    if paper.terms.privacy and (invite / PRIOR).is_file():
        papers[f"{FOLDER}/{PRIOR}"] = (invite / PRIOR).read_bytes()
    return papers


def _settings(**options: Any) -> HolderSettings:
    """The settings that options name; what cannot be used is told by the option's name."""
    from pydantic import ValidationError

    from ridgeway.client.round.holder import HolderSettings
    from ridgeway.common.base.settings_file import plain_reason

    try:
        return HolderSettings(**options)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"--{first['loc'][0]}: {plain_reason(first['msg'])}") from None


def _show_made(made: Holder, paper: Invite, same: bool, json: bool) -> None:
    """What was made, what was agreed to, and what to do next. same: the bundle is the code of this installation."""
    from ridgeway.client.round.holder import CARD, SETTINGS

    folder, key, terms = made.folder, made.identity.public, paper.terms
    if json:
        emit_json({"folder": str(folder), "card": str(folder / CARD), "key": key, "bundle": paper.bundle})
        return
    step("made", str(folder), f"domain {made.domain}", f"key {key[:12]}")
    step("pinned", f"coordinator {paper.coordinator}")
    step("bundle", paper.bundle, "the code of this very installation" if same else "approved by you")
    step("agreed", f"encoder {terms.encoder_name}", str(terms.sampling.sampling), terms.mode)
    if terms.privacy:
        words = f"at most ε {terms.privacy.epsilon:g} a round", f"{made.settings.policy.max_epsilon:g} in all"
        step("privacy", terms.privacy.mode, *words, f"δ {terms.privacy.delta:g}")
    _warn(paper)
    step("next", f"read {folder / SETTINGS}, and hand {folder / CARD} to the operator, who admits you")
    step("then", f"ridgeway client ready {folder}", f"ridgeway client join {folder}")
    if terms.mode == "masked":
        step("and", f"pin the other holders, by their cards or by a later invitation: ridgeway client pin {folder} …")


def _check_sources(
    corpus: list[Path] | None, statistics: Path | None, held_out: Path | None, scores: Path | None
) -> None:
    if (corpus is None) == (statistics is None):
        raise InputError("name the text with --corpus, or sums made ahead with --statistics, one of them")
    if held_out is not None and statistics is None:
        raise InputError("--held-out belongs to --statistics; with a corpus, documents are held out by themselves")
    from ridgeway.client.sums.corpus_places import is_url

    for path in (*(corpus or ()), *filter(None, (statistics, held_out, scores))):
        if not is_url(path) and not path.exists():
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
    if paper.terms.weighting == "tokens" and not paper.terms.privacy:
        step("warning", "weighting by tokens tells how large your corpus is")


def _check_key(paper: Invite, given: str | None) -> None:
    """Refuse an invitation by another coordinator than the one whose key was given, if one was."""
    from ridgeway.common.base.identity import HandOvers, public_key

    if given is not None and HandOvers().told(paper.handovers).newest(public_key(given)) != paper.coordinator:
        raise InputError(
            f"the invitation is by {paper.coordinator[:12]}…, not by the key you gave; ask the operator which is right"
        )


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
    from ridgeway.common.privacy.document_bound import DocumentSums
    from ridgeway.common.protocol.invitation import INVITE, Invite, read_paper

    holder = open_holder(folder)
    terms = read_paper(folder / INVITE, Invite).terms
    with stop_on_signal() as stopped, progress_bar(holder.domain) as progress:
        try:
            made = holder.sums(terms, Watch(progress, stopped))
        except Interrupted:
            raise KeyboardInterrupt("interrupted; what was summed is kept, and the same command goes on") from None
    held_out = len(holder.held_out(terms).lengths)
    samples = made.documents if isinstance(made, DocumentSums) else made.statistics.mass
    cost = _cost(holder, terms, samples + held_out) if terms.privacy else None
    if json:
        facts = {"domain": holder.domain, "source": made.content, "samples": samples, "held_out": held_out}
        emit_json(facts | ({"privacy": cost} if cost else {}))
        return
    if holder.broken_list.exists():
        broken = count(len(holder.broken_list.read_text(encoding="utf-8").splitlines()), "record")
        step("skipped", "broken", broken, f"listed in {holder.broken_list}")
    what = "document" if cost else "sample"
    step("ready", holder.domain, count(samples, what), f"{count(held_out, 'document')} to evaluate on")
    if cost:
        step("cost", f"ε {cost['next']:.3g} for a round now", f"{cost['spent']:.3g} of {cost['allowed']:g} are spent")
        if cost["warning"]:
            step("warning", cost["warning"])


def _cost(holder: Holder, terms: Terms, documents: int) -> dict[str, Any]:
    """What the next round would cost a document, beside what was spent and what may be."""
    from ridgeway.common.privacy.privacy_settings import delta_warning

    assert terms.privacy is not None
    now = holder.noisy.epsilon_spent()
    facts = {"spent": now, "allowed": holder.settings.policy.max_epsilon, "epsilon": terms.privacy.epsilon}
    one_more = holder.noisy.epsilon_with("statistics", terms.privacy, holder.settings.holdout)
    after = now if holder.is_paid(terms) else one_more
    return facts | {"next": after - now, "warning": delta_warning(terms.privacy.delta, documents)}


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
        emit_json({**facts, "privacy": holder.noisy.account(), "fork": fork(folder), **lists})
        return
    step("holder", holder.domain, f"key {holder.identity.public[:12]}", f"of {holder.settings.address}")
    for each in _handovers(holder):
        words = f"{each['before'][:12]}… handed over to {each['after'][:12]}…"
        if each["fork"]:
            step("warning", each["whose"], words, "a second time, so it counts for nothing here; ask its owner")
        else:
            step("key", each["whose"], words, each["time"][:10])
    step("release", f"{holder.newest:04}" if holder.newest else "none so far")
    account = holder.noisy.account()
    if account["vectors"]:
        left = max(0.0, account["allowed"] - account["spent"])
        step(
            "spent",
            f"ε {account['spent']:.3g} of {account['allowed']:g}",
            f"{left:.3g} left",
            f"δ {account['delta']:g}",
        )
    for words in tell_unapproved(folder, approved):
        step("waiting", words)
    warn_of_fork(holder)
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


def warn_of_fork(holder: Holder) -> None:
    from ridgeway.client.round.kept_log import FORKED, fork

    if found := fork(holder.folder):
        step("warning", str(found["reason"]), f"the proof is {holder.folder / FORKED}")
        step("next", "show it to the other members; to answer this coordinator again, move the folder log away")


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
    from ridgeway.client.deploy.holder_folder import holder_leftovers, prune_holder
    from ridgeway.common.cli.terminal import show_leftovers

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


COMMANDS = (init, ready, join, accept, renew, status, releases, prune)
