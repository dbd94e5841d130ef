"""ridgeway client …: what a domain holder runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeway.client.cli import (
    audit_commands,
    bundle_commands,
    evidence_commands,
    holder_commands,
    init_command,
    roster_commands,
    status_command,
)
from ridgeway.common.base.errors import InputError
from ridgeway.common.base.files import check_output
from ridgeway.common.base.settings import (
    DEFAULT,
    ENCODERS,
    SAMPLING,
    Preset,
    changed_sampling,
    preset,
)
from ridgeway.common.base.threads import cores
from ridgeway.common.cli.options import Fields, Json, SkipBroken, with_sampling_options
from ridgeway.common.cli.terminal import (
    command_group,
    count,
    emit_json,
    progress_bar,
    step,
    stop_on_signal,
    table,
)

if TYPE_CHECKING:
    from ridgeway.client.sums.corpus import Counters
    from ridgeway.client.sums.prepare import Engine, PrepareJob, PrepareOutcome
    from ridgeway.common.encoding.transformer_encoder import AnyEncoder

app = command_group("The domain holder's side: private files to sums that may leave.")

COUNTS_FOLLOW = "; but counts of tokens can be computed from sums over single tokens"

Corpus = Annotated[
    list[Path],
    typer.Argument(
        metavar="CORPUS...", help="Files, folders and URLs with the domain's text."
    ),
]
Domain = Annotated[str, typer.Option(help="The domain that the text belongs to.")]
PresetName = Annotated[
    str, typer.Option("--preset", help="default, or paper for the published method.")
]
Holdout = Annotated[
    float | None,
    typer.Option(
        help="Share of documents kept for evaluation. (default: the preset's)"
    ),
]
Threads = Annotated[int, typer.Option(help="Threads to use; 0: one a core.")]
Device = Annotated[
    str,
    typer.Option(
        help=(
            "Where to sum: auto, cpu, cuda, or one GPU such as cuda:0. auto and cuda"
            " take all GPUs."
        )
    ),
]
PartOfCorpus = Annotated[
    str,
    typer.Option(
        metavar="K/N",
        help="Sum the K-th of N parts of the corpus; `client add` adds the files up.",
    ),
]
EngineName = Annotated[
    str,
    typer.Option(
        help="local, or ray for a Ray cluster whose machines all see the corpus."
    ),
]
Fresh = Annotated[
    bool,
    typer.Option(
        "--fresh", help="Forget what earlier runs with these settings have kept."
    ),
]


def _job(
    roots: list[Path],
    domain: str,
    chosen: Preset,
    holdout: float | None,
    text_field: str,
    threads: int,
) -> PrepareJob:
    from ridgeway.client.sums.prepare import PrepareJob
    from ridgeway.common.base.jsonl import field_names

    return PrepareJob(
        roots=tuple(roots),
        domain=domain,
        sampling=chosen.sampling,
        holdout=chosen.holdout if holdout is None else holdout,
        text_fields=field_names(text_field),
        threads=threads or cores(),
    )


def _check_output(out: Path, roots: list[Path]) -> None:
    """Raise before any work if the output cannot be written, or would destroy a file of the
    corpus.
    """
    from ridgeway.client.sums.corpus import find_sources
    from ridgeway.client.sums.corpus_places import is_url

    check_output(out)
    if out.exists() and any(
        out.samefile(each.path)
        for each in find_sources(roots)[0]
        if not is_url(each.path)
    ):
        raise InputError(
            f"{out} is part of the corpus and would be overwritten; name another place"
            " to write to"
        )


@app.command()
@with_sampling_options
def prepare(
    corpus: Corpus,
    domain: Domain,
    out: Annotated[Path, typer.Option(help="The statistics file to write.")],
    encoder: Annotated[
        str | None, typer.Option(help=f"{ENCODERS}. (default: the preset's)")
    ] = None,
    preset_name: PresetName = "default",
    holdout: Holdout = None,
    text_field: Fields = "text",
    skip_broken: SkipBroken = 0.0,
    threads: Threads = 0,
    device: Device = "auto",
    part: PartOfCorpus = "",
    engine: EngineName = "local",
    address: Annotated[
        str,
        typer.Option(help="Of the Ray cluster. (default: one on this machine alone)"),
    ] = "",
    fresh: Fresh = False,
    json: Json = False,
    **sampling: int | None,
) -> None:
    """Turn private files into exact sums. Interrupted, it goes on where it was; unchanged files are
    not read again. A --window without other numbers of sampling means plain windows.
    """
    from ridgeway.client.sums.corpus_parts import part_numbers
    from ridgeway.client.sums.prepare import Interrupted, Watch
    from ridgeway.client.sums.prepare import prepare as sum_up
    from ridgeway.common.base.files import cache_folder
    from ridgeway.common.base.native import why_not
    from ridgeway.common.encoding.encoder_sources import find_encoder
    from ridgeway.common.encoding.transformer_encoder import usual_sampling
    from ridgeway.common.statistics.statistics_file import save_prepared

    numbers = part_numbers(part) if part else None
    chosen = preset(preset_name)
    # what cannot be is said before the encoder is looked for
    changed_sampling(chosen.sampling, **sampling)
    _check_output(out, corpus)
    encoder = encoder or chosen.encoder
    found = find_encoder(encoder)
    usual = usual_sampling(found) if chosen is DEFAULT else chosen.sampling
    chosen = replace(chosen, sampling=changed_sampling(usual, **sampling))
    job = _job(corpus, domain, chosen, holdout, text_field, threads)
    job = replace(job, skip_broken=skip_broken, part=numbers)
    if why_not:
        step("slower", "no native module", why_not)
    broken = out.with_name(f"{out.name}.broken.txt")
    with (
        _summing(job, found, encoder, engine, address, device, threads) as (
            job,
            elsewhere,
            devices,
        ),
        stop_on_signal() as stopped,
        progress_bar(domain) as progress,
    ):
        try:
            watch = Watch(progress, stopped)
            outcome = sum_up(
                job,
                found,
                cache_folder(),
                watch,
                fresh=fresh,
                broken_list=broken,
                engine=elsewhere,
            )
        except Interrupted:
            again = "the same command without --fresh" if fresh else "the same command"
            raise KeyboardInterrupt(
                f"interrupted; what was summed is kept, and {again} goes on from there"
            ) from None
    save_prepared(outcome.prepared, out)
    if outcome.counters.broken and not json:
        step(
            "skipped",
            "broken",
            count(outcome.counters.broken, "record"),
            f"listed in {broken}",
        )
    _report(outcome, out, devices, json)


@contextmanager
def _summing(
    job: PrepareJob,
    encoder: AnyEncoder,
    word: str,
    engine: str,
    address: str,
    device: str,
    threads: int,
) -> Iterator[tuple[PrepareJob, Engine | None, tuple[str, ...]]]:
    """Within this block, the job, who sums if it is not this process, and on which GPUs; a
    cluster's are `cuda`.
    """
    if engine not in ("local", "ray") or (address and engine != "ray"):
        raise InputError(
            f"--engine {engine} --address {address!r} cannot be used; an address is for"
            " --engine ray"
        )
    if engine == "local":
        devices = _devices(device)
        yield replace(job, devices=devices), None, devices
        return
    from ridgeway.client.cluster.ray_engine import cluster, gpus_of_cluster, ray_engine
    from ridgeway.common.encoding.transformer_encoder import ContextualEncoder

    with cluster(address, job.threads):
        gpus = device != "cpu" and gpus_of_cluster()
        if gpus and isinstance(encoder, ContextualEncoder):
            job = replace(
                job, devices=("cuda",)
            )  # whose features are others than the CPU's
        yield (
            job,
            ray_engine(job, encoder, word, gpus=gpus, threads=threads),
            ("cuda",) if gpus else (),
        )


def _devices(word: str) -> tuple[str, ...]:
    """The GPUs to sum on; where there is one that cannot be used, a word about it."""
    from ridgeway.common.base.devices import chosen, missed

    devices = chosen(word)
    reason = missed() if word == "auto" and not devices else None
    if reason:
        step("device", "cpu", reason)
    return devices


def _report(
    outcome: PrepareOutcome, out: Path, devices: tuple[str, ...], json: bool
) -> None:
    counters = outcome.counters
    share = outcome.prepared.part
    if json:
        part = {"part": share.number, "of": share.of} if share else {}
        facts = (
            asdict(counters)
            | part
            | {
                "files": outcome.files,
                "files_read": outcome.files_read,
                "files_skipped": outcome.files_skipped,
                "samples": outcome.prepared.statistics.mass,
                "seconds": round(outcome.seconds, 3),
                "devices": list(devices) or ["cpu"],
                "out": str(out),
                "bytes": out.stat().st_size,
                "digest": outcome.prepared.digest,
            }
        )
        emit_json(facts)
        return
    seconds = max(outcome.seconds, 1e-9)
    fast = f"{outcome.bytes_read / 1e6 / seconds:.1f} MB/s"
    slow = (  # where a model reads every token
        f"{counters.tokens / seconds:,.0f} tokens/s"
    )
    speed = (
        "nothing new"
        if not outcome.files_read
        else fast
        if outcome.bytes_read > 1e5 * seconds
        else slow
    )
    fewer = outcome.files_read < outcome.files
    read = (
        f"{outcome.files_read:,} of {count(outcome.files, 'file')}"
        if fewer
        else count(outcome.files, "file")
    )
    step(
        "read",
        read,
        count(counters.documents, "document"),
        count(counters.tokens, "token"),
        speed,
    )
    if devices:
        step("summed", "on " + ", ".join(devices))
    if outcome.files_skipped:
        step("skipped", "other kinds of file", count(outcome.files_skipped, "file"))
    _report_met(counters)
    which = (
        [f"{share}; add it to the others with `ridgeway client add`"] if share else []
    )
    step(
        "wrote",
        str(out),
        count(outcome.prepared.statistics.mass, "sample"),
        _megabytes(out),
        *which,
    )


def _report_met(counters: Counters) -> None:
    if counters.held_out:
        step("held out", "for evaluation", count(counters.held_out, "document"))
    if counters.empty:
        step("skipped", "without text", count(counters.empty, "document"))
    if counters.replaced:
        step("replaced", "bytes that are not UTF-8", count(counters.replaced, "place"))


def _megabytes(path: Path) -> str:
    return f"{path.stat().st_size / 1e6:.1f} MB"


@app.command()
def add(
    parts: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="All files that `prepare --part` made."),
    ],
    out: Annotated[Path, typer.Option(help="The statistics file to write.")],
    json: Json = False,
) -> None:
    """Add the parts of a corpus up to the file that one run over all of it makes, byte for byte."""
    from ridgeway.client.sums.corpus import Counters
    from ridgeway.client.sums.corpus_parts import add_parts
    from ridgeway.client.sums.prepare import check_readable, check_text
    from ridgeway.common.statistics.statistics_file import load_prepared, save_prepared

    check_output(out)
    total, met, skip_broken = add_parts(
        {path: load_prepared(path, parts=True) for path in dict.fromkeys(parts)}
    )
    counters = Counters(**met)
    check_readable(counters, skip_broken, "each part's .broken.txt lists its own")
    check_text(counters, "the corpus")
    save_prepared(total, out)
    if json:
        facts = {
            "parts": len(parts),
            "samples": total.statistics.mass,
            "out": str(out),
            "digest": total.digest,
        }
        emit_json(met | facts)
        return
    step(
        "added",
        count(len(parts), "part"),
        count(counters.documents, "document"),
        count(counters.tokens, "token"),
    )
    _report_met(counters)
    step("wrote", str(out), count(total.statistics.mass, "sample"), _megabytes(out))


@app.command("held-out")
def held_out(
    corpus: Corpus,
    out: Annotated[
        Path,
        typer.Option(
            help="Where to write them: DOMAIN.test.jsonl, readable by you alone."
        ),
    ],
    preset_name: PresetName = "default",
    holdout: Holdout = None,
    text_field: Fields = "text",
    skip_broken: SkipBroken = 0.0,
    json: Json = False,
) -> None:
    """Write the documents that `prepare` leaves out of the sums, to evaluate with. They are private
    text.
    """
    import json as codec
    from itertools import chain

    from ridgeway.client.sums.corpus import Counters
    from ridgeway.client.sums.prepare import Watch, held_out_documents
    from ridgeway.common.base.files import whole_file

    _check_output(out, corpus)
    job = replace(
        _job(corpus, "held-out", preset(preset_name), holdout, text_field, 1),
        skip_broken=skip_broken,
    )
    counters = Counters()
    with stop_on_signal() as stopped, progress_bar("held-out") as progress:
        texts = held_out_documents(job, counters, Watch(progress, stopped))
        first = next(texts, None)
        if first is None:
            raise InputError(
                f"none of the {counters.documents:,} documents is held out at a share"
                f" of {job.holdout:g}"
            )
        with whole_file(out, private=True) as file:
            for text in chain((first,), texts):
                file.write(
                    codec.dumps({"text": text}, ensure_ascii=False).encode() + b"\n"
                )
    if json:
        emit_json(
            {
                "documents": counters.documents,
                "held_out": counters.held_out,
                "out": str(out),
            }
        )
    else:
        step(
            "held out",
            str(out),
            f"{counters.held_out:,} documents",
            f"of {counters.documents:,}",
        )


@app.command()
def inspect(
    statistics: Annotated[
        Path, typer.Argument(metavar="FILE", help="A statistics file.")
    ],
    json: Json = False,
) -> None:
    """What would leave this machine: shapes, masses, bytes and fingerprints. No text, because there
    is none in it.
    """
    from ridgeway.common.statistics.statistics_file import load_prepared

    prepared = load_prepared(statistics)
    sums = prepared.statistics
    terms = prepared.sampling
    triangle, cross = sums.packed()
    counted = "" if terms.window > 1 else COUNTS_FOLLOW
    told: list[tuple[str, Any, str]] = [
        ("domain", prepared.domain, "the domain these sums speak for"),
        (
            "encoder",
            prepared.encoder_name,
            "the public encoder they were made with; local: from a folder",
        ),
        ("fingerprint", prepared.fingerprint, "of that encoder"),
        *(
            (name, getattr(terms, name), about["meaning"])
            for name, about in SAMPLING.items()
        ),
        ("holdout", prepared.holdout, "share of documents kept out of the sums"),
        ("features", sums.shape[0], "the encoder's width and a constant"),
        (
            "samples",
            sums.mass,
            (
                "how much windows and documents counted in all: it tells the size of"
                " the corpus"
            ),
        ),
        (
            "numbers",
            triangle.size + cross.size,
            "64-bit integers: the triangle of gram, and cross",
        ),
        (
            "largest",
            int(max(abs(triangle).max(), abs(cross).max())),
            "of them, in absolute value",
        ),
        ("bytes", statistics.stat().st_size, "of the file"),
        ("digest", prepared.digest, "of the sums and their terms"),
        ("text", "none", "no text, token ids, file names or paths" + counted),
    ]
    if json:
        emit_json({name: value for name, value, _ in told})
        return
    rows = [
        [name, f"{value:,}" if isinstance(value, int) else str(value), words]
        for name, value, words in told
    ]
    table(["what leaves", "value", "meaning"], rows, numbers_from=3)


for command in (
    audit_commands.audit,
    *init_command.COMMANDS,
    *holder_commands.COMMANDS,
    *status_command.COMMANDS,
    *roster_commands.COMMANDS,
    *bundle_commands.COMMANDS,
    *evidence_commands.COMMANDS,
):
    app.command(command.__name__)(command)
