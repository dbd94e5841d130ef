"""ridgeway simulate: a whole federation on this machine."""

from __future__ import annotations

import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated

from ridgeway.common.base.errors import InputError
from ridgeway.common.base.files import check_new_folder
from ridgeway.common.base.records import Mode
from ridgeway.common.base.settings import DEFAULT, ENCODERS, PRIVATE_ENCODER
from ridgeway.common.cli.route_commands import evaluation_lines
from ridgeway.common.cli.terminal import CountingBar, Json, count, option, show, step
from ridgeway.common.privacy.accountant import check_privacy, delta_warning
from ridgeway.coordinator.history import MAX_HOLDERS_BY_NAME, Narrator
from ridgeway.coordinator.round.federation import PrivacySettings
from ridgeway.coordinator.round.progress import Event, Watch
from ridgeway.simulations.simulate import DropoutsChosen, EpochOpened, FederationSettled
from ridgeway.simulations.simulate import simulate as run


def simulate(
    data: Annotated[
        Path | None,
        option(
            "A folder with DOMAIN.train.jsonl and DOMAIN.test.jsonl. (default: text"
            " on this machine)"
        ),
    ] = None,
    holders: Annotated[
        int | None,
        option(
            "Number of holders; holders of one domain share its text. (default: one "
            "per domain)"
        ),
    ] = None,
    engine: Annotated[
        str,
        option("memory: on the cores of this machine; flower: on Flower's engine."),
    ] = "memory",
    drop: Annotated[
        list[str] | None,
        option("A holder that is offline; repeatable."),
    ] = None,
    drop_rate: Annotated[
        float,
        option("Share of holders that drop out, at every stage of the round."),
    ] = 0.0,
    private: Annotated[
        bool,
        option(
            "A private round, the default of a deployment: noise hides any single "
            "document.",
            "--private",
        ),
    ] = False,
    clear: Annotated[
        bool, option("Exact sums without masks: the same router.", "--clear")
    ] = False,
    out: Annotated[Path | None, option("Folder for the release.")] = None,
    work: Annotated[
        Path | None,
        option("New folder for all files of the federation."),
    ] = None,
    encoder: Annotated[
        str | None,
        option(
            f"{ENCODERS}. (default: {DEFAULT.encoder}; with --private {PRIVATE_ENCODER})"
        ),
    ] = None,
    sums: Annotated[
        str | None,
        option("With --private: columns, or full (with products). (default: columns)"),
    ] = None,
    epsilon: Annotated[
        float | None,
        option("With --private: ε of the round. (default: 1)"),
    ] = None,
    prior: Annotated[
        Path | None,
        option("With --private: a file of `prior make`. (default: of built-in text)"),
    ] = None,
    json: Json = False,
) -> None:
    """Run a whole federation on this machine.

    Holders, a coordinator, one round, a release, and a test of it.

    Rounds are masked, as the published method has them: exact sums, under masks. A deployment runs
    private rounds.
    """
    if private and clear:
        raise InputError("--private and --clear exclude each other; give one")
    given = {"--sums": sums, "--epsilon": epsilon, "--prior": prior}
    named = [name for name, value in given.items() if value is not None]
    if named and not private:
        raise InputError(
            f"{' and '.join(named)} needs --private: other rounds have no noise"
        )
    mode: Mode = "private" if private else "clear" if clear else "masked"
    asked = _asked(sums, epsilon)
    with _place(work) as folder:
        done = run(
            Path(folder),
            _watch(asked if private else None),
            data=data,
            holders=holders,
            engine=engine,
            drop=drop or [],
            drop_rate=drop_rate,
            out=out,
            encoder=encoder or (PRIVATE_ENCODER if private else DEFAULT.encoder),
            mode=mode,
            privacy=asked,
            prior=prior,
        )
    laps = (
        f"{name.replace('_', ' ')} {lap:.1f} s" for name, lap in done.timings.items()
    )
    show(
        done.to_json(),
        ("took", f"{sum(done.timings.values()):.1f} s", *laps),
        ("wrote", str(out), done.release[:12]) if out else None,
        *evaluation_lines(done.evaluation),
        json=json,
    )


def _asked(sums: str | None, epsilon: float | None) -> PrivacySettings:
    """What private rounds are to be like; what was not named is as in a deployment."""
    usual = PrivacySettings()
    cost = usual.epsilon if epsilon is None else epsilon
    chosen = check_privacy(sums or usual.sums, cost)
    return PrivacySettings(sums=chosen, epsilon=cost)


def _place(work: Path | None) -> AbstractContextManager[str | Path]:
    """The folder of the federation: a new one that is kept, or one that ends with the block."""
    if work is None:
        return tempfile.TemporaryDirectory(prefix="ridgeway-")
    check_new_folder(work)
    return nullcontext(work)


def _watch(asked: PrivacySettings | None) -> Watch:
    """Tells what happens, the federation and who will fall away first."""
    narrator = Narrator()
    bar = CountingBar()

    def settled(event: FederationSettled) -> None:
        holders = event.holders
        away = event.away
        if words := delta_warning(asked.delta, max(holders.values())) if asked else "":
            step("warning", words)
        if len(holders) > MAX_HOLDERS_BY_NAME:
            step("settled", count(len(holders), "holder"))
            return
        for name, documents in holders.items():
            step(
                "holder",
                name,
                count(documents, "document"),
                "not there" if name in away else "",
            )

    def watch(event: Event) -> None:
        match event:
            case EpochOpened(_, opened, holders) if opened < holders:
                bar.advance("summed", holders)
            case EpochOpened(_, _, holders):
                bar.close()
                step("summed", f"text of {count(holders, 'holder')}")
            case FederationSettled():
                settled(event)
            case DropoutsChosen(names):
                for name, stage in names.items():
                    step("will fall", name, stage)
            case _:
                narrator(event)

    return watch
