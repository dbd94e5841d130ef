"""ridgeway client …: what a domain holder runs; ridgeway prior …: the public prior of private
rounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

from ridgeway.client.cli.approval_commands import approve, bundle, confirm, members
from ridgeway.client.cli.folder_commands import backup, init, restore
from ridgeway.client.cli.holder_commands import (
    accept,
    join,
    leave,
    ready,
    releases,
    renew,
    watched,
)
from ridgeway.client.cli.record_commands import export, page, statement, status, verify
from ridgeway.client.sums.corpus import Counters, Position, documents, find_sources
from ridgeway.client.sums.corpus_places import is_url
from ridgeway.client.sums.part_store import part_numbers
from ridgeway.client.sums.prepare import (
    Engine,
    Interrupted,
    PrepareJob,
    PrepareReport,
    sum_part,
)
from ridgeway.client.sums.prepare import prepare as sum_up
from ridgeway.client.sums.ray_engine import cluster, gpus_of_cluster, ray_engine
from ridgeway.common.base.errors import InputError
from ridgeway.common.base.files import cache_folder, check_output, field_names
from ridgeway.common.base.machine import chosen, missed, why_not
from ridgeway.common.base.operating_system import cores
from ridgeway.common.base.settings import (
    DEFAULT,
    ENCODERS,
    PRIVATE_ENCODER,
    SAMPLING,
    changed_sampling,
    preset,
)
from ridgeway.common.cli.terminal import (
    Fields,
    Json,
    PartOfCorpus,
    SkipBroken,
    TextTable,
    argument,
    command_group,
    count,
    option,
    progress_bar,
    show,
    size,
    step,
    stop_on_signal,
    with_sampling_options,
)
from ridgeway.common.privacy.public_prior import built_in_prior, make_prior, write_prior
from ridgeway.common.statistics import load_prepared, save_prepared
from ridgeway.common.text.encoder_files import find_encoder
from ridgeway.common.text.table_encoder import TableEncoder, usual_sampling

app = command_group()

COUNTS_FOLLOW = "; but counts of tokens can be computed from sums over single tokens"


def _check_output(out: Path, roots: list[Path]) -> None:
    """Raise before any work if the output cannot be written, or would destroy a file of the
    corpus.
    """

    check_output(out)
    if out.exists() and any(
        out.samefile(source.path)
        for source in find_sources(roots)[0]
        if not is_url(source.path)
    ):
        raise InputError(
            f"{out} is part of the corpus and would be overwritten; write to another "
            "path"
        )


@with_sampling_options
def prepare(
    corpus: Annotated[
        list[Path],
        argument("Files, folders and URLs with the domain's text.", "CORPUS..."),
    ],
    domain: Annotated[str, option("The domain that the text belongs to.")],
    out: Annotated[Path, option("The statistics file to write.")],
    encoder: Annotated[
        str | None, option(f"{ENCODERS}. (default: the preset's)")
    ] = None,
    preset_name: Annotated[
        str, option("default, or paper for the published method.", "--preset")
    ] = "default",
    holdout: Annotated[
        float | None,
        option("Share of documents kept for evaluation. (default: the preset's)"),
    ] = None,
    text_field: Fields = "text",
    skip_broken: SkipBroken = 0.0,
    threads: Annotated[int, option("Threads (0: one per core).")] = 0,
    device: Annotated[
        str, option("auto, cpu, cuda (all GPUs), or one GPU such as cuda:0.")
    ] = "auto",
    part: PartOfCorpus = "",
    engine: Annotated[
        str,
        option("local, or ray for a Ray cluster whose machines all read the corpus."),
    ] = "local",
    address: Annotated[
        str,
        option("Address of the Ray cluster. (default: this machine)"),
    ] = "",
    fresh: Annotated[
        bool, option("Ignore cached parts of interrupted runs.", "--fresh")
    ] = False,
    json: Json = False,
    **sampling: int | None,
) -> None:
    """Turn private files into exact sums.

    Interrupted, it goes on where it was; unchanged files are not read again. A --window
    without other numbers of sampling means plain windows.
    """

    numbers = part_numbers(part) if part else None
    if numbers and fresh:
        raise InputError("--fresh discards all kept parts; use it without --part")
    defaults = preset(preset_name)
    # what cannot be is said before the encoder is looked for
    changed_sampling(defaults.sampling, **sampling)
    _check_output(out, corpus)
    encoder = encoder or defaults.encoder
    loaded = find_encoder(encoder)
    usual = usual_sampling(loaded) if defaults is DEFAULT else defaults.sampling
    job = PrepareJob(
        roots=tuple(corpus),
        domain=domain,
        sampling=changed_sampling(usual, **sampling),
        holdout=defaults.holdout if holdout is None else holdout,
        text_fields=field_names(text_field),
        threads=threads or cores(),
        skip_broken=skip_broken,
    )
    if why_not:
        step("slower", "no native module", why_not)
    broken = out.with_name(f"{out.name}.broken.txt")
    again = "the same command without --fresh" if fresh else "the same command"
    interrupted = f"interrupted; finished parts are kept, and {again} resumes"
    with (
        _summing(job, loaded, encoder, engine, address, device, threads) as (
            job,
            elsewhere,
            devices,
        ),
        watched(domain, interrupted) as watch,
    ):
        cache = cache_folder()
        if numbers:
            report = sum_part(job, loaded, cache, numbers, watch, elsewhere)
            number, of = numbers
            _report(
                report,
                devices,
                {"part": number, "of": of},
                ("kept", f"part {number} of {of}"),
                ("next", "when all parts are kept, the same command without --part"),
                json=json,
            )
            return
        outcome = sum_up(
            job,
            loaded,
            cache,
            watch,
            fresh=fresh,
            broken_list=broken,
            engine=elsewhere,
        )
    prepared = outcome.prepared
    save_prepared(prepared, out)
    mass = prepared.statistics.mass
    written = out.stat().st_size
    facts = {"out": str(out), "bytes": written, "digest": prepared.digest}
    _report(
        outcome,
        devices,
        {"samples": mass, **facts},
        ("wrote", str(out), count(mass, "sample"), size(written)),
        listed=f"listed in {broken}",
        json=json,
    )


@contextmanager
def _summing(
    job: PrepareJob,
    encoder: TableEncoder,
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
            f"--engine {engine} does not take --address {address!r}; use --engine ray"
        )
    if engine == "local":
        devices = _devices(device)
        yield replace(job, devices=devices), None, devices
        return

    with cluster(address, job.threads):
        gpus = device != "cpu" and gpus_of_cluster()
        yield (
            job,
            ray_engine(job, encoder, word, gpus=gpus, threads=threads),
            ("cuda",) if gpus else (),
        )


def _devices(word: str) -> tuple[str, ...]:
    """The GPUs to sum on; where there is one that cannot be used, a word about it."""
    devices = chosen(word)
    reason = missed() if word == "auto" and not devices else None
    if reason:
        step("device", "cpu", reason)
    return devices


def _report(
    report: PrepareReport,
    devices: tuple[str, ...],
    made: dict[str, Any],
    *lines: tuple[str, ...],
    listed: str = "",
    json: bool,
) -> None:
    """What a run met, and what it made. listed: where broken records are named."""
    facts = {
        **asdict(report.counters),
        "files": report.files,
        "files_read": report.files_read,
        "files_skipped": report.files_skipped,
        "seconds": round(report.seconds, 3),
        "devices": list(devices) or ["cpu"],
        **made,
    }
    show(facts, *_lines(report, devices, listed), *lines, json=json)


def _lines(
    report: PrepareReport, devices: tuple[str, ...], listed: str
) -> list[tuple[str, ...]]:
    """What was read, and what of it is not in the sums as it stood."""
    counters = report.counters
    read = count(report.files, "file")
    if report.files_read < report.files:
        read = f"{report.files_read:,} of {read}"
    lines: list[tuple[str, ...]] = []
    if counters.broken:
        lines.append(("skipped", "broken", count(counters.broken, "record"), listed))
    documents = count(counters.documents, "document")
    tokens = count(counters.tokens, "token")
    lines.append(("read", read, documents, tokens, _speed(report)))
    if devices:
        lines.append(("summed", "on " + ", ".join(devices)))
    met = (
        ("skipped", "other kinds of file", report.files_skipped, "file"),
        ("held out", "for evaluation", counters.held_out, "document"),
        ("skipped", "without text", counters.empty, "document"),
        ("replaced", "bytes that are not UTF-8", counters.replaced, "place"),
    )
    return lines + [
        (verb, what, count(number, noun)) for verb, what, number, noun in met if number
    ]


def _speed(report: PrepareReport) -> str:
    seconds = max(report.seconds, 1e-9)
    if not report.files_read:
        return "nothing new"
    if report.bytes_read > 1e5 * seconds:
        return f"{report.bytes_read / 1e6 / seconds:.1f} MB/s"
    # a model reads every token
    return f"{report.counters.tokens / seconds:,.0f} tokens/s"


MEANINGS = {
    "domain": "the domain of these sums",
    "encoder": "the public encoder they were made with; local: from a folder",
    "fingerprint": "of that encoder",
    **{name: about["meaning"] for name, about in SAMPLING.items()},
    "holdout": "share of documents kept out of the sums",
    "features": "the encoder's width and a constant",
    "samples": "total weight of all samples: it reveals the size of the corpus",
    "numbers": "64-bit integers: the triangle of gram, and cross",
    "largest": "of them, in absolute value",
    "bytes": "of the file",
    "digest": "of the sums and their terms",
    "text": "no text, token ids, file names or paths",
}


def inspect(
    statistics: Annotated[Path, argument("A statistics file.", "FILE")],
    json: Json = False,
) -> None:
    """List what a statistics file would tell: shapes, masses, hashes.

    There is no text in it.
    """

    prepared = load_prepared(statistics)
    sums = prepared.statistics
    triangle, cross = sums.packed()
    facts = {
        "domain": prepared.domain,
        "encoder": prepared.encoder_name,
        "fingerprint": prepared.fingerprint,
        **asdict(prepared.sampling),
        "holdout": prepared.holdout,
        "features": sums.shape[0],
        "samples": sums.mass,
        "numbers": triangle.size + cross.size,
        "largest": int(max(abs(triangle).max(), abs(cross).max())),
        "bytes": statistics.stat().st_size,
        "digest": prepared.digest,
        "text": "none",
    }
    counted = COUNTS_FOLLOW if prepared.sampling.window == 1 else ""
    meanings = {**MEANINGS, "text": MEANINGS["text"] + counted}
    rows = [
        [name, f"{value:,}" if isinstance(value, int) else str(value), meanings[name]]
        for name, value in facts.items()
    ]
    show(facts, TextTable(["what leaves", "value", "meaning"], rows), json=json)


_PANELS = {
    "Prepare": (prepare, inspect),
    "Take part": (
        init,
        ready,
        join,
        members,
        confirm,
        bundle,
        approve,
        accept,
        renew,
        leave,
    ),
    "Look back": (
        status,
        releases,
        verify,
        export,
        statement,
        page,
        backup,
        restore,
    ),
}
for panel, commands in _PANELS.items():
    for command in commands:
        name = command.__name__.replace("_", "-")
        app.command(name, rich_help_panel=panel)(command)


# ridgeway prior …: the public prior of rounds with differential privacy, made of text that anybody
# may read.


prior = command_group()


@prior.command()
def make(
    folders: Annotated[
        list[Path] | None,
        argument("Public text (default: that in the package).", "FOLDER..."),
    ] = None,
    out: Annotated[Path, option("The file to write.")] = Path("prior.safetensors"),
    encoder: Annotated[str, option(ENCODERS)] = PRIVATE_ENCODER,
    text_field: Fields = "text",
    json: Json = False,
) -> None:
    """Learn from public text where documents lie and how they vary, so that a round needs less
    noise.

    Name text that is public for everybody: it is not protected. The nearer it is to the domains'
    text, the better the router; it need not be near. Without a folder the text is that of the
    package, the same on every machine.
    """
    check_output(out)
    loaded = find_encoder(encoder)
    if folders:
        prior = make_prior(loaded, _texts_of(folders, text_field))
    else:
        step("reads", "built-in text")
        prior = built_in_prior(loaded)
    write_prior(prior, out)
    facts = {
        "file": str(out),
        "fingerprint": prior.fingerprint,
        "encoder": prior.encoder,
        "width": prior.width,
    }
    wrote = "wrote", str(out), prior.fingerprint[:12], f"encoder {loaded.name}"
    show(facts, wrote, json=json)


def _texts_of(folders: Sequence[Path], text_field: str) -> list[str]:
    sources, skipped = find_sources(folders)
    if not sources:
        raise InputError(
            f"{', '.join(map(str, folders))} has no text that Ridgeway reads; give "
            "other files or folders"
        )
    texts = list[str]()
    total = sum(source.bytes for source in sources)
    done = 0
    with stop_on_signal() as stopped, progress_bar("reads") as progress:
        for source in sources:
            if stopped():
                raise Interrupted("interrupted; nothing was written")
            texts.extend(
                documents(source, field_names(text_field), Counters(), Position())
            )
            done += source.bytes
            progress(done, total)
    step(
        "read",
        count(len(sources), "file"),
        count(len(texts), "text"),
        f"{skipped:,} skipped",
    )
    return texts
