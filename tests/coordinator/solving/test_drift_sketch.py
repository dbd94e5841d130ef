"""What lies beside a release to tell leverage: every way of making one writes it, and no holder gets it."""

from __future__ import annotations

import hashlib
import math
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest

from ridgeway.common.base.errors import FormatError
from ridgeway.common.base.settings import DEFAULT, Confidence, Sampling
from ridgeway.common.encoding.encoder_files import save_encoder
from ridgeway.common.encoding.table_encoder import TableEncoder
from ridgeway.common.encoding.transformer_encoder import ContextualEncoder
from ridgeway.common.routing import drift_sketch
from ridgeway.common.routing.drift_sketch import SUFFIX, DriftSketch, companion
from ridgeway.common.routing.release import MANIFEST, ROUTER, TOKENIZER, load_release
from ridgeway.coordinator.round.membership import remove, retire
from ridgeway.coordinator.round.round import run_round
from ridgeway.coordinator.solving.publish import Draft, RouterChoices, compose, draft, issue, make_sketch
from ridgeway.coordinator.solving.solve import solve
from tests.support.commands import Workshop
from tests.support.corpora_on_disk import ALPHABETS, sentences, write_jsonl
from tests.support.faults import make_haste
from tests.support.hostile import MEMBERS
from tests.support.making import fixed_identity, prepared, trapped_pickle
from tests.support.simulated_federation import Direct, Parties, found, no_watch, populate
from tests.support.tiny import tiny_encoder

CHOICES = RouterChoices(DEFAULT.weighting, DEFAULT.ridge, DEFAULT.normalise_columns, DEFAULT.selector, Confidence())


def of_release(folder: Path) -> DriftSketch:
    """The companion of a release, which must be there and be its own."""
    name = hashlib.sha256((folder / ROUTER).read_bytes()).hexdigest()
    kept = drift_sketch.load(folder, name)
    assert kept is not None
    assert stat.S_IMODE(companion(folder).stat().st_mode) == 0o600
    assert {path.name for path in folder.iterdir()} == {MANIFEST, ROUTER, TOKENIZER}
    return kept


def beside(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.endswith(SUFFIX))


@pytest.fixture
def made(encoder: TableEncoder) -> Draft:
    return draft([prepared("code", encoder, 1), prepared("law", encoder, 2)], encoder, CHOICES)


@pytest.fixture
def folder(made: Draft, tmp_path: Path) -> Path:
    issue(made, fixed_identity(), tmp_path / "release")
    return tmp_path / "release"


def router_of(folder: Path) -> str:
    return str(load_release(folder).manifest["files"][ROUTER])


# Ways of making a release


@pytest.mark.parametrize("masked", [False, True])
def test_a_round_writes_it_and_no_holder_gets_it(
    tmp_path: Path, whole: Parties, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clear or masked, it lies beside the release of the coordinator, and nowhere below any holder's folder."""
    make_haste(monkeypatch)
    if masked:
        parties = whole.copy(tmp_path / "parties")
    else:
        parties = found(tmp_path / "parties")
        populate(parties, {"code": "code", "law": "law"})
    transport = Direct(parties, list(MEMBERS) if masked else None)
    published = run_round(parties.federation(), transport, no_watch)
    kept = of_release(parties.federation().release_folder(published.number))
    assert len(kept.rows) == parties.encoder.rows
    rows = kept.rows.tobytes()[:256]
    for path in (tmp_path / "parties" / "holders").rglob("*"):
        assert not path.name.endswith(SUFFIX)
        assert not path.is_file() or rows not in path.read_bytes()
    holders = [parties.holder(name) for name in parties.homes]
    assert any(holder.releases() for holder in holders)


def test_a_change_of_membership_writes_it_and_older_ones_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A removed holder's sums are in no companion any more; a retired domain's text is still in it, as in the total."""
    make_haste(monkeypatch, once=False)
    parties = found(tmp_path / "parties")
    populate(parties, {"code": "code", "law": "law", "medicine": "medicine", "more": "law"})
    run_round(parties.federation(), Direct(parties), no_watch)
    federation = parties.federation()
    first = of_release(federation.release_folder(1))
    remove(federation, "more")
    second = of_release(federation.release_folder(2))
    assert not np.array_equal(first.rows, second.rows)
    retire(federation, "medicine")
    third = of_release(federation.release_folder(3))
    assert np.array_equal(second.rows, third.rows)
    assert third.router != second.router
    assert beside(federation.folder / "releases") == [f"0003{SUFFIX}"]


def test_the_commands_write_it(tmp_path: Path) -> None:
    """`coordinator solve --out release` leaves release.drift, `simulate --out` copies it, `calibrate` keeps it true."""
    workshop = Workshop(tmp_path)
    save_encoder(tiny_encoder(16), tmp_path / "encoder")
    for domain in ALPHABETS:
        write_jsonl(tmp_path / "data" / f"{domain}.train.jsonl", sentences(domain, 60))
        write_jsonl(tmp_path / "data" / f"{domain}.test.jsonl", sentences(domain, 75)[60:])
        words = ["client", "prepare", f"data/{domain}.train.jsonl", "--domain", domain, "--out", f"{domain}.stats"]
        assert workshop.call(*words, "--encoder", workshop.encoder).code == 0
    simulated = workshop.call("simulate", "--data", "data", "--encoder", workshop.encoder, "--out", "out")
    assert simulated.code == 0, simulated.stderr
    assert of_release(tmp_path / "out").span == DEFAULT.sampling.stride
    files = [f"{domain}.stats" for domain in ALPHABETS]
    solved = workshop.call("coordinator", "solve", *files, "--out", "release/", "--encoder", workshop.encoder)
    assert solved.code == 0, solved.stderr
    before = of_release(tmp_path / "release")
    assert math.isnan(before.usual)
    fitted = workshop.call("coordinator", "calibrate", "release", "data")
    assert fitted.code == 0, fitted.stderr
    after = of_release(tmp_path / "release")
    assert np.array_equal(before.rows, after.rows)
    assert 0 < after.usual < 5


def test_a_contextual_release_has_none(folder: Path, made: Draft, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no table to make it of, and an older one beside the folder does not stay."""
    assert companion(folder).exists()
    monkeypatch.setattr("ridgeway.coordinator.solving.publish.ContextualEncoder", (ContextualEncoder, TableEncoder))
    issue(made, fixed_identity(), folder)
    assert not companion(folder).exists()


# Reading


def test_the_same_total_gives_the_same_file(folder: Path, made: Draft, tmp_path: Path) -> None:
    """Byte for byte; and what is read is what was written."""
    issue(made, fixed_identity(), tmp_path / "again")
    assert companion(folder).read_bytes() == companion(tmp_path / "again").read_bytes()
    assert isinstance(made.encoder, TableEncoder)
    expected = make_sketch(made.total.statistics, made.encoder, made.total.sampling)
    assert np.array_equal(of_release(folder).rows, expected.rows)


def test_a_companion_serves_its_own_router_only(
    folder: Path, made: Draft, encoder: TableEncoder, tmp_path: Path
) -> None:
    """Beside another router, or beside none, there is no leverage."""
    total = draft([prepared("code", encoder, 3), prepared("law", encoder, 4)], encoder, CHOICES).total
    other = compose(total, encoder, CHOICES, solve(total.statistics, encoder.scale, DEFAULT.ridge))
    issue(other, fixed_identity(), tmp_path / "other")
    shutil.copyfile(companion(folder), companion(tmp_path / "other"))
    assert drift_sketch.load(tmp_path / "other", router_of(tmp_path / "other")) is None
    companion(folder).unlink()
    assert drift_sketch.load(folder, router_of(folder)) is None


@pytest.mark.parametrize("damage", ["empty", "cut", "pickle", "shape", "numbers"])
def test_a_damaged_companion_is_an_error_and_runs_nothing(folder: Path, tmp_path: Path, damage: str) -> None:
    """Whatever stands in the file, it is read as numbers or not at all."""
    path, trap = companion(folder), tmp_path / "trap"
    good = drift_sketch.load(folder, router_of(folder))
    assert good is not None
    whole = path.read_bytes()
    bad = np.full_like(good.rows, np.nan)
    if damage in ("shape", "numbers"):
        rows = good.rows.ravel() if damage == "shape" else bad
        drift_sketch.save(folder, DriftSketch(rows, good.span, good.router))
    else:
        path.write_bytes({"empty": b"", "cut": whole[:-9], "pickle": trapped_pickle(trap)}[damage])
    with pytest.raises(FormatError, match="damaged"):
        drift_sketch.load(folder, router_of(folder))
    assert not trap.exists()


def test_the_span_follows_the_sampling(made: Draft, encoder: TableEncoder) -> None:
    """Plain windows are compared with plain windows; a window that stands for more tokens, with so many."""
    spans = {
        make_sketch(made.total.statistics, encoder, sampling).span
        for sampling in (Sampling(window=64), Sampling(window=8, stride=32, documents=32), Sampling(window=1))
    }
    assert spans == {64, 32, 1}
