"""ridgeway coordinator …: what the operator runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.identity import Identity, create_identity, load_identity
from ridgeway.common.base.settings import Confidence, preset
from ridgeway.common.cli.terminal import (
    Fallback,
    Json,
    KeyFile,
    argument,
    command_group,
    option,
    show,
    signing_key,
    size,
    step,
)
from ridgeway.common.routing.release import refuse_foreign
from ridgeway.common.statistics import load_prepared
from ridgeway.common.text.encoder_files import find_by_fingerprint
from ridgeway.coordinator.cli.federation_commands import (
    backup,
    init,
    open_federation,
    page,
    renew,
    restore,
    status,
    up,
    verify,
)
from ridgeway.coordinator.cli.membership_commands import (
    admit,
    invite,
    remove,
    retire,
    rollback,
)
from ridgeway.coordinator.cli.round_commands import (
    deliver,
    releases,
    round_,
)
from ridgeway.coordinator.solving.publish import (
    RouterChoices,
    draft,
    sign,
)
from ridgeway.coordinator.solving.solve import must_agree

app = command_group()


def solve(
    statistics: Annotated[
        list[Path],
        argument("Statistics files; files of one domain are added.", "FILE..."),
    ],
    out: Annotated[Path, option("The folder of the release.")],
    preset_name: Annotated[
        str,
        option("default, or paper (the published method).", "--preset"),
    ] = "default",
    threshold: Annotated[
        float, option("Abstain below this confidence; 0: never.")
    ] = 0.0,
    fallback: Fallback = None,
    encoder: Annotated[
        str | None,
        option("Encoder, if this machine does not find it by name."),
    ] = None,
    key_file: KeyFile = None,
    json: Json = False,
) -> None:
    """Add statistics, solve, compile and sign a release."""
    confidence = Confidence(threshold=threshold, fallback=fallback)
    choices = RouterChoices.of_preset(preset(preset_name), confidence)
    known = key_file is not None or signing_key(None).exists()
    refuse_foreign(
        out, signing_identity(key_file, make=False).public if known else None
    )
    parts = [load_prepared(path) for path in statistics]
    first = must_agree(parts)
    shared = find_by_fingerprint(first.fingerprint, first.encoder_name, encoder)
    made = draft(parts, shared, choices)
    if made.solution.note:
        step("note", made.solution.note)
    # a key is made only once there is something to sign
    release = sign(made, signing_identity(key_file, make=True), out)
    total = made.total
    solution = made.solution
    room = sum(path.stat().st_size for path in out.iterdir())
    show(
        {
            "release": release,
            "domains": list(total.domains),
            "masses": total.masses,
            "holders": total.holders,
            "ridge": solution.ridge,
            "condition": solution.condition,
            "residual": solution.residual,
            "device": solution.device,
            "bytes": room,
            "out": str(out),
        },
        (
            "added",
            f"{total.holders} statistics files",
            f"{len(total.domains)} domains",
            ", ".join(total.domains),
        ),
        (
            "solved",
            f"{total.statistics.shape[0]} features",
            f"condition {solution.condition:.1e}",
            f"residual {solution.residual:.1e}",
        ),
        ("release", str(out), release[:12], size(room)),
        json=json,
    )


def signing_identity(key_file: Path | None, *, make: bool) -> Identity:
    """The key that releases are signed with; the one in the configuration folder is made for the
    first release.
    """
    path = signing_key(key_file)
    if key_file is not None or path.exists() or not make:
        return load_identity(path)
    identity = create_identity(path)
    step("made", "a new signing key", str(path), f"public key {identity.public}")
    return identity


def key(
    folder: Annotated[
        Path | None, argument("The coordinator's folder.", "[DIR]")
    ] = None,
    key_file: Annotated[
        Path | None,
        option("The key file of `solve` instead; created if missing."),
    ] = None,
    json: Json = False,
) -> None:
    """Print the public key of DIR, which holders and users of its releases should pin."""
    if folder is not None and key_file is None:
        identity = open_federation(folder).identity
    elif key_file is not None and folder is None:
        is_made = key_file.exists()
        identity = load_identity(key_file) if is_made else create_identity(key_file)
    else:
        raise InputError(
            "give either the coordinator's folder (`ridgeway coordinator key DIR`), or"
            " the key file of `coordinator solve` (--key-file FILE)"
        )
    show({"public_key": identity.public}, identity.public, json=json)


_PANELS = {
    "Set up": (init, up, invite, admit, remove, retire, page),
    "Run rounds": (round_, deliver, releases, rollback),
    "Maintain": (status, verify, backup, restore, renew, solve, key),
}
for panel, commands in _PANELS.items():
    for command in commands:
        name = command.__name__.rstrip("_")
        app.command(name, rich_help_panel=panel)(command)
