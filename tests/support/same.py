"""Digests of what no change of the code may change: vectors, token ids, statistics, packets,
releases.

`python -m tests.support.same` prints one line `NAME SHA256` for each, and one over all of them at
the end. Names that are alike before their `@` must have the same digest. `--against FILE` prints
only what differs from an earlier output.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

from ridgeway.client.sums.prepare import PrepareJob, prepare, sum_part
from ridgeway.common.base.errors import EncoderError
from ridgeway.common.base.files import canonical_json
from ridgeway.common.base.records import Mode
from ridgeway.common.base.settings import DEFAULT, PAPER, Sampling
from ridgeway.common.routing.release import MANIFEST, ROUTER
from ridgeway.common.statistics import Prepared, to_bytes
from ridgeway.common.text.encoder_files import find_encoder, save_encoder
from ridgeway.common.text.table_encoder import TableEncoder
from ridgeway.common.text.tokenizer import Tokenizer
from ridgeway.coordinator.round.progress import no_watch
from ridgeway.simulations.simulate import simulate_federation
from tests.support.corpora_on_disk import (
    texts_in_scripts,
    write_domains,
    write_jsonl,
)
from tests.support.tiny import tiny_encoder
from tests.vectors import test_release_file, test_round, test_statistics_file
from tests.vectors.test_round import digest

EXTENSIONS = ("ridgeway._native",)
"""All compiled modules."""

VECTORS = Path(test_round.__file__).parent
PLAIN = replace(DEFAULT, sampling=Sampling(window=64))
FILES = 5
PARTS = 3
VARYING = "signature"
"""What of a manifest is left out: each federation has a key of its own. A manifest holds no time.
"""

Line = tuple[str, str]


def vectors(work: Path) -> Iterator[Line]:
    """The files of vectors, and the files whose bytes the tests beside them pin."""
    for path in sorted(VECTORS.glob("*.json")):
        yield f"vector/{path.name}", digest(path.read_bytes())
    test_release_file.write(work / "release")
    for path in sorted((work / "release").iterdir()):
        yield f"vector/release/{path.name}", digest(path.read_bytes())
    yield "vector/statistics", digest(to_bytes(test_statistics_file.fixed()))


def token_ids() -> Iterator[Line]:
    """The ids of texts in several scripts, and where the part of each ends."""
    encoders = {"tiny": tiny_encoder(), **installed_encoders()}
    for name, encoder in encoders.items():
        made = Tokenizer(encoder.definition).encode_with_ends(texts_in_scripts(0))
        yield f"tokens/{name}", digest(*(array.data for array in made))


@cache
def installed_encoders() -> dict[str, TableEncoder]:
    """The encoders of the two presets; none where they are not installed."""
    try:
        encoders = {
            "default": find_encoder(DEFAULT.encoder),
            "paper": find_encoder(PAPER.encoder),
        }
    except EncoderError:
        return {}
    return {
        name: encoder
        for name, encoder in encoders.items()
        if isinstance(encoder, TableEncoder)
    }


def statistics(work: Path, how: str) -> Iterator[Line]:
    """What `client prepare` sums of one corpus, whole and in parts. how: by which code."""
    for number in range(FILES):
        write_jsonl(work / f"{number}.jsonl", texts_in_scripts(number))
    presets = {"tiny": DEFAULT, "tiny-plain": PLAIN, "default": DEFAULT, "paper": PAPER}
    encoders = {
        "tiny": tiny_encoder(),
        "tiny-plain": tiny_encoder(),
        **installed_encoders(),
    }
    for name, encoder in encoders.items():
        chosen = presets[name]
        job = PrepareJob(
            (work,), "law", chosen.sampling, chosen.holdout, ("text",), threads=1
        )
        yield f"statistics/{name}@whole-{how}", digest(to_bytes(summed(job, encoder)))
        yield (
            f"statistics/{name}@parts-{how}",
            digest(to_bytes(summed(job, encoder, PARTS))),
        )


def summed(job: PrepareJob, encoder: TableEncoder, parts: int = 0) -> Prepared:
    with tempfile.TemporaryDirectory() as cache_folder:
        for number in range(1, parts + 1):
            sum_part(job, encoder, Path(cache_folder), (number, parts))
        return prepare(job, encoder, Path(cache_folder)).prepared


def packets(work: Path) -> Iterator[Line]:
    """Every byte that crosses in whole rounds with fixed keys and randomness."""
    for name in (*test_round.ROUNDS, *test_round.PRIVATE_ROUNDS):
        crossed = test_round.recorded(name, work / name)
        yield f"packets/{name}", digest(*(packet.digest.encode() for packet in crossed))


def releases(work: Path, engine: str) -> Iterator[Line]:
    """Routers and manifests of simulated federations. Flower's engine takes half a minute, so it
    runs once.
    """
    write_domains(work / "data", 60, 15)
    save_encoder(tiny_encoder(), work / "encoder")
    sources = {"tiny": f"dir:{work / 'encoder'}"}
    if installed_encoders():
        sources["default"] = DEFAULT.encoder
    modes: tuple[Mode, ...] = ("clear", "masked")
    for (name, source), mode in list(product(sources.items(), modes))[
        -1 if engine == "flower" else 0 :
    ]:
        out = work / f"{name}-{mode}"
        folder = work / f"{name}-{mode}-work"
        simulate_federation(
            folder,
            no_watch,
            data=work / "data",
            engine=engine,
            encoder=source,
            mode=mode,
            out=out,
        )
        manifest = json.loads((out / MANIFEST).read_bytes())
        del manifest[VARYING]
        yield (
            f"release/{name}/router@{mode}-{engine}",
            digest((out / ROUTER).read_bytes()),
        )
        yield (
            f"release/{name}/manifest@{mode}-{engine}",
            digest(canonical_json(manifest)),
        )


def started(call: str, without: Sequence[str] = ()) -> subprocess.Popen[str]:
    """A process that prints the lines of a call. without: modules that it does not find."""
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({without!r})); from "
        "pathlib import Path; "
    )
    program += f"from tests.support import same; [print(*line) for line in same.{call}]"
    return subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    )


def printed(process: subprocess.Popen[str]) -> Iterator[Line]:
    output, _ = process.communicate()
    if process.returncode:
        sys.exit("same: a process has failed; what it said stands above")
    for line in output.splitlines():
        name, value = line.split(" ")
        yield name, value


def all_lines(work: Path) -> Iterator[Line]:
    flower = started(f"releases(Path({str(work / 'flower')!r}), 'flower')")
    python = started(
        f"statistics(Path({str(work / 'python')!r}), 'python')", EXTENSIONS
    )
    with flower, python:
        yield from vectors(work / "vectors")
        yield from token_ids()
        yield from statistics(work / "compiled", "compiled")
        yield from printed(python)
        yield from packets(work / "packets")
        yield from releases(work / "releases", "memory")
        yield from printed(flower)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--against",
        type=Path,
        metavar="FILE",
        help="an earlier output; print only what differs",
    )
    against: Path | None = parser.parse_args().against
    missing = [name for name in EXTENSIONS if not importlib.util.find_spec(name)]
    if missing:
        print(
            f"same: {missing[0]} was not built, so there is nothing to compare; run make setup",
            file=sys.stderr,
        )
        return 1
    before = (
        dict(line.split() for line in against.read_text().splitlines())
        if against
        else {}
    )
    with tempfile.TemporaryDirectory() as work:
        lines = dict(all_lines(Path(work)))
    lines["all"] = digest(
        *(f"{name} {value}".encode() for name, value in lines.items())
    )
    changed = [name for name in before | lines if before.get(name) != lines.get(name)]
    for name in changed:
        print(name, lines.get(name, "is gone"))
    groups: dict[str, set[str]] = {}
    for name, value in lines.items():
        groups.setdefault(name.partition("@")[0], set()).add(value)
    unequal = [name for name, values in groups.items() if len(values) > 1]
    if unequal:
        print(
            f"same: digests that must be equal differ: {', '.join(unequal)}",
            file=sys.stderr,
        )
    return 1 if unequal or (against and changed) else 0


if __name__ == "__main__":
    sys.exit(main())
