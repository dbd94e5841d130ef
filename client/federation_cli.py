"""ridgeway client init, ready, join, status, releases: what a holder in a federation runs.

Knows options and how results are shown; the work is done elsewhere and imported when it is needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from common.cli import Fields, Json
from common.errors import InputError
from common.settings import DEFAULT
from common.terminal import count, emit_json, progress_bar, step, stop_on_signal, table

if TYPE_CHECKING:
    from client.holder import Holder
    from client.policy import Policy
    from common.invite import Invite

SMALL_WINDOW = 16
"""Below this a holder is warned."""

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The holder's folder.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands of a federation to `ridgeway client`."""
    for command in (init, ready, join, status, releases):
        app.command(command.__name__)(command)


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
    text_field: Fields = "text",
    holdout: Annotated[float, typer.Option(help="Share of documents kept for evaluation.")] = DEFAULT.holdout,
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

    from client.holder import SETTINGS, Settings
    from client.setup import CARD, create_holder
    from common.encoder_sources import absolute_source
    from common.invite import AUTHORITY, INVITE, Invite, read_paper
    from common.statistics_file import check_domain_name
    from common.toml import plain_reason

    check_domain_name(domain)
    _check_sources(corpus, statistics, held_out)
    paper = read_paper(invite / INVITE, Invite)
    _check_key(paper, coordinator_key)
    same = _check_bundle(paper, approve_bundle)
    try:
        settings = Settings(
            domain=domain,
            corpus=tuple(str(path.resolve()) for path in corpus or ()),
            statistics=str(statistics.resolve()) if statistics else None,
            held_out=str(held_out.resolve()) if held_out else None,
            text_field=text_field,
            holdout=holdout,
            encoder=absolute_source(encoder) if encoder else None,
            address=paper.address,
            bundles=(paper.bundle,),
            policy=_policy(paper),
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
    step("next", f"read {folder / SETTINGS}, hand {folder / CARD} to the operator, then: ridgeway client join {folder}")
    if paper.terms.mode == "masked":
        step("and", f"pin the other holders, by their cards or by a later invitation: ridgeway client pin {folder} …")


def _check_sources(corpus: list[Path] | None, statistics: Path | None, held_out: Path | None) -> None:
    if (corpus is None) == (statistics is None):
        raise InputError("name the text with --corpus, or sums made ahead with --statistics, one of them")
    if held_out is not None and statistics is None:
        raise InputError("--held-out belongs to --statistics; with a corpus, documents are held out by themselves")
    for path in (*(corpus or ()), *filter(None, (statistics, held_out))):
        if not path.exists():
            raise InputError(f"there is no {path}")


def _policy(paper: Invite) -> Policy:
    """What the holder agrees to by taking the invitation up, and no more."""
    from client.policy import Policy

    return Policy(
        coordinator=paper.coordinator,
        encoders=(paper.terms.encoder,),
        weightings=(paper.terms.weighting,),
        **paper.terms.sampling.sampling.to_json(),
        require_masking=paper.terms.mode == "masked",
    )


def _warn(paper: Invite) -> None:
    """Say plainly what unusual terms would give away."""
    sampling = paper.terms.sampling
    apart = max(sampling.window, sampling.stride)
    smallest = min(apart, sampling.max_tokens or apart)
    if smallest < SMALL_WINDOW:
        words = f"a window for every {count(smallest, 'token')} gives away how often tokens occur in your text"
        step("warning", words, "ask the operator for larger ones")
    if paper.terms.mode == "clear":
        step("warning", "statistics travel in the clear: the coordinator will see yours", "see `ridgeway client audit`")
    if paper.terms.weighting == "tokens":
        step("warning", "weighting by tokens tells how large your corpus is")


def _check_key(paper: Invite, known: str | None) -> None:
    from common.identity import public_key

    if known is not None and public_key(known) != paper.coordinator:
        raise InputError(
            f"the invitation is by {paper.coordinator[:12]}…, not by the key you gave; ask the operator which is right"
        )


def _check_bundle(paper: Invite, approved: str | None) -> bool:
    """Whether the bundle is this installation's own code; any other must be approved by its hash."""
    from common.bundle import installed_sha256

    same = installed_sha256() == paper.bundle
    if not same and approved != paper.bundle:
        raise InputError(
            f"rounds would run the bundle {paper.bundle} on this machine, which is not the code of your installation; "
            "install the coordinator's version of Ridgeway, or, if you have looked at it, name it with --approve-bundle"
        )
    return same


def ready(folder: Folder, json: Json = False) -> None:
    """Sum the corpus of DIR ahead, so that a round need not wait for it. Unchanged files are not read again."""
    from client.prepare import Interrupted, Watch
    from common.invite import INVITE, Invite, read_paper

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
    step("ready", holder.domain, count(made.statistics.mass, "sample"), f"{count(held_out, 'document')} to evaluate on")


def join(folder: Folder) -> None:
    """Run the SuperNode of DIR: it answers rounds until you stop it with Ctrl-C, and runs only approved code."""
    from client.supernode import NodeSettings, run

    holder = open_holder(folder)
    settings = NodeSettings(
        folder=folder,
        superlink=holder.settings.address,
        approved=holder.settings.bundles,
        config={"holder": str(folder.resolve())},
    )
    step("joining", holder.settings.address, f"domain {holder.domain}", f"key {holder.identity.public[:12]}")
    with stop_on_signal() as stopped:
        run(settings, stopped, lambda words: step("note", words))
    step("left", "every process has ended")


def status(folder: Folder, json: Json = False) -> None:
    """What the holder of DIR was asked for and sent, and when."""
    holder = open_holder(folder)
    sent = [entry for entry in holder.journal.entries() if entry.kind == "sent"]
    if json:
        newest = holder.newest
        rows = [{"time": entry.time, **entry.facts} for entry in sent]
        emit_json({"domain": holder.domain, "key": holder.identity.public, "release": newest, "sent": rows})
        return
    step("holder", holder.domain, f"key {holder.identity.public[:12]}", f"of {holder.settings.address}")
    step("release", f"{holder.newest:04}" if holder.newest else "none so far")
    rows_ = [
        [
            entry.time[:19],
            str(entry.facts["round"])[:8],
            str(entry.facts["kind"]).replace("_", " "),
            f"{entry.facts['bytes']:,}",
            str(entry.facts.get("reason", "")),
        ]
        for entry in sent
    ]
    table(["sent at (UTC)", "round", "what", "bytes", "why not"], rows_, numbers_from=5)


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


def open_holder(folder: Path) -> Holder:
    from client.holder import SETTINGS, Holder

    if not (folder / SETTINGS).is_file():
        raise InputError(f"{folder} is not a holder's folder; make one with: ridgeway client init {folder} --invite …")
    return Holder(folder)
