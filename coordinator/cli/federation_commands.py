"""ridgeway coordinator init, up, status, verify, renew, backup, …: a federation's folder, and its
care over the years.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.settings import (
    DEFAULT,
    DEFAULT_LISTEN,
    ENCODERS,
    PLAIN_ENCODER,
)
from ridgeway.common.cli.options import (
    AllowHost,
    Host,
    Json,
    Keys,
    ModeOption,
    Port,
    RequestRate,
    TlsCert,
    TlsKey,
    check_mode,
)
from ridgeway.common.cli.terminal import (
    TextTable,
    count,
    show,
    show_leftovers,
    size,
    stamped_steps,
    step,
    stop_on_signal,
)

if TYPE_CHECKING:
    from ridgeway.coordinator.round.federation import Federation

NOT_AS_WISHED = 1
"""The exit code of a command that did what it was asked, and found that something is amiss."""

CoordinatorFolder = Annotated[
    Path, typer.Argument(metavar="DIR", help="The coordinator's folder.")
]


def init(
    folder: CoordinatorFolder,
    listen: Annotated[
        str,
        typer.Option(help="Where holders' SuperNodes connect: the address to bind."),
    ] = DEFAULT_LISTEN,
    address: Annotated[
        str | None,
        typer.Option(
            help="The address that invitations say, if it differs from --listen."
        ),
    ] = None,
    mode: ModeOption = "private",
    encoder: Annotated[
        str | None,
        typer.Option(
            help=(
                f"{ENCODERS} (default: {PLAIN_ENCODER} for private rounds, else"
                f" {DEFAULT.encoder})"
            )
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Make the coordinator's folder DIR.

    It holds keys, a private authority and certificates, and coordinator.toml.
    """
    from pydantic import ValidationError

    from ridgeway.common.base.schema import MODE_SENTENCES
    from ridgeway.common.encoding.encoder_sources import absolute_source, find_encoder
    from ridgeway.coordinator.deploy.authority import create_authority
    from ridgeway.coordinator.deploy.coordinator_folder import create_federation
    from ridgeway.coordinator.round.federation import (
        COORDINATOR_TOML,
        PRIOR,
        FederationSettings,
        check_plain,
        usual_settings,
    )

    chosen = check_mode(mode or "private")
    address = address or listen
    try:
        # before the encoder is looked for, which may take a while
        FederationSettings(listen=listen, address=address)
    except ValidationError:
        raise InputError(
            f"{listen!r} or {address!r} is not an address; write HOST:PORT, the port"
            " being 1 to 65535"
        ) from None
    source = encoder or (PLAIN_ENCODER if chosen == "private" else DEFAULT.encoder)
    found = find_encoder(source)
    if chosen == "private":
        check_plain(found)
    places = {"listen": listen, "address": address}
    settings = usual_settings(
        found, **places, encoder=absolute_source(source), mode=chosen
    )
    hosts = _hosts(listen, address)
    made = create_federation(
        folder, settings, lambda draft: create_authority(draft / "link", hosts)
    )
    made_with = f"unless you put {PRIOR} into the folder: ridgeway prior make"
    show(
        {
            "folder": str(folder),
            "public_key": made.identity.public,
            "encoder": found.fingerprint,
            "mode": chosen,
        },
        ("made", str(folder), f"certificates for {', '.join(hosts)}"),
        ("key", made.identity.public, "releases are signed with it; holders pin it"),
        ("mode", chosen, MODE_SENTENCES[chosen]),
        ("prior", "made of built-in text", made_with) if chosen == "private" else None,
        (
            "next",
            f"read {folder / COORDINATOR_TOML}, then: ridgeway coordinator up {folder}",
        ),
        json=json,
    )


def up(folder: CoordinatorFolder) -> None:
    """Run the SuperLink of DIR until Ctrl-C.

    TLS, node authentication, and the control API on loopback only.
    """
    from ridgeway.coordinator.deploy.supervisor import up as keep_up

    federation = open_federation(folder)
    place = (
        f"at {federation.settings.listen}",
        f"coordinator {federation.identity.public[:12]}",
    )
    with stamped_steps(), stop_on_signal() as stopped:
        keep_up(
            federation,
            stopped,
            lambda: step("up", *place),
            lambda words: step("note", words),
        )
        step("down", "every process has ended")


def renew(
    folder: CoordinatorFolder,
    authority: Annotated[
        bool,
        typer.Option("--authority", help="Renew the certificate of the authority too."),
    ] = False,
    new_key: Annotated[
        bool,
        typer.Option(
            "--new-key",
            help="With --authority: give the authority another key, as after a theft.",
        ),
    ] = False,
    signing_key: Annotated[
        bool,
        typer.Option(
            "--signing-key",
            help="Instead: sign with another key, to which the one before hands over.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Renew the certificate under which holders reach DIR.

    It is for the hosts that coordinator.toml names.

    A coordinator that is up takes it as soon as no round is running. With --authority its
    certificate is renewed under the key that it has: holders that are connected take it from the
    gate, because the key that they have pinned signs it, and until then the old one does.

    With --signing-key the certificates stay, and requests, releases and all else are signed with a
    new key from then on. The key before signs that: holders take it up by themselves, and what was
    signed before stays verifiable.
    """
    from ridgeway.coordinator.deploy.authority import (
        certificate_ends,
        renew_authority,
        renew_server_certificate,
    )
    from ridgeway.coordinator.deploy.supervisor import announce, write_invite

    if new_key and not authority:
        raise InputError(
            "--new-key belongs to --authority; to renew the server's certificate alone,"
            " leave it out"
        )
    federation = open_federation(folder)
    if signing_key:
        if authority:
            raise InputError(
                "--signing-key and --authority are two renewals; run one after the"
                " other"
            )
        _renew_signing_key(federation, json)
        return
    hosts = _hosts(federation.settings.listen, federation.settings.address)
    if authority:
        renew_authority(federation.link, new_key=new_key)
    renew_server_certificate(federation.link, hosts)
    announce(federation)
    if authority:
        write_invite(federation)
    ends = {
        name: end.isoformat() for name, end in certificate_ends(federation.link).items()
    }
    whom = (
        "every holder"
        if new_key
        else "holders that were not connected before the old one ended"
    )
    accept = "they run: ridgeway client accept DIR --invite invite/"
    show(
        {"hosts": hosts, "certificates": ends},
        (
            "renewed",
            f"for {', '.join(hosts)}",
            *(f"{name} to {end[:10]}" for name, end in ends.items()),
        ),
        (
            "next",
            "a coordinator that is up takes it as soon as no round is running; there is"
            " nothing to restart",
        ),
        ("and", f"hand {folder / 'invite'} to {whom}", accept) if authority else None,
        json=json,
    )


def _renew_signing_key(federation: Federation, json: bool) -> None:
    from ridgeway.coordinator.deploy.supervisor import announce, write_invite

    link = federation.renew_key()
    announce(federation)
    write_invite(federation)
    show(
        {
            "before": link.before,
            "after": link.after,
            "handovers": len(federation.identity.handovers),
        },
        (
            "renewed",
            "the signing key",
            f"{link.before[:12]}… signed for",
            link.after,
        ),
        (
            "next",
            "holders take it from the coordinator by themselves; tell them the new key"
            " by another way too",
        ),
        ("and", "take a backup: an older one can no longer sign for holders"),
        json=json,
    )


def _hosts(*places: str) -> list[str]:
    return sorted({place.rpartition(":")[0].strip("[]") for place in places})


def status(folder: CoordinatorFolder, json: Json = False) -> None:
    """Who is on the roster of DIR, online, and has which release.

    The exit code is 0 if the coordinator is up, 1 if it is down, and 2 if the folder cannot be
    read.
    """
    from ridgeway.common.base.schema import MODE_SENTENCES
    from ridgeway.coordinator.deploy.authority import (
        certificate_ends,
        ending_certificates,
    )
    from ridgeway.coordinator.page.federation_view import connected

    federation = open_federation(folder)
    standing = federation.ledger.standing()
    newest = federation.newest
    online = connected(federation)
    ends = certificate_ends(federation.link)
    ending = ending_certificates(federation.link, datetime.now(UTC))
    holders = _holders(federation, online or frozenset())
    bundle = _bundle(federation)
    mode = federation.settings.mode
    evaluation = federation.manifest(newest.number)["evaluation"] if newest else None
    facts = {
        "up": online is not None,
        "mode": mode,
        "rounds": standing.rounds,
        "unfinished_round": standing.open_round is not None,
        "release": newest.number if newest else 0,
        "release_id": newest.release if newest else None,
        "accuracy": evaluation and evaluation["accuracy"],
        "interval": evaluation and evaluation.get("interval"),
        "certificates": {name: end.isoformat() for name, end in ends.items()},
        "warnings": ending,
        "bundle": bundle,
        "holders": holders,
    }
    until = ", ".join(f"{name} to {end:%Y-%m-%d}" for name, end in ends.items())
    place = f"at {federation.settings.listen}", f"certificates: {until}"
    released = (
        (f"release {newest.number:04}", accuracy_words(evaluation))
        if newest
        else ("no release yet",)
    )
    waiting: list[tuple[str, ...]] = []
    if bundle and bundle["waiting"]:
        names = ", ".join(bundle["waiting"])
        waiting = [
            ("bundle", bundle["newest"], "not known to be approved by", names),
            ("", bundle["in_use"], "runs in rounds"),
        ]
    unfinished = "the last round runs now, or was cut off; what it accepted is kept"
    show(
        facts,
        ("down" if online is None else "up", *place),
        ("mode", mode, MODE_SENTENCES[mode]),
        *(("warning", words) for words in ending),
        *waiting,
        ("rounds", str(standing.rounds), *released),
        ("note", unfinished) if standing.open_round is not None else None,
        TextTable(
            ["holder", "domain", "online", "sums", "release"],
            [_holder_row(each) for each in holders],
        ),
        json=json,
    )
    if not json:
        _tell_obstacles(federation)
    if online is None:
        raise typer.Exit(NOT_AS_WISHED)


def _holders(federation: Federation, online: frozenset[str]) -> list[dict[str, Any]]:
    """What is known of everyone on the roster."""
    standing = federation.ledger.standing()
    newest = federation.newest
    summed = {member.name for member in newest.members} if newest else set()
    return [
        {
            "name": name,
            "domain": holder.domain,
            "online": name in online,
            "retired": name in standing.retired,
            "contributed": name in standing.contributions,
            "in_total": name in summed,
            "release": (
                standing.delivered[name].number if name in standing.delivered else 0
            ),
            "release_id": (
                standing.delivered[name].release if name in standing.delivered else None
            ),
            "other_release": name in standing.ahead,
        }
        for name, holder in sorted(standing.roster.items())
    ]


def _holder_row(holder: dict[str, Any]) -> list[str]:
    retired = " (retired)" if holder["retired"] else ""
    sums = "here" if holder["contributed"] else "none"
    release = f"{holder['release']:04}" if holder["release"] else "none"
    if holder["other_release"]:
        release += f" {str(holder['release_id'])[:12]}, another"
    return [
        holder["name"],
        holder["domain"] + retired,
        "yes" if holder["online"] else "no",
        "in the release" if holder["in_total"] else sums,
        release,
    ]


def _tell_obstacles(federation: Federation) -> None:
    """What stands in the way of a round or a delivery."""
    from ridgeway.coordinator.page.narrator import tell_event
    from ridgeway.coordinator.round.progress import DeliveryBlocked
    from ridgeway.coordinator.round.remedies import OTHER_RELEASE

    ahead = federation.ledger.standing().ahead
    newest = federation.newest
    if ahead and newest:
        tell_event(DeliveryBlocked(OTHER_RELEASE, sorted(ahead), newest.number))
    tell_too_few(federation)


def _bundle(federation: Federation) -> dict[str, Any] | None:
    """The newest bundle, the one that rounds run, and who is not known to have approved the
    newest.
    """
    from ridgeway.coordinator.deploy.kept_bundles import (
        kept_bundles,
        ranked,
        waiting,
    )

    kept = kept_bundles(federation.link)
    standing = federation.ledger.standing()
    if not kept:
        return None
    newest = kept[0].sha256
    return {
        "newest": newest,
        "in_use": ranked(kept, standing)[0],
        "waiting": waiting(newest, standing),
    }


def tell_too_few(federation: Federation) -> None:
    """Say what a round under masks lacks, as far as it is known without asking anybody."""
    from ridgeway.coordinator.round.masked_round import too_few_on_roster

    if words := too_few_on_roster(federation):
        step("note", words)


def verify(folder: CoordinatorFolder, json: Json = False) -> None:
    """Check the ledger of DIR.

    Its chain of hashes, the stored sums, and every release's signature.
    """
    federation = open_federation(folder)
    counts = federation.verify()
    numbers = (count(number, noun.rstrip("s")) for noun, number in counts.items())
    show(counts, ("verified", str(folder), *numbers), json=json)


def page(
    folder: CoordinatorFolder,
    host: Host = "127.0.0.1",
    port: Port = 8081,
    keys: Keys = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    rate: RequestRate = None,
    allow_host: AllowHost = None,
) -> None:
    """Show DIR as a page in the browser.

    Members, obstacles, rounds as they run, releases, the ledger; and metrics.

    The page only reads. Any address but loopback needs --keys, as with `serve`.
    """
    from ridgeway.common.cli.page_server import serve_page
    from ridgeway.coordinator.page.federation_page import federation_page
    from ridgeway.coordinator.page.federation_view import FederationView

    parts = federation_page(FederationView(open_federation(folder)))
    serve_page(parts, host, port, keys, tls_cert, tls_key, rate, allow_host)


def backup(
    folder: CoordinatorFolder,
    target: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="The file to write; none is overwritten."),
    ],
    json: Json = False,
) -> None:
    """Write all of DIR that cannot be made again to one FILE.

    The ledger, the sums, the releases, the settings and the keys; FILE is verified.

    A round may be running meanwhile. FILE holds the private keys, and only its owner can read it:
    keep it as safe as DIR.
    """
    from ridgeway.coordinator.deploy.backup import back_up

    made = back_up(open_federation(folder), target)
    room = target.stat().st_size
    show(
        {"file": str(target), "bytes": room, **made.model_dump(mode="json")},
        (
            "wrote",
            str(target),
            count(len(made.files), "file"),
            f"ledger to entry {made.entries:,}",
            size(room),
            "read again and verified",
        ),
        json=json,
    )


def restore(
    source: Annotated[
        Path, typer.Argument(metavar="FILE", help="A file that `backup` wrote.")
    ],
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The new folder to make of it.")
    ],
    json: Json = False,
) -> None:
    """Make the coordinator's folder DIR of a backup FILE.

    Hashes, ledger, sums and releases are verified first.
    """
    from ridgeway.coordinator.deploy.backup import restore as make

    made = make(source, folder)
    show(
        {
            "folder": str(folder),
            "time": made.time,
            "coordinator": made.coordinator,
            "entries": made.entries,
        },
        (
            "restored",
            str(folder),
            f"as of {made.time[:19]} UTC",
            f"ledger to entry {made.entries:,}",
            "verified",
        ),
        ("first", "stop the old coordinator: two with one key would conflict"),
        (
            "then",
            f"ridgeway coordinator up {folder}",
            f"and: ridgeway coordinator preflight {folder}",
        ),
        (
            "note",
            "holders whose data is in a total that this copy lacks are named there,"
            " with what to do",
        ),
        json=json,
    )


def prune(
    folder: CoordinatorFolder,
    keep: Annotated[
        int,
        typer.Option(
            help="How many releases keep their routers, the newest ones.", min=1
        ),
    ] = 10,
    remove_: Annotated[
        bool,
        typer.Option("--remove", help="Remove it; without this it is only listed."),
    ] = False,
    json: Json = False,
) -> None:
    """List what DIR no longer needs, and remove it with --remove.

    The ledger, every signed manifest, the sums and totals that are still needed, and the keys
    always stay. If the coordinator is down, what Flower keeps of past runs goes too.
    """
    from ridgeway.coordinator.deploy.coordinator_folder import leftovers
    from ridgeway.coordinator.deploy.coordinator_folder import prune as take_away

    federation = open_federation(folder)
    rows = [each.row() for each in leftovers(federation, keep)]
    if remove_:
        take_away(federation, keep)
    show_leftovers(rows, removed=remove_, json=json)


def accuracy_words(evaluation: Mapping[str, Any] | None) -> str:
    """The accuracy that a manifest tells, and where noise is in it, the interval in which it
    lies.
    """
    if evaluation is None:
        return "not evaluated"
    words = f"{evaluation['accuracy']:.1f} %"
    if interval := evaluation.get("interval"):
        words += f" (95 %: {interval[0]:.1f} to {interval[1]:.1f})"
    return words


def open_federation(folder: Path) -> Federation:
    from ridgeway.coordinator.round.federation import COORDINATOR_TOML, Federation

    if not (folder / COORDINATOR_TOML).is_file():
        raise InputError(
            f"{folder} is not a coordinator's folder; make one with: ridgeway"
            f" coordinator init {folder}"
        )
    return Federation(folder)
