"""ridgeway prior …: the public prior of rounds with differential privacy, made of text that anybody
may read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from ridgeway.client.sums.corpus import Counters, Position, documents, find_sources
from ridgeway.client.sums.prepare import Interrupted
from ridgeway.common.base.errors import InputError
from ridgeway.common.base.files import check_output, field_names
from ridgeway.common.base.settings import ENCODERS, PRIVATE_ENCODER
from ridgeway.common.cli.terminal import (
    Fields,
    Json,
    argument,
    command_group,
    count,
    option,
    progress_bar,
    show,
    step,
    stop_on_signal,
)
from ridgeway.common.privacy.public_prior import built_in_prior, make_prior, write_prior
from ridgeway.common.text.encoder_files import find_encoder

app = command_group()


@app.command()
def make(
    folders: Annotated[
        list[Path] | None,
        argument("Public text (default: text on this machine).", "FOLDER..."),
    ] = None,
    out: Annotated[Path, option("The file to write.")] = Path("prior.safetensors"),
    encoder: Annotated[str, option(ENCODERS)] = PRIVATE_ENCODER,
    text_field: Fields = "text",
    json: Json = False,
) -> None:
    """Learn from public text where documents lie and how they vary, so that a round needs less
    noise.

    Name text that is public for everybody: it is not protected. The nearer it is to the domains'
    text, the better the router; it need not be near. Without a folder the text is Python's own and
    that of installed packages.
    """
    check_output(out)
    loaded = find_encoder(encoder)
    if folders:
        prior = make_prior(loaded, _groups(folders, text_field))
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


def _groups(folders: Sequence[Path], text_field: str) -> list[list[str]]:
    """The texts of each file; the prior takes files of a few texts together."""
    sources, skipped = find_sources(folders)
    if not sources:
        raise InputError(
            f"{', '.join(map(str, folders))} has no text that Ridgeway reads; give "
            "other files or folders"
        )
    groups = dict[Path, list[str]]()
    total = sum(source.bytes for source in sources)
    done = 0
    with stop_on_signal() as stopped, progress_bar("reads") as progress:
        for source in sources:
            if stopped():
                raise Interrupted("interrupted; nothing was written")
            texts = groups.setdefault(source.path, [])
            texts.extend(
                documents(source, field_names(text_field), Counters(), Position())
            )
            done += source.bytes
            progress(done, total)
    step(
        "read",
        count(len(groups), "file"),
        count(sum(map(len, groups.values())), "text"),
        f"{skipped:,} skipped",
    )
    return list(groups.values())
