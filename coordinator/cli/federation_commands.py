"""ridgeway coordinator init, up, status, verify, renew, backup, …: a federation's folder, and its
care over the years.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.records import MODE_SENTENCES
from ridgeway.common.base.settings import (
    DEFAULT,
    DEFAULT_LISTEN,
    ENCODERS,
    PRIVATE_ENCODER,
)
from ridgeway.common.cli.terminal import (
    AllowHost,
    Host,
    Json,
    Keys,
    ModeOption,
    Port,
    RequestRate,
    TextTable,
    TlsCert,
    TlsKey,
    argument,
    count,
    option,
    show,
    size,
    stamped_steps,
    step,
    stop_on_signal,
)
from ridgeway.common.privacy.public_prior import private_reader
from ridgeway.common.text.encoder_files import absolute_source, find_encoder
from ridgeway.coordinator.deploy.authority import (
    certificate_ends,
    create_authority,
    renew_authority,
    renew_server_certificate,
)
from ridgeway.coordinator.deploy.coordinator_folder import back_up, create_federation
from ridgeway.coordinator.deploy.coordinator_folder import restore as make
from ridgeway.coordinator.deploy.supervisor import announce, write_invite
from ridgeway.coordinator.deploy.supervisor import up as keep_up
from ridgeway.coordinator.federation_page import (
    FederationView,
    federation_page,
    serve_metrics,
)
from ridgeway.coordinator.round.federation import (
    COORDINATOR_TOML,
    PRIOR,
    Federation,
    FederationSettings,
    usual_settings,
)
from ridgeway.coordinator.round.masked_round import too_few_on_roster

NOT_AS_WISHED = 1
"""The exit code of a command that did what it was asked, and found that something is amiss."""

EVERYWHERE = (
    "invitations contain an address that no holder can reach",
    "set `address` in coordinator.toml and run `renew`, or create DIR again with"
    " --address HOST:PORT",
)
ANY_HOST = (["0.0.0.0"], ["::"])
CoordinatorFolder = Annotated[Path, argument("The coordinator's folder.", "DIR")]


def init(
    folder: CoordinatorFolder,
    listen: Annotated[
        str, option("Address to bind, where holders' SuperNodes connect.")
    ] = DEFAULT_LISTEN,
    address: Annotated[
        str | None,
        option("Public address in invitations, if it differs from --listen."),
    ] = None,
    mode: ModeOption = "private",
    encoder: Annotated[
        str | None,
        option(
            f"{ENCODERS} (default: {PRIVATE_ENCODER} for private rounds, else"
            f" {DEFAULT.encoder})"
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Create the coordinator's folder DIR.

    It holds keys, a private certificate authority, certificates and coordinator.toml.
    """
    chosen = mode or "private"
    address = address or listen
    try:
        # before the encoder is looked for, which may take a while
        FederationSettings(listen=listen, address=address)
    except ValidationError:
        raise InputError(
            f"{listen!r} or {address!r} is not an address; use HOST:PORT with a port"
            " from 1 to 65535"
        ) from None
    source = encoder or (PRIVATE_ENCODER if chosen == "private" else DEFAULT.encoder)
    shared = find_encoder(source)
    if chosen == "private":
        private_reader(shared)
    addresses = {"listen": listen, "address": address}
    settings = usual_settings(
        shared, **addresses, encoder=absolute_source(source), mode=chosen
    )
    hosts = _hosts(listen, address)
    made = create_federation(
        folder, settings, lambda draft: create_authority(draft / "link", hosts)
    )
    made_with = f"to replace it, put {PRIOR} into the folder: ridgeway prior make"
    show(
        {
            "folder": str(folder),
            "public_key": made.identity.public,
            "encoder": shared.fingerprint,
            "mode": chosen,
        },
        ("made", str(folder), f"certificates for {', '.join(hosts)}"),
        ("warning", *EVERYWHERE) if _hosts(address) in ANY_HOST else None,
        ("key", made.identity.public, "signs releases; holders pin it"),
        ("mode", chosen, MODE_SENTENCES[chosen]),
        ("prior", "built-in text", made_with) if chosen == "private" else None,
        (
            "next",
            f"read {folder / COORDINATOR_TOML}, then: ridgeway coordinator up {folder}",
        ),
        json=json,
    )


def up(
    folder: CoordinatorFolder,
    metrics: Annotated[
        int | None,
        option("Loopback port for Prometheus.", min=1, max=65535, metavar="PORT"),
    ] = None,
) -> None:
    """Run the SuperLink of DIR until Ctrl-C.

    It uses TLS and node authentication; the control API is on loopback only. It prints who joins
    and leaves. packages/prometheus has alerts for --metrics.
    """
    federation = open_federation(folder)
    if metrics is not None:
        serve_metrics(FederationView(open_federation(folder.resolve())), metrics)
    figures = (
        f"at {federation.settings.listen}",
        f"coordinator {federation.identity.public[:12]}",
    )
    with stamped_steps(), stop_on_signal() as stopped:
        keep_up(
            federation,
            stopped,
            lambda: step("up", *figures),
            lambda words: step("note", words),
        )
        step("down", "all processes stopped")


def renew(
    folder: CoordinatorFolder,
    authority: Annotated[
        bool, option("Also renew the certificate of the authority.", "--authority")
    ] = False,
    new_key: Annotated[
        bool,
        option(
            "With --authority: create a new key for the authority, for example after"
            " a theft.",
            "--new-key",
        ),
    ] = False,
    signing_key: Annotated[
        bool,
        option(
            "Replace the signing key instead; the old key signs the new one.",
            "--signing-key",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Renew the server's certificate of DIR, for the hosts in coordinator.toml.

    A running coordinator loads it between rounds.

    With --authority the authority's certificate is renewed too, with the same key. Connected
    holders receive it from the gate, signed with the coordinator's key that they have pinned; until
    then the old one is valid.

    With --signing-key the certificates stay, and a new key signs requests and releases from now on.
    The old key signs the new one: holders accept it automatically, and earlier signatures stay
    valid.
    """
    if new_key and not authority:
        raise InputError(
            "--new-key needs --authority; omit it to renew only the server's"
            " certificate"
        )
    federation = open_federation(folder)
    if signing_key:
        if authority:
            raise InputError(
                "--signing-key and --authority cannot be combined; run `renew` twice"
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
        else "holders that did not connect before the old one expired"
    )
    accept = "they run: ridgeway client accept DIR --invite invite/"
    show(
        {"hosts": hosts, "certificates": ends},
        (
            "renewed",
            f"for {', '.join(hosts)}",
            *(f"{name} to {end[:10]}" for name, end in ends.items()),
        ),
        ("next", "a running coordinator loads it between rounds; no restart is needed"),
        ("and", f"send {folder / 'invite'} to {whom}", accept) if authority else None,
        json=json,
    )


def _renew_signing_key(federation: Federation, json: bool) -> None:
    link = federation.renew_key()
    announce(federation)
    write_invite(federation)
    show(
        {
            "before": link.before,
            "after": link.after,
            "handovers": len(federation.identity.handovers),
        },
        ("renewed", "the signing key", f"{link.before[:12]}… signed for", link.after),
        (
            "next",
            "holders receive the new key automatically; also send it over another"
            " channel",
        ),
        ("and", "make a new backup: keys of older backups are no longer valid"),
        json=json,
    )


def _hosts(*addresses: str) -> list[str]:
    hosts = (address.rpartition(":")[0] for address in addresses)
    return sorted({host.strip("[]") for host in hosts})


def status(folder: CoordinatorFolder, json: Json = False) -> None:
    """Show the holders of DIR, who is online, and their releases.

    It lists the problems of the next round and how to fix them. The exit code is 0 if the
    coordinator is up, 1 if it is down, and 2 if the folder cannot be read.
    """
    federation = open_federation(folder.resolve())
    facts = FederationView(federation).standing()
    state = "up" if facts["up"] else "down"
    certificates = facts["certificates"].items()
    ends = ", ".join(f"{name} to {end['ends'][:10]}" for name, end in certificates)
    last = facts["round"]
    obstacles = (
        (
            "stops" if problem["stops"] else "note",
            ", ".join(problem["names"]),
            problem["words"],
            problem["remedy"],
        )
        for problem in facts["obstacles"]
    )
    rows = [
        [
            member["name"],
            member["domain"] + _left_out(member),
            "yes" if member["online"] else "no",
            "yes" if member["in_newest"] else "no",
            f"{member['release']:04}" if member["release"] else "none",
        ]
        for member in facts["members"]
    ]
    show(
        facts,
        (state, f"at {facts['listen']}", f"certificates: {ends}"),
        ("mode", facts["mode"], facts["sentence"]),
        ("release", f"{facts['release'] or 0:04}"),
        ("round", str(last["number"]), last["outcome"]) if last else None,
        *obstacles,
        TextTable(["holder", "domain", "online", "in the release", "has"], rows),
        json=json,
    )
    if not facts["up"]:
        raise typer.Exit(NOT_AS_WISHED)


def _left_out(member: dict[str, Any]) -> str:
    if member["left"]:
        return " (left)"
    return " (retired)" if member["retired"] else ""


def tell_too_few(federation: Federation) -> None:
    """Say what a round lacks, as far as it is known without asking anybody."""
    if words := too_few_on_roster(federation):
        step("note", words)


def verify(folder: CoordinatorFolder, json: Json = False) -> None:
    """Check the ledger of DIR.

    It checks the hash chain, the stored sums, and the signature of every release.
    """
    federation = open_federation(folder)
    counts = federation.verify()
    numbers = (count(number, noun.rstrip("s")) for noun, number in counts.items())
    show(counts, f"verified  {folder}: {', '.join(numbers)}", json=json)


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

    It shows members, problems, running rounds, releases, the ledger and metrics.

    The page is read-only. Any address but loopback needs --keys, as with `serve`.
    """
    from ridgeway.common.cli.web_commands import serve_page

    view = FederationView(open_federation(folder.resolve()))
    parts = federation_page(view)
    serve_page(parts, host, port, keys, tls_cert, tls_key, rate, allow_host)


def backup(
    folder: CoordinatorFolder,
    target: Annotated[Path, argument("File to write; must not exist.", "FILE")],
    json: Json = False,
) -> None:
    """Back up DIR to one FILE, and verify it.

    FILE has the ledger, the sums, the releases, the settings and the keys.

    A round may be running. FILE holds the private keys, and only its owner can read it: keep it as
    safe as DIR.
    """
    made = back_up(open_federation(folder), target)
    room = target.stat().st_size
    show(
        {"file": str(target), "bytes": room, **made.model_dump(mode="json")},
        (
            "wrote",
            str(target),
            count(len(made.files), "file"),
            f"{made.entries:,} ledger entries",
            size(room),
            "verified",
        ),
        json=json,
    )


def restore(
    source: Annotated[Path, argument("Backup file written by `backup`.", "FILE")],
    folder: Annotated[Path, argument("New folder to restore to.", "DIR")],
    json: Json = False,
) -> None:
    """Restore the coordinator's folder DIR from a backup FILE.

    It verifies hashes, ledger, sums and releases first.
    """
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
            f"{made.entries:,} ledger entries",
            "verified",
        ),
        ("first", "stop the old coordinator: two coordinators with one key conflict"),
        (
            "then",
            f"ridgeway coordinator up {folder}",
            f"and: ridgeway coordinator round {folder} --dry-run",
        ),
        (
            "note",
            "the dry run names holders whose data is in a total that this copy lacks,"
            " and what to do",
        ),
        json=json,
    )


def accuracy_words(evaluation: Mapping[str, Any] | None) -> str:
    """The accuracy that a manifest tells, and where noise is in it, the interval in which it
    lies.
    """
    if evaluation is None:
        return "not evaluated"
    return percent_words(evaluation["accuracy"], evaluation.get("interval"))


def percent_words(accuracy: float, interval: Sequence[float] | None) -> str:
    words = f"{accuracy:.1f} %"
    if interval:
        words += f" (95 %: {interval[0]:.1f} to {interval[1]:.1f})"
    return words


def open_federation(folder: Path) -> Federation:
    if not (folder / COORDINATOR_TOML).is_file():
        raise InputError(
            f"{folder} is not a coordinator's folder; create one with: ridgeway"
            f" coordinator init {folder}"
        )
    return Federation(folder)
