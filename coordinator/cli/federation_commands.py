"""ridgeway coordinator init, up, admit, invite, round, …: what the operator of a federation runs.

Knows options and how results are shown; the work is done elsewhere and imported when it is needed.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeway.common.base.errors import InputError, LinkDown, LinkError
from ridgeway.common.base.settings import DEFAULT_LISTEN, ENCODERS
from ridgeway.common.cli.options import (
    AllowHost,
    Host,
    Json,
    Keys,
    Masked,
    Port,
    RequestRate,
    TlsCert,
    TlsKey,
)
from ridgeway.common.cli.terminal import count, emit_json, stamped_steps, step, stop_on_signal, table
from ridgeway.coordinator.round.progress import (
    AnswerRefused,
    Event,
    ExchangeDone,
    HolderChecked,
    HoldersAbsent,
    ReleaseStands,
)

if TYPE_CHECKING:
    from ridgeway.common.base.schema import Mode
    from ridgeway.coordinator.round.federation import Federation
    from ridgeway.coordinator.round.membership import Change

MAX_WEIGHT = 1000
NOT_AS_WISHED = 1
"""The exit code of a command that did what it was asked, and found that something is amiss."""

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The coordinator's folder.")]
RunsBundle = Annotated[
    str | None,
    typer.Option(metavar="HASH", help="Run this bundle, whoever refuses it; else the one that the fewest refuse."),
]


def add_to(app: typer.Typer) -> None:
    """Add the commands of a federation to `ridgeway coordinator`."""
    for command in (
        init,
        up,
        admit,
        invite,
        renew,
        preflight,
        round_,
        schedule,
        deliver,
        status,
        releases,
        show,
        retire,
        remove,
        rollback,
        verify,
        backup,
        restore,
        recover,
        prune,
    ):
        app.command(command.__name__.rstrip("_"))(command)


def init(
    folder: Folder,
    listen: Annotated[
        str, typer.Option(help="Where holders' SuperNodes connect: the address to bind.")
    ] = DEFAULT_LISTEN,
    address: Annotated[
        str | None, typer.Option(help="The address that invitations say, if it differs from --listen.")
    ] = None,
    encoder: Annotated[str, typer.Option(help=ENCODERS)] = "smollm2",
    json: Json = False,
) -> None:
    """Make the coordinator's folder DIR: keys, a private authority and certificates, coordinator.toml."""
    from pydantic import ValidationError

    from ridgeway.common.encoding.encoder_sources import absolute_source, find_encoder
    from ridgeway.coordinator.deploy.authority import create_authority
    from ridgeway.coordinator.deploy.coordinator_folder import create_federation
    from ridgeway.coordinator.round.federation import SETTINGS, FederationSettings, usual_settings

    address = address or listen
    try:
        FederationSettings(listen=listen, address=address)  # before the encoder is looked for, which may take a while
    except ValidationError:
        raise InputError(
            f"{listen!r} or {address!r} is not an address; write HOST:PORT, the port being 1 to 65535"
        ) from None
    found = find_encoder(encoder)
    settings = usual_settings(found, listen=listen, address=address, encoder=absolute_source(encoder))
    hosts = _hosts(listen, address)
    made = create_federation(folder, settings, lambda draft: create_authority(draft / "link", hosts))
    if json:
        emit_json({"folder": str(folder), "public_key": made.identity.public, "encoder": found.fingerprint})
        return
    step("made", str(folder), f"certificates for {', '.join(hosts)}")
    step("key", made.identity.public, "releases are signed with it; holders pin it")
    step("next", f"read {folder / SETTINGS}, then: ridgeway coordinator up {folder}")


def up(folder: Folder) -> None:
    """Run the SuperLink of DIR: TLS, node authentication, control API on loopback only. Stop it with Ctrl-C."""
    from ridgeway.coordinator.deploy.supervisor import up as keep_up

    federation = _federation(folder)
    place = f"at {federation.settings.listen}", f"coordinator {federation.identity.public[:12]}"
    with stamped_steps(), stop_on_signal() as stopped:
        keep_up(federation, stopped, lambda: step("up", *place), lambda words: step("note", words))
        step("down", "every process has ended")


def admit(
    folder: Folder,
    card: Annotated[Path, typer.Argument(metavar="HOLDER.PUB", help="The card that the holder handed over.")],
    name: Annotated[str, typer.Option(help="What to call the holder.")],
    weight: Annotated[int, typer.Option(help="Its weight among the holders of its domain.")] = 1,
    json: Json = False,
) -> None:
    """Put the holder with the card HOLDER.PUB on the roster of DIR."""
    from ridgeway.common.base.settings import check_domain_name
    from ridgeway.common.deploy.node_key import check_public_line
    from ridgeway.common.protocol.invitation import Card, read_paper
    from ridgeway.coordinator.round.masked_round import check_weight

    check_domain_name(name, "holder")
    if not 1 <= weight <= MAX_WEIGHT:
        raise InputError(f"a weight lies between 1 and {MAX_WEIGHT:,}, not {weight}")
    federation = _federation(folder)
    paper = read_paper(card, Card)
    check_public_line(paper.node)
    check_weight(federation, name, paper.domain, weight)
    holder = federation.ledger.admit(name, paper, weight)
    registered = _register(federation)
    if json:
        emit_json({"name": holder.name, "domain": holder.domain, "key": holder.key, "registered": registered})
        return
    step("admitted", holder.name, f"domain {holder.domain}", f"key {holder.key[:12]}")
    _foresee(federation)
    if not registered:
        step("note", "the coordinator is not up; the holder can connect once it is")


def _foresee(federation: Federation) -> None:
    """Say what would stand in the way of a masked round now."""
    from ridgeway.coordinator.round.masked_round import outlook

    if words := outlook(federation):
        step("note", words)


def _register(federation: Federation) -> bool:
    """Bring the SuperLink's list of nodes up to date, if it is up; else `up` will."""
    from ridgeway.coordinator.deploy.superlink_client import SuperLinkClient
    from ridgeway.coordinator.deploy.supervisor import register

    client = SuperLinkClient(federation.link)
    try:
        if client.is_up():
            register(federation, client, lambda words: step("note", words))
            return True
    except LinkDown:
        pass
    return False


def invite(folder: Folder, json: Json = False) -> None:
    """Write DIR/invite, the folder to hand to holders: addresses, keys, hashes, no secrets."""
    from ridgeway.coordinator.deploy.supervisor import write_invite

    federation = _federation(folder)
    made = write_invite(federation)
    if json:
        emit_json({"folder": str(folder / "invite"), **made.model_dump(mode="json")})
        return
    step("wrote", str(folder / "invite"), "hand this folder to holders")
    step("address", made.address)
    step("key", made.coordinator, "tell it to holders by another way too")
    step("encoder", made.terms.encoder_name, made.terms.encoder[:12])
    step("bundle", made.bundle, "the code that rounds run on holders' machines")


def renew(
    folder: Folder,
    authority: Annotated[bool, typer.Option("--authority", help="Renew the certificate of the authority too.")] = False,
    new_key: Annotated[
        bool, typer.Option("--new-key", help="With --authority: give the authority another key, as after a theft.")
    ] = False,
    signing_key: Annotated[
        bool, typer.Option("--signing-key", help="Instead: sign with another key, to which the one before hands over.")
    ] = False,
    json: Json = False,
) -> None:
    """Renew the certificate under which holders reach DIR, for the hosts that coordinator.toml names.

    A coordinator that is up takes it as soon as no round is running. With --authority its certificate is renewed
    under the key that it has: holders that are connected take it from the gate, because the key that they have pinned
    signs it, and until then the old one does.

    With --signing-key the certificates stay, and requests, releases and all else are signed with a new key from then
    on. The key before signs that: holders take it up by themselves, and what was signed before stays verifiable.
    """
    from ridgeway.coordinator.deploy.authority import certificate_ends, renew_authority, renew_server_certificate
    from ridgeway.coordinator.deploy.supervisor import announce, write_invite

    if new_key and not authority:
        raise InputError("--new-key belongs to --authority; to renew the server's certificate alone, leave it out")
    federation = _federation(folder)
    if signing_key:
        if authority:
            raise InputError("--signing-key and --authority are two renewals; run one after the other")
        _renew_signing_key(federation, json)
        return
    hosts = _hosts(federation.settings.listen, federation.settings.address)
    if authority:
        renew_authority(federation.link, new_key=new_key)
    renew_server_certificate(federation.link, hosts)
    announce(federation)
    if authority:
        write_invite(federation)
    ends = {name: end.isoformat() for name, end in certificate_ends(federation.link).items()}
    if json:
        emit_json({"hosts": hosts, "certificates": ends})
        return
    step("renewed", f"for {', '.join(hosts)}", *(f"{name} to {end[:10]}" for name, end in ends.items()))
    step("next", "a coordinator that is up takes it as soon as no round is running; there is nothing to restart")
    if authority:
        whom = "every holder" if new_key else "holders that were not connected before the old one ended"
        step("and", f"hand {folder / 'invite'} to {whom}", "they run: ridgeway client accept DIR --invite invite/")


def _renew_signing_key(federation: Federation, json: bool) -> None:
    from ridgeway.coordinator.deploy.supervisor import announce, write_invite

    link = federation.renew_key()
    announce(federation)
    write_invite(federation)
    if json:
        emit_json({"before": link.before, "after": link.after, "handovers": len(federation.identity.handovers)})
        return
    step("renewed", "the signing key", f"{link.before[:12]}… signed for", link.after)
    step("next", "holders take it from the coordinator by themselves; tell them the new key by another way too")
    step("and", "take a backup", "one from before this cannot sign for holders any more")


def _hosts(*places: str) -> list[str]:
    return sorted({place.rpartition(":")[0].strip("[]") for place in places})


def preflight(folder: Folder, bundle: RunsBundle = None, json: Json = False) -> None:
    """Ask every holder of DIR what would keep it from a round, and say what each has to do. Opens nothing.

    Holders sum their corpora for it if they have not yet, so that the round need not. The exit code is 0 if nothing is
    in the way, 1 if something is, and 2 if holders could not be asked.
    """
    from ridgeway.coordinator.deploy.supervisor import run_work
    from ridgeway.coordinator.page.narrator import tell_event
    from ridgeway.coordinator.round.masked_round import outlook
    from ridgeway.coordinator.round.progress import OperatorNote
    from ridgeway.coordinator.round.remedies import BUNDLE, CHECKED, REMEDIES
    from ridgeway.coordinator.round.run_order import RunOrder

    federation = _federation(folder)
    told: list[Event] = []
    runs = run_work(federation, RunOrder(work="preflight"), told.append, bundle)
    for event in told:
        if isinstance(event, OperatorNote):
            tell_event(event)
    holders = [each for each in told if isinstance(each, HolderChecked)]
    ahead = outlook(federation)
    is_clear = ahead is None and not any(each.obstacles for each in holders)
    if json:
        rows = [{"name": each.name, "domain": each.domain, "obstacles": _explained(each)} for each in holders]
        emit_json({"clear": is_clear, "bundle": runs, "foreseen": ahead, "holders": rows})
    else:
        table(["holder", "domain", *CHECKED], [_marks(each) for each in holders], numbers_from=2 + len(CHECKED))
        for each in holders:
            for code, names in each.obstacles:
                about = f"{code}: {', '.join(names)}" if names else code
                step("next", each.name, about, REMEDIES.get(code, ""), f"bundle {runs}" if code == BUNDLE else "")
        if ahead:
            step("note", ahead)
        if is_clear:
            step("clear", "nothing is in the way of a round")
    if not is_clear:
        raise typer.Exit(NOT_AS_WISHED)


def _explained(checked: HolderChecked) -> list[dict[str, Any]]:
    from ridgeway.coordinator.round.remedies import REMEDIES

    return [{"code": code, "names": names, "remedy": REMEDIES.get(code)} for code, names in checked.obstacles]


def _marks(checked: HolderChecked) -> list[str]:
    """A row of the table: what holds, what does not, and what could not be asked because of that."""
    from ridgeway.coordinator.round.remedies import CHECKED, check_of

    failed = [check_of(code) for code, _ in checked.obstacles]
    asked = 1 if "online" in failed else 2 if "code" in failed else len(CHECKED)
    marks = ["no" if check in failed else "yes" for check in CHECKED[:asked]]
    return [checked.name, checked.domain, *marks, *["?"] * (len(CHECKED) - asked)]


def round_(
    folder: Folder,
    masked: Masked = None,
    accept_worse: Annotated[
        list[str] | None,
        typer.Option(metavar="DOMAIN", help="Publish though this domain is routed worse than before; may be repeated."),
    ] = None,
    allow_missing: Annotated[
        list[str] | None,
        typer.Option(metavar="DOMAIN", help="Publish though no holder of this domain is there; may be repeated."),
    ] = None,
    even_unchanged: Annotated[
        bool, typer.Option("--even-unchanged", help="Evaluate and publish though nothing has changed.")
    ] = False,
    times: Annotated[bool, typer.Option("--times", help="Begin every line with its time, for a log.")] = False,
    bundle: RunsBundle = None,
    json: Json = False,
) -> None:
    """Run a round in DIR: wait for holders, gather their total, solve, let them evaluate, publish, deliver.

    Whether statistics are masked stands in coordinator.toml; --masked or --clear says it for this round. Holders that
    require masking refuse to send anything in the clear. A router that is worse than the newest release on a domain's
    held-out text is not published unless --accept-worse names that domain; nor is one that would lose a domain of the
    newest release, because its holders are away or refuse, unless --allow-missing names it. If no sums and no settings
    have changed since the newest release, it stands, unless --even-unchanged asks for another.
    """
    from ridgeway.coordinator.deploy.supervisor import run_work
    from ridgeway.coordinator.page.narrator import Narrator
    from ridgeway.coordinator.round.run_order import RunOrder

    federation = _federation(folder)
    domains = {holder.domain for holder in federation.ledger.standing().active.values()}
    worse, missing = tuple(accept_worse or ()), tuple(allow_missing or ())
    if unknown := {*worse, *missing} - domains:
        raise InputError(f"there is no domain {min(unknown)!r}; there are {', '.join(sorted(domains))}")
    told: list[Event] = []
    tell = Narrator()

    def watch(event: Event) -> None:
        told.append(event)
        tell(event)

    mode: Mode | None = None if masked is None else "masked" if masked else "clear"
    order = RunOrder(work="round", mode=mode, accept_worse=worse, allow_missing=missing, even_unchanged=even_unchanged)
    with stamped_steps(times):
        run_work(federation, order, watch, bundle)
    newest = federation.newest
    assert newest is not None
    if json:
        emit_json(
            {
                "number": newest.number,
                "release": newest.release,
                "unchanged": any(isinstance(each, ReleaseStands) for each in told),
                "domains": list(newest.domains),
                "evaluation": federation.manifest(newest.number)["evaluation"],
                "absent": sorted({name for each in told if isinstance(each, HoldersAbsent) for name in each.names}),
                "refused": [asdict(each) for each in told if isinstance(each, AnswerRefused)],
                "exchanges": [asdict(each) for each in told if isinstance(each, ExchangeDone)],
                "folder": str(federation.release_folder(newest.number)),
            }
        )
        return
    _show_held_out(federation, newest.number)


def schedule(
    folder: Folder,
    line: Annotated[str, typer.Argument(metavar="CRON", help="When: minute, hour, day, month, weekday, in UTC.")],
    min_changed: Annotated[
        int, typer.Option(help="The fewest holders that must be new or have changed since the newest release.", min=0)
    ] = 0,
) -> None:
    """Run rounds in DIR at fixed times, such as "0 3 * * 0" for Sundays at 3:00 UTC, until you stop it with Ctrl-C.

    `coordinator up` must run beside it. If something stands in the way of a round, or if fewer than --min-changed
    holders have changed, a line says so, nothing is opened, and the next time is waited for.
    """
    from ridgeway.coordinator.deploy.schedule import keep_schedule
    from ridgeway.coordinator.deploy.supervisor import run_work
    from ridgeway.coordinator.page.narrator import Narrator
    from ridgeway.coordinator.round.run_order import RunOrder

    def work() -> None:
        run_work(_federation(folder), RunOrder(work="round", min_changed=min_changed), Narrator())

    _federation(folder)
    with stamped_steps(True), stop_on_signal() as stopped:
        keep_schedule(line, work, stopped, lambda words: step("note", words))


def deliver(folder: Folder) -> None:
    """Hand the newest release of DIR to the holders that are there and do not have it."""
    from ridgeway.coordinator.deploy.supervisor import run_work
    from ridgeway.coordinator.page.narrator import Narrator
    from ridgeway.coordinator.round.run_order import RunOrder

    federation = _federation(folder)
    if federation.newest is None:
        raise InputError(f"{folder} has no release yet; run a round first")
    run_work(federation, RunOrder(work="deliver"), Narrator())


def status(folder: Folder, json: Json = False) -> None:
    """Who is on the roster of DIR, who is online, what they sent, and which release they hold.

    The exit code is 0 if the coordinator is up, 1 if it is down, and 2 if the folder cannot be read.
    """
    from ridgeway.coordinator.deploy.authority import certificate_ends, ending_certificates
    from ridgeway.coordinator.deploy.superlink_client import SuperLinkClient
    from ridgeway.coordinator.page.narrator import tell_event
    from ridgeway.coordinator.round.progress import DeliveryBlocked
    from ridgeway.coordinator.round.remedies import OTHER_RELEASE

    federation = _federation(folder)
    standing, client = federation.ledger.standing(), SuperLinkClient(federation.link)
    is_up, online = client.is_up(), set[str]()
    try:
        online = {node.name for node in client.nodes() if node.online} if is_up else online
    except LinkError:
        is_up = False
    ends = certificate_ends(federation.link)
    ending = ending_certificates(federation.link, datetime.now(UTC))
    newest = federation.newest
    summed = {member.name for member in newest.members} if newest else set()
    holders = [
        {
            "name": name,
            "domain": holder.domain,
            "online": name in online,
            "retired": name in standing.retired,
            "contributed": name in standing.contributions,
            "in_total": name in summed,
            "release": standing.delivered[name].number if name in standing.delivered else 0,
            "release_id": standing.delivered[name].release if name in standing.delivered else None,
            "other_release": name in standing.ahead,
        }
        for name, holder in sorted(standing.roster.items())
    ]
    bundle = _bundle(federation)
    if json:
        emit_json(
            {
                "up": is_up,
                "rounds": standing.rounds,
                "unfinished_round": standing.open_round is not None,
                "release": newest.number if newest else 0,
                "release_id": newest.release if newest else None,
                "certificates": {name: end.isoformat() for name, end in ends.items()},
                "warnings": ending,
                "bundle": bundle,
                "holders": holders,
            }
        )
        _exit_if_down(is_up)
        return
    until = (f"{name} to {end:%Y-%m-%d}" for name, end in ends.items())
    step("up" if is_up else "down", f"at {federation.settings.listen}", f"certificates: {', '.join(until)}")
    for words in ending:
        step("warning", words)
    if bundle and bundle["waiting"]:
        step("bundle", bundle["newest"], "not known to be approved by", ", ".join(bundle["waiting"]))
        step("", bundle["in_use"], "runs in rounds")
    step("rounds", str(standing.rounds), f"release {newest.number:04}" if newest else "no release yet")
    if standing.open_round is not None:
        step("note", "the last round runs now, or was cut off; what it accepted is kept")
    rows = [
        [
            str(each["name"]),
            f"{each['domain']} (retired)" if each["retired"] else str(each["domain"]),
            "yes" if each["online"] else "no",
            "in the release" if each["in_total"] else "here" if each["contributed"] else "none",
            (f"{each['release']:04}" if each["release"] else "none")
            + (f" {str(each['release_id'])[:12]}, another" if each["other_release"] else ""),
        ]
        for each in holders
    ]
    table(["holder", "domain", "online", "sums", "release"], rows, numbers_from=5)
    if standing.ahead and newest:
        tell_event(DeliveryBlocked(OTHER_RELEASE, sorted(standing.ahead), newest.number))
    _foresee(federation)
    _exit_if_down(is_up)


def _exit_if_down(is_up: bool) -> None:
    if not is_up:
        raise typer.Exit(NOT_AS_WISHED)


def _bundle(federation: Federation) -> dict[str, Any] | None:
    """The newest bundle, the one that rounds run, and who is not known to have approved the newest."""
    from ridgeway.coordinator.deploy.kept_bundles import kept_bundles, preferred, waiting

    kept, standing = kept_bundles(federation.link), federation.ledger.standing()
    if not kept:
        return None
    newest = kept[0].sha256
    return {"newest": newest, "in_use": preferred(kept, standing), "waiting": waiting(newest, standing)}


def releases(folder: Folder, json: Json = False) -> None:
    """The releases of DIR, the newest last."""
    federation = _federation(folder)
    listed = federation.ledger.standing().releases
    if json:
        emit_json(
            [
                {"number": each.number, "release": each.release, "cause": each.cause, "time": each.time}
                | {"domains": list(each.domains), "folder": str(federation.release_folder(each.number))}
                for each in listed
            ]
        )
        return
    rows = [
        [f"{each.number:04}", each.release[:12], each.time[:19], each.cause, ", ".join(each.domains)] for each in listed
    ]
    table(["release", "id", "made at (UTC)", "by", "domains"], rows, numbers_from=5)


def show(
    folder: Folder,
    number: Annotated[
        int | None, typer.Argument(metavar="[NUMBER]", help="Which release; the newest if left out.")
    ] = None,
    json: Json = False,
) -> None:
    """What release NUMBER of DIR says of itself: choices, held-out accuracy, confusion."""
    federation = _federation(folder)
    newest = federation.newest
    if newest is None:
        raise InputError(f"{folder} has no release yet; run a round first")
    if number is not None and number not in {each.number for each in federation.ledger.standing().releases}:
        raise InputError(f"{folder} has no release {number}; its newest is {newest.number}")
    number = number or newest.number
    manifest = federation.manifest(number)
    if json:
        emit_json(manifest)
        return
    selector = manifest["selector"]
    rule = selector["name"] + (f" k={selector['k']}" if selector["name"] == "entropy" else "")
    step("release", f"{number:04}", str(federation.release_folder(number)))
    step("cohort", count(manifest["cohort"]["holders"], "holder"), ", ".join(manifest["domains"]))
    normalised = "columns normalised" if manifest["normalise_columns"] else ""
    step("chosen", f"λ {manifest['ridge']['value']:g}", rule, normalised)
    _show_held_out(federation, number)


def _show_held_out(federation: Federation, number: int) -> None:
    from ridgeway.common.cli.route_commands import show_evaluation
    from ridgeway.common.routing.evaluation import Evaluation

    figures = federation.manifest(number)["evaluation"]
    if figures is None:
        step("note", "this release was not evaluated by the holders")
        return
    show_evaluation(Evaluation(tuple(figures["order"]), tuple(tuple(row) for row in figures["confusion"])))


def retire(
    folder: Folder,
    domain: Annotated[str, typer.Argument(metavar="DOMAIN", help="The domain whose column is dropped.")],
    json: Json = False,
) -> None:
    """Drop DOMAIN from the router of DIR at once, without a round; later rounds leave it out."""
    from ridgeway.coordinator.round.membership import retire as change

    federation = _federation(folder)
    _show_change("retired", domain, change(federation, domain), json)


def remove(
    folder: Folder,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The holder to take off the roster.")],
    json: Json = False,
) -> None:
    """Take the holder NAME off the roster of DIR, subtract its sums exactly, erase them, and solve again."""
    from ridgeway.coordinator.round.membership import remove as change

    federation = _federation(folder)
    done = change(federation, name)
    _register(federation)
    _show_change("removed", name, done, json)
    if not json:
        _foresee(federation)


def rollback(
    folder: Folder,
    number: Annotated[int, typer.Argument(metavar="NUMBER", help="The earlier release that is to count again.")],
    json: Json = False,
) -> None:
    """Publish the router of the earlier release NUMBER of DIR anew, under the next number; `deliver` brings it out."""
    from ridgeway.coordinator.round.membership import rollback as change

    federation = _federation(folder)
    _show_change("rolled back", f"to {number:04}", change(federation, number), json)


def _show_change(verb: str, subject: str, done: Change, json: bool) -> None:
    published = done.published
    if done.note:
        step("note", done.note)
    if json:
        release = {"number": published.number, "release": published.release} if published else None
        facts = {"unbalanced": list(done.unbalanced), "newest_release_is_as_it_was": done.names_it}
        facts |= {"hidden_in_a_masked_total": done.hidden}
        emit_json({verb: subject, "release": release, **facts})
        return
    step(verb, subject)
    if published is not None:
        step("release", f"{published.number:04}", published.release[:12], ", ".join(published.domains))
    if done.hidden:
        step("note", "its sums are hidden in a masked total, so nobody can take them out of the newest release")
        step("next", "drop its domain at once with `retire`, or run a round: it will be without them")
    elif done.names_it:
        step("note", "fewer than two domains are left, so no release was made: the newest one still holds its sums")
    if done.unbalanced:
        step("note", f"{', '.join(done.unbalanced)} will take over the whole weight of the domain in the next round")


def verify(folder: Folder, json: Json = False) -> None:
    """Check the ledger of DIR: its chain of hashes, the stored sums, and every release's signature."""
    federation = _federation(folder)
    counts = federation.verify()
    if json:
        emit_json(counts)
        return
    step("verified", str(folder), *(count(number, noun.rstrip("s")) for noun, number in counts.items()))


def page(
    folder: Folder,
    host: Host = "127.0.0.1",
    port: Port = 8081,
    keys: Keys = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    rate: RequestRate = None,
    allow_host: AllowHost = None,
) -> None:
    """Show DIR as a page in the browser: members, obstacles, rounds as they run, releases, the ledger; and metrics.

    The page only reads. Any address but loopback needs --keys, as with `serve`.
    """
    from ridgeway.common.cli.page_server import PageAddress, serve_page
    from ridgeway.coordinator.page.federation_page import federation_page
    from ridgeway.coordinator.page.federation_view import FederationView

    parts = federation_page(FederationView(_federation(folder)))
    serve_page(parts, PageAddress(host, port, keys, tls_cert, tls_key, rate, tuple(allow_host or ())))


def backup(
    folder: Folder,
    target: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write; none is overwritten.")],
    json: Json = False,
) -> None:
    """Write the ledger, the sums, the releases, the settings and the keys of DIR to one FILE, and verify it.

    A round may be running meanwhile. FILE holds the private keys, and only its owner can read it: keep it as safe as
    DIR.
    """
    from ridgeway.common.cli.terminal import size
    from ridgeway.coordinator.deploy.backup import back_up

    made = back_up(_federation(folder), target)
    if json:
        emit_json({"file": str(target), "bytes": target.stat().st_size, **made.model_dump(mode="json")})
        return
    counted = count(len(made.files), "file"), f"ledger to entry {made.entries:,}", size(target.stat().st_size)
    step("wrote", str(target), *counted, "read again and verified")


def restore(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `backup` wrote.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The new folder to make of it.")],
    json: Json = False,
) -> None:
    """Make the coordinator's folder DIR of a backup FILE; hashes, ledger, sums and releases are verified first."""
    from ridgeway.coordinator.deploy.backup import restore as make

    made = make(source, folder)
    if json:
        emit_json({"folder": str(folder), "time": made.time, "coordinator": made.coordinator, "entries": made.entries})
        return
    step("restored", str(folder), f"as of {made.time[:19]} UTC", f"ledger to entry {made.entries:,}", "verified")
    step("first", "see that the old coordinator does not run any more: two with one key would tell two stories")
    step("then", f"ridgeway coordinator up {folder}", f"and: ridgeway coordinator preflight {folder}")
    step("note", "holders that know of more opened sums than this copy are named there, with what to do")


def recover(
    folder: Folder,
    log: Annotated[Path, typer.Argument(metavar="LOG", help="log/opened.json of a holder's folder.")],
    json: Json = False,
) -> None:
    """Take the end of the log of opened sums over from a holder's copy LOG, after an older backup of DIR was restored.

    The coordinator's own signature on it is verified, and that it begins as the log of DIR does. Rounds with the
    holders that know of these sums are then possible again, and are judged beside them.
    """
    from ridgeway.coordinator.deploy.backup import recover_log

    federation = _federation(folder)
    with federation.alone():
        added = recover_log(federation, log)
    if json:
        emit_json({"recovered": added, "log": len(federation.ledger.opened_log())})
        return
    step("recovered", count(added, "entry").replace("entrys", "entries"), "of the log of opened sums")


def prune(
    folder: Folder,
    keep: Annotated[int, typer.Option(help="How many releases keep their routers, the newest ones.", min=1)] = 10,
    remove_: Annotated[bool, typer.Option("--remove", help="Take it away; without this it is only shown.")] = False,
    json: Json = False,
) -> None:
    """Show what DIR has gathered over the years and can do without, and with --remove take it away.

    The ledger, every signed manifest, the sums and totals that are still needed, and the keys always stay. If the
    coordinator is down, what Flower keeps of past runs goes too.
    """
    from ridgeway.common.cli.leftovers_table import show_leftovers
    from ridgeway.coordinator.deploy.coordinator_prune import leftovers
    from ridgeway.coordinator.deploy.coordinator_prune import prune as take_away

    federation = _federation(folder)
    rows = [each.row() for each in leftovers(federation, keep)]
    if remove_:
        take_away(federation, keep)
    show_leftovers(rows, removed=remove_, json=json)


def _federation(folder: Path) -> Federation:
    from ridgeway.coordinator.round.federation import SETTINGS, Federation

    if not (folder / SETTINGS).is_file():
        raise InputError(f"{folder} is not a coordinator's folder; make one with: ridgeway coordinator init {folder}")
    return Federation(folder)
