"""ridgeway simulate: a whole federation on this machine.

Knows options and how results are shown; the work is done elsewhere and imported when it is needed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from common.cli import Json, Masked, show_evaluation
from common.files import check_new_folder
from common.settings import ENCODERS
from common.terminal import count, emit_json, step


def simulate(
    data: Annotated[
        Path | None,
        typer.Option(help="A folder with DOMAIN.train.jsonl and DOMAIN.test.jsonl. (default: text on this machine)"),
    ] = None,
    holders: Annotated[
        int | None, typer.Option(help="How many holders; several of one domain share its text. (default: one a domain)")
    ] = None,
    engine: Annotated[
        str, typer.Option(help="memory: in this process; flower: on Flower's simulation engine.")
    ] = "memory",
    drop: Annotated[list[str] | None, typer.Option(help="A holder that is not there; may be given again.")] = None,
    drop_rate: Annotated[
        float, typer.Option(help="The part of the holders that fall away in the middle, at every stage of the round.")
    ] = 0.0,
    masked: Masked = None,
    out: Annotated[Path | None, typer.Option(help="Where to put the release.")] = None,
    work: Annotated[Path | None, typer.Option(help="Keep everything the federation writes in this new folder.")] = None,
    encoder: Annotated[str, typer.Option(help=ENCODERS)] = "smollm2",
    json: Json = False,
) -> None:
    """Run a whole federation on this machine: holders, a coordinator, one round, a release, and a test of it."""
    from coordinator.words import MANY, Narrator
    from simulations.falling import STAGES
    from simulations.simulate import simulate as run

    narrator = Narrator()

    def watch(event: str, facts: Mapping[str, Any]) -> None:
        if event == "settled" and (len(facts["holders"]) <= MANY):
            for name, documents in facts["holders"].items():
                step("holder", name, count(documents, "document"), "not there" if name in facts["away"] else "")
        elif event == "settled":
            step("settled", count(len(facts["holders"]), "holder"))
        elif event == "falling":
            for name, answers in facts["names"].items():
                step("will fall", name, STAGES[answers])
        narrator(event, facts)

    with _folder(work) as folder:
        done = run(
            folder,
            watch,
            data=data,
            holders=holders,
            engine=engine,
            drop=drop or [],
            drop_rate=drop_rate,
            out=out,
            encoder=encoder,
            mode="clear" if masked is False else "masked",
        )
    if json:
        emit_json(done.to_json())
        return
    laps = done.timings
    step(
        "took", f"{sum(laps.values()):.1f} s", *(f"{name.replace('_', ' ')} {lap:.1f} s" for name, lap in laps.items())
    )
    if out is not None:
        step("wrote", str(out), done.release[:12])
    show_evaluation(done.evaluation)


@contextmanager
def _folder(work: Path | None) -> Iterator[Path]:
    if work is None:
        with tempfile.TemporaryDirectory(prefix="ridgeway-") as name:
            yield Path(name)
        return
    check_new_folder(work)
    work.mkdir(parents=True, exist_ok=True)
    yield work
