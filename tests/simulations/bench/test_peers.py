"""Figures beside other projects: what is compared, and what a peer that is not there looks like."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ridgeway.common.privacy.accountant import rho_for
from ridgeway.simulations.bench import peer_flower, peer_own, peers_bench
from ridgeway.simulations.bench.measuring import BenchOptions
from ridgeway.simulations.bench.peer import (
    ENVIRONMENTS_VARIABLE,
    Contest,
    Peer,
    PeerMissing,
    asked_peer,
    compared,
    peer_python,
)
from ridgeway.simulations.bench.peers_bench import gateway_rows

LARGEST = 1 << 22
PEERS = {
    "peer_semantic_router": ".venv-peers-semantic-router",
    "peer_lunar": ".venv-peers-lunar",
    "peer_nvflare": ".venv-peers-nvflare",
    "peer_pfl": ".venv-peers-pfl",
}


@pytest.fixture
def no_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENTS_VARIABLE, str(tmp_path))


# What a peer's environment has


def test_the_scripts_of_peers_share_nothing_that_needs_a_package() -> None:
    """Their environments have no package of this project's, so not even numpy is imported."""
    words = "import sys, ridgeway.simulations.bench.peer; print(*sys.modules)"
    command = [sys.executable, "-c", words]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert not {"numpy", "tokenizers", "pydantic", "safetensors"} & set(loaded.split())


# What a row says


def test_the_better_figure_is_bold() -> None:
    """Whichever it is, and neither of two that look alike."""
    assert Contest(2.0, 1.0, "ms", "less").words == ("2 ms", "**1 ms**")
    assert Contest(2.0, 1.0, "%", "more").words == ("**2 %**", "1 %")
    assert Contest(1.0001, 1.0, "%", "more").words == ("1 %", "1 %")


def test_the_ratio_is_that_of_the_first_figures() -> None:
    """It cannot be told where theirs is nothing."""
    more = Contest(9.0, 1.0, "MB", "less")
    row = compared("routing", "kNN", Contest(1.0, 4.0, "ms", "less"), more)
    assert (row.ratio, row.ours, row.theirs) == (
        0.25,
        "**1 ms**, 9 MB",
        "4 ms, **1 MB**",
    )
    assert compared("a", "b", Contest(1.0, 0.0, "off", "less")).ratio is None


# Peers that are not there


def test_a_peer_that_is_not_installed_has_a_row_that_says_so(
    no_peers: None, tmp_path: Path
) -> None:
    """No figure stands in its place."""
    for rows in (
        peers_bench.private_mean_rows(tmp_path),
        gateway_rows(BenchOptions(tmp_path)),
    ):
        [row] = rows
        assert row.ratio is None and not row.ours and "make peers" in row.theirs


def test_a_peer_that_fails_is_named_with_its_last_words(tmp_path: Path) -> None:
    """A script that ends with an error is no answer."""
    with pytest.raises(
        PeerMissing, match=r"ours does not run here: .*KeyError: 'kind'"
    ):
        asked_peer(Peer("ours", "", "peer_own"), {}, tmp_path)


# Secure sums and private means


@pytest.fixture
def vectors(tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "vectors.npy"
    np.save(path, np.random.default_rng(1).integers(0, LARGEST, (9, 50)))
    return {"vectors": str(path), "largest": LARGEST, "away": 2}


def test_our_sum_is_exact_whoever_drops_out(vectors: dict[str, Any]) -> None:
    """And what a member sends is its vector and little more."""
    found = peers_bench.our_sum(np.load(vectors["vectors"]), vectors["away"])
    assert found["error"] == 0
    assert 50 * 8 < found["bytes"] < 50 * 8 + 9 * 1000


def test_flowers_sum_opens_within_its_rounding(vectors: dict[str, Any]) -> None:
    """Its levels are two units apart here, and each of seven members rounds once."""
    found = peer_flower.masked_total(vectors)
    assert 0 < found["error"] <= 2 * 7
    assert found["bytes"] > 50 * 8
    assert "failed" in peer_flower.masked_total(vectors | {"away": 4})


def test_each_holder_adds_all_of_the_noise_to_a_mean() -> None:
    """The error is that of the accountant's σ, and grows with the root of the holders."""
    drawn = np.random.default_rng(1).normal(size=(400, 256))
    rows = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    sigma = (1 / (2 * float(rho_for(1.0, 1e-6)))) ** 0.5
    for holders in (1, 9):
        expected = sigma * holders**0.5 / 400
        # the count of documents takes a part of the bound, so noise is a little larger
        assert expected < peers_bench.our_mean(rows, 1.0, holders) < 1.1 * expected


# Routers


@pytest.mark.parametrize("kind", ["knn", "logistic"])
def test_routers_over_vectors_learn_what_is_plain_to_see(
    tmp_path: Path, kind: str
) -> None:
    """Two directions are two domains."""
    assert peer_own.own_choices(plain_request(tmp_path) | {"kind": kind})[
        "choices"
    ] == [0, 1, 0, 1]


def plain_request(folder: Path) -> dict[str, Any]:
    """Rows of two domains by turns: forty to learn from, eight held out and four to be tested
    on.
    """
    labels = np.arange(52) % 2
    rows = np.eye(2)[labels] + 0.01 * np.random.default_rng(1).normal(size=(52, 2))
    np.save(folder / "rows.npy", rows.astype(np.float32))
    np.save(folder / "scores.npy", np.eye(2)[labels])
    return {
        "vectors": str(folder / "rows.npy"),
        "scores": str(folder / "scores.npy"),
        "labels": labels.tolist(),
        "train": list(range(40)),
        "held": list(range(40, 48)),
        "test": list(range(48, 52)),
    }


# The peers themselves


@pytest.mark.slow
@pytest.mark.parametrize("script", PEERS)
def test_each_peer_answers(
    tmp_path: Path, vectors: dict[str, Any], script: str
) -> None:
    """In its own environment, where `make peers` has built it."""
    peer = Peer(script, PEERS[script], script)
    try:
        peer_python(peer)
    except PeerMissing as missing:
        pytest.skip(str(missing))
    if script == "peer_nvflare":
        assert 0 < asked_peer(peer, vectors, tmp_path)["error"] < 100
    elif script == "peer_pfl":
        request = {
            "vectors": plain_request(tmp_path)["vectors"],
            "epsilons": [1.0],
            "delta": 1e-6,
            "repeats": 20,
        }
        # σ is 4.2 for one row of length one
        assert asked_peer(peer, request, tmp_path)["errors"] == [
            pytest.approx(4.22 / 52, rel=0.5)
        ]
    else:
        assert asked_peer(peer, plain_request(tmp_path), tmp_path)["choices"] == [
            0,
            1,
            0,
            1,
        ]


def test_a_request_reaches_a_script_as_a_file(tmp_path: Path) -> None:
    """What is asked lies beside the answer's work, so that a run can be looked at."""
    request = plain_request(tmp_path) | {"kind": "knn"}
    assert asked_peer(Peer("ours", "", "peer_own"), request, tmp_path)["choices"] == [
        0,
        1,
        0,
        1,
    ]
    assert json.loads((tmp_path / "peer_own.json").read_text())["kind"] == "knn"
    assert peer_python(Peer("ours", "", "peer_own")).exists()
