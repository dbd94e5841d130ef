"""ridgeway coordinator …: what the operator runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.settings import Preset, SelectorName, Weighting, preset
from ridgeway.common.cli.options import Fields, Json, Model, ReleaseFolder, RunsOn
from ridgeway.common.cli.route_commands import show_evaluation, tell_left_out
from ridgeway.common.cli.terminal import command_group, emit_json, step
from ridgeway.coordinator.cli import (
    federation_commands,
    membership_commands,
    release_commands,
    round_commands,
)

if TYPE_CHECKING:
    from ridgeway.common.base.identity import Identity
    from ridgeway.coordinator.solving.publish import PublishedRelease, RouterChoices

app = command_group("The operator's side: statistics to signed releases.")

KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        help=(
            "The coordinator's private key. (default: in your configuration folder,"
            " made on first use)"
        ),
    ),
]
Threshold = Annotated[
    float, typer.Option(help="Abstain below this confidence; 0: never.")
]
Fallback = Annotated[
    str | None, typer.Option(help="Where prompts go when the router abstains.")
]


@app.command()
def solve(
    statistics: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", help="Statistics files; those of one domain add up."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder of the release.")],
    preset_name: Annotated[
        str,
        typer.Option("--preset", help="default, or paper for the published method."),
    ] = "default",
    weighting: Annotated[
        str | None, typer.Option(help="equal or tokens. (default: the preset's)")
    ] = None,
    ridge: Annotated[
        float | None,
        typer.Option(
            help=(
                "λ, relative to the mean diagonal unless --ridge-absolute. (default:"
                " the preset's)"
            )
        ),
    ] = None,
    ridge_absolute: Annotated[
        bool | None,
        typer.Option(
            "--ridge-absolute/--ridge-relative", help="What λ is measured in."
        ),
    ] = None,
    normalise_columns: Annotated[
        bool | None,
        typer.Option(
            "--normalise-columns/--columns-as-solved",
            help="Divide each column by its norm.",
        ),
    ] = None,
    selector: Annotated[
        str | None,
        typer.Option(help="average, entropy or all. (default: the preset's)"),
    ] = None,
    k: Annotated[
        int | None,
        typer.Option(help="How many tokens vote under the entropy selector."),
    ] = None,
    threshold: Threshold = 0.0,
    fallback: Fallback = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            help="The encoder, if it is not on this machine under its own name."
        ),
    ] = None,
    key_file: KeyFile = None,
    json: Json = False,
) -> None:
    """Add statistics up, solve, compile, and sign a release."""
    from ridgeway.common.encoding.encoder_sources import find_by_fingerprint
    from ridgeway.common.routing.release import refuse_foreign
    from ridgeway.common.statistics.statistics_file import load_prepared
    from ridgeway.coordinator.solving.publish import draft, sign
    from ridgeway.coordinator.solving.total import must_agree

    given = {"weighting": weighting, "normalise_columns": normalise_columns}
    ridge_given = {
        "value": ridge,
        "relative": None if ridge_absolute is None else not ridge_absolute,
    }
    choices = _choices(
        preset(preset_name),
        given,
        ridge_given,
        {"name": selector, "k": k},
        threshold,
        fallback,
    )
    known = key_file is not None or _key_path(None).exists()
    refuse_foreign(
        out, signing_identity(key_file, make=False).public if known else None
    )
    parts = [load_prepared(path) for path in statistics]
    first = must_agree(parts)
    found = find_by_fingerprint(first.fingerprint, first.encoder_name, encoder)
    made = draft(
        parts, found, choices
    )  # a key is made only once there is something to sign
    if made.solution.note:
        step("note", made.solution.note)
    _report(sign(made, signing_identity(key_file, make=True), out), out, json)


def _choices(
    chosen: Preset,
    given: dict[str, Any],
    ridge: dict[str, Any],
    selector: dict[str, Any],
    threshold: float,
    fallback: str | None,
) -> RouterChoices:
    from ridgeway.common.base.settings import Confidence
    from ridgeway.coordinator.solving.publish import RouterChoices

    if given["weighting"] not in (None, *get_args(Weighting)):
        raise InputError(
            f"there is no weighting {given['weighting']!r}; there are equal and tokens"
        )
    if selector["name"] not in (None, *get_args(SelectorName)):
        raise InputError(
            f"there is no selector {selector['name']!r}; there are average, entropy"
            " and all"
        )
    chosen = replace(chosen, **_named(given))
    return RouterChoices(
        weighting=chosen.weighting,
        ridge=replace(chosen.ridge, **_named(ridge)),
        normalise_columns=chosen.normalise_columns,
        selector=replace(chosen.selector, **_named(selector)),
        confidence=Confidence(threshold=threshold, fallback=fallback),
    )


def _named(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _key_path(given: Path | None) -> Path:
    from ridgeway.common.base.files import config_folder

    return given or config_folder() / "coordinator.key"


def signing_identity(given: Path | None, *, make: bool) -> Identity:
    """The key that releases are signed with; the one in the configuration folder is made for the
    first release.
    """
    from ridgeway.common.base.identity import create_identity, load_identity

    path = _key_path(given)
    if given is not None or path.exists() or not make:
        return load_identity(path)
    identity = create_identity(path)
    step("made", "a new signing key", str(path), f"public key {identity.public}")
    return identity


@app.command()
def key(key_file: KeyFile = None, json: Json = False) -> None:
    """Print the public key that users of your releases should pin; the private key is made if there
    is none.
    """
    from ridgeway.common.base.identity import create_identity

    new = key_file is not None and not key_file.exists()
    identity = (
        create_identity(_key_path(key_file))
        if new
        else signing_identity(key_file, make=True)
    )
    if json:
        emit_json({"public_key": identity.public})
    else:
        print(identity.public)


def _report(published: PublishedRelease, out: Path, json: bool) -> None:
    total = published.total
    solution = published.solution
    size = sum(path.stat().st_size for path in out.iterdir())
    if json:
        emit_json(
            {
                "release": published.release,
                "domains": list(total.domains),
                "masses": total.masses,
                "holders": total.holders,
                "ridge": solution.ridge,
                "condition": solution.condition,
                "residual": solution.residual,
                "device": solution.device,
                "bytes": size,
                "out": str(out),
            }
        )
        return
    step(
        "added",
        f"{total.holders} statistics files",
        f"{len(total.domains)} domains",
        ", ".join(total.domains),
    )
    numbers = f"condition {solution.condition:.1e}", f"residual {solution.residual:.1e}"
    step("solved", f"{total.statistics.shape[0]} features", *numbers)
    step("release", str(out), published.release[:12], f"{size / 1e6:.1f} MB")


@app.command()
def calibrate(
    release: ReleaseFolder,
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA_DIR",
            help="Held-out text: DOMAIN.test.jsonl for every domain.",
        ),
    ],
    text_field: Fields = "text",
    threshold: Annotated[
        float | None, typer.Option(help="Abstain below this confidence; 0: never.")
    ] = None,
    fallback: Fallback = None,
    public_text: Annotated[
        bool,
        typer.Option(
            "--public-text",
            help="The text is public: needed for releases of private rounds.",
        ),
    ] = False,
    key_file: KeyFile = None,
    model: Model = None,
    device: RunsOn = "auto",
    json: Json = False,
) -> None:
    """Fit the temperature on held-out text, so that confidence means something, and sign the
    release again.
    """
    from ridgeway.common.base.jsonl import field_names
    from ridgeway.coordinator.solving.publish import calibrate_release

    changes = _named({"threshold": threshold, "fallback": fallback})
    identity = signing_identity(key_file, make=False)
    fields = field_names(text_field)
    done = calibrate_release(
        release, data, fields, changes, identity, model, device, public_text=public_text
    )
    tell_left_out(data, done.evaluation.domains)
    if json:
        emit_json({"release": done.release, **done.figures})
        return
    fitted = done.calibration
    heat = f"temperature {fitted.temperature:.3g}"
    curve = f"half {fitted.half:g}, tail {fitted.tail:g}"
    step("fitted", f"{fitted.texts:,} held-out texts", heat, curve)
    step(
        "gap",
        "confidence to accuracy",
        f"{fitted.gap_before:.1f} % before",
        f"{fitted.gap_after:.1f} % after",
    )
    step("release", str(release), done.release[:12], "calibrated")
    show_evaluation(done.evaluation)
    step(
        "next",
        f"ridgeway calibrate {release} {data}",
        "what a threshold would cost and gain",
    )


for command in (
    federation_commands.init,
    federation_commands.up,
    membership_commands.admit,
    membership_commands.invite,
    federation_commands.renew,
    round_commands.preflight,
    round_commands.round_,
    round_commands.schedule,
    round_commands.deliver,
    federation_commands.status,
    release_commands.releases,
    release_commands.show,
    membership_commands.retire,
    membership_commands.remove,
    membership_commands.rollback,
    federation_commands.verify,
    federation_commands.backup,
    federation_commands.restore,
    federation_commands.prune,
    federation_commands.page,
):
    app.command(command.__name__.rstrip("_"))(command)
