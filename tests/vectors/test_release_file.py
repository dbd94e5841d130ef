"""The release, fixed: its id and its bytes under a known key, and what becomes of one that was
touched.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load, save

from ridgeway.common.base.errors import ReleaseError
from ridgeway.common.base.files import canonical_json
from ridgeway.common.base.settings import Confidence, Selector, WordFeatures
from ridgeway.common.routing.release import amend_release, load_release, save_release
from ridgeway.common.routing.router import Router
from ridgeway.common.routing.token_table import RouterTable, TokenTable
from tests.support.making import contents, fixed_identity, sign_again, trapped_pickle
from tests.support.sentence_networks import encoder_of, random_network
from tests.support.tiny import LETTERS, tiny_definition

MANIFEST, ROUTER, TOKENIZER = FILES = (
    "manifest.json",
    "router.safetensors",
    "tokenizer.json",
)

PIECES = "tokenizer.safetensors"

PUBLIC = "ea4a6c63e29c520abef5507b132ec5f9954776aebebe7b92421eea691446d22c"
ID = "9abe94a3c295f1dd0a413af9eb413fc96e55899b53287c561b1dc720b3d716ed"
HASHES = {
    "manifest.json": "f97fcf5f027745e0613bb5e55ce257118e8860cbfeedc3eff17d46c1388cf1a0",
    "router.safetensors": "6bccc2c2bbb0d1259a14302603cc7cc9020085f428b738281e1495940e07626c",
    "tokenizer.json": "3e66f81993c3b08d08da4e7849523405d50ed4126658065726fd13ab8f0b6055",
}

FACTS: dict[str, Any] = {
    "domains": ["code", "law"],
    "encoder": {"name": "tiny", "fingerprint": "0" * 64},
    "selector": {"name": "entropy", "k": 3},
    "confidence": {
        "temperature": 0.5,
        "calibrated": True,
        "threshold": 0.25,
        "fallback": "général",
    },
    "parent": None,
}
WEIGHTS = np.array([[0.5, -0.25], [1.0, 0.0], [-3.0, 7.125]])


def fixed_table() -> TokenTable:
    """Logits by formula, so that no arithmetic of any library is part of the vector."""
    rows = len(LETTERS) + 2
    logits = (np.arange(2 * rows) * 7919 % 101 - 50).reshape(rows, 2).astype(np.int16)
    return TokenTable(logits, 2.0**-5, np.array([0, 3], dtype=np.uint8))


def fixed_words() -> TokenTable:
    """The same with words: two buckets."""
    runs = np.array([[7, -11], [-5, 3]], dtype=np.int32)
    return replace(fixed_table(), runs=runs)


def write(
    folder: Path,
    facts: Mapping[str, Any] = FACTS,
    weights: NDArray[np.float64] = WEIGHTS,
    table: RouterTable | None = None,
) -> str:
    table = table or fixed_table()
    return save_release(
        folder, facts, weights, table, tiny_definition(), fixed_identity()
    )


@pytest.fixture
def release(tmp_path: Path) -> Path:
    write(tmp_path / "release")
    return tmp_path / "release"


def refusal(folder: Path, **options: Any) -> str:
    """The words with which the release is refused."""
    with pytest.raises(ReleaseError) as refused:
        load_release(folder, **options)
    return str(refused.value)


# Fixed


def test_the_id_of_a_release_is_fixed(release: Path) -> None:
    """It is the hash of the manifest without its signature: the same facts and files are the same
    release.
    """
    manifest = json.loads((release / MANIFEST).read_bytes())
    del manifest["signature"]
    text = json.dumps(manifest, sort_keys=True, indent=1, ensure_ascii=False) + "\n"
    assert hashlib.sha256(text.encode()).hexdigest() == ID
    assert load_release(release).id == ID
    assert write(release) == ID


def test_the_bytes_of_version_2_are_fixed(release: Path) -> None:
    """The same release is the same three files, signature included."""
    assert {
        name: hashlib.sha256(content).hexdigest()
        for name, content in contents(release).items()
    } == HASHES


def test_what_is_saved_is_what_is_loaded(release: Path) -> None:
    """Weights, table, selector and confidence come back as they were; printed, a release shows no
    table.
    """
    loaded = load_release(release, key=PUBLIC)
    table, expected = loaded.compiled, fixed_table()
    assert np.array_equal(loaded.weights, WEIGHTS)
    assert isinstance(table, TokenTable)
    assert np.array_equal(table.logits, expected.logits)
    assert np.array_equal(table.shifts, expected.shifts)
    assert table.runs is None
    assert table.step == expected.step
    assert loaded.selector == Selector("entropy", 3)
    assert loaded.confidence == Confidence(
        0.5, calibrated=True, threshold=0.25, fallback="général"
    )
    assert loaded.domains == ("code", "law")
    assert (loaded.signer, loaded.id) == (PUBLIC, ID)
    assert loaded.manifest["encoder"] == FACTS["encoder"]
    assert loaded.manifest["files"] == {
        name: HASHES[name] for name in (ROUTER, TOKENIZER)
    }
    assert Router.load(str(release), key=PUBLIC).release == ID
    assert repr(loaded) == f"<Release {ID[:12]} 2 domains>"


def test_weights_in_any_order_of_memory_are_the_same_release(tmp_path: Path) -> None:
    """LAPACK gives columns first, numpy rows first; the file does not know."""
    assert write(tmp_path / "r", weights=np.asfortranarray(WEIGHTS)) == ID


WORDS_ID = "3372d36dfa7ae8fd12c1fecb386e967a5ca732c614b0b49c4ae493629bb3ac9c"
WORDS_ROUTER = "018977ca257ff9fcaf23b86d8d9b49ccd00369f8980ac483fcf0a2adcce390c2"


WORD_FEATURES = WordFeatures(2, 64)


def test_the_bytes_of_a_release_with_words_are_fixed(tmp_path: Path) -> None:
    """And what it says of a prompt: tokens say (37, -1), and the runs of letters, signs added up,
    twice (7, -11) and minus three times (-5, 3); the second column counts eight times.
    """
    facts = FACTS | {
        "encoder": FACTS["encoder"] | {"words": asdict(WORD_FEATURES)},
        "selector": {"name": "average"},
    }
    assert write(tmp_path / "r", facts, table=fixed_words()) == WORDS_ID
    assert (
        hashlib.sha256((tmp_path / "r" / ROUTER).read_bytes()).hexdigest()
        == WORDS_ROUTER
    )
    router = Router.load(tmp_path / "r", key=PUBLIC)
    tokens = router.reader.read(["Ab c", ""])
    assert tokens.ids.tolist() == [1, 3, 38, 4]
    assert tokens.runs.stops.tolist() == [2, 5, 7, 11]
    assert tokens.runs.codes.tolist() == [2, 2, 1, 1, 0, 2, 1, 1, 3, 0, 2]
    sums = router.compiled.token_sums(tokens)
    assert sums.tolist() == [[37 + 29, 8 * (-1 - 31)], [0, 0]]


PIECES_ID = "7a8a2c05be34516f59746a6f81f58aef779453a2f845d0d446735c3ea4c34c5c"
PIECES_TOKENIZER = "611987ef4f7505be1d5b3f3be347b847fbb75b446112569f54018afd0b871aa3"


def test_the_bytes_of_a_release_with_pieces_are_fixed(tmp_path: Path) -> None:
    """Its tokenizer is a file of tables."""
    tokenizer = encoder_of(random_network(0)).tokenizer
    facts = FACTS | {"selector": {"name": "average"}}
    made = save_release(
        tmp_path / "r",
        facts,
        WEIGHTS,
        fixed_table(),
        tokenizer.definition,
        fixed_identity(),
    )
    assert made == PIECES_ID
    assert sorted(contents(tmp_path / "r")) == [MANIFEST, ROUTER, PIECES]
    hashed = hashlib.sha256(contents(tmp_path / "r")[PIECES]).hexdigest()
    assert hashed == PIECES_TOKENIZER
    loaded = load_release(tmp_path / "r", key=PUBLIC)
    assert loaded.reader.tokenizer.fingerprint == tokenizer.fingerprint
    rows = fixed_table().logits.tolist()
    sums = loaded.compiled.token_sums(loaded.reader.read(["aa a"]))
    ids = tokenizer.encode("aa a").tolist()
    assert sums.tolist() == [
        [
            sum(rows[number][0] for number in ids),
            8 * sum(rows[number][1] for number in ids),
        ]
    ]
    # a release takes the place of one with another tokenizer
    write(tmp_path / "r")
    assert sorted(contents(tmp_path / "r")) == sorted(FILES)


# Touched


def refused_flips(
    folder: Path, name: str, mask: int, most: int = 200
) -> Iterator[tuple[int, str]]:
    """Flip bytes one at a time: (position, what the refusal says)."""
    whole = (folder / name).read_bytes()
    for position in range(0, len(whole), max(1, len(whole) // most)):
        flipped = bytearray(whole)
        flipped[position] ^= mask
        (folder / name).write_bytes(flipped)
        yield position, refusal(folder)


@pytest.mark.parametrize("mask", [0x01, 0x20, 0xFF])
@pytest.mark.parametrize("name", [ROUTER, TOKENIZER])
def test_a_flipped_byte_in_a_file_is_refused_and_the_file_named(
    release: Path, name: str, mask: int
) -> None:
    """Every byte is verified before anything is used."""
    for position, words in refused_flips(release, name, mask):
        assert str(release / name) in words, position


@pytest.mark.parametrize(("mask", "most"), [(0x01, 1 << 20), (0x80, 200), (0xFF, 200)])
def test_a_flipped_byte_in_the_manifest_is_refused_and_the_manifest_named(
    release: Path, mask: int, most: int
) -> None:
    """No byte of it can change unseen; only another version is told by the folder, since it may be
    no damage.
    """
    for position, words in refused_flips(release, MANIFEST, mask, most):
        seen = str(release / MANIFEST) in words or f"{release} has version" in words
        assert seen, position


def spaced(digits: str) -> str:
    return f"{digits[:2]} {digits[2:]}"


def other_signatures(true: dict[str, str]) -> list[Any]:
    """What may stand in the place of a signature: nothing, other things, other spellings."""
    key, value = true["key"], true["value"]
    return [
        *(None, "text", [], {}, {"key": PUBLIC}),
        *({"key": 1, "value": 2}, {"key": "", "value": ""}),
        *(
            true | {"key": other}
            for other in (fixed_identity(8).public, key.upper(), spaced(key))
        ),
        *(true | {"value": other} for other in (value.upper(), spaced(value))),
    ]


def test_a_manifest_under_another_signature_is_refused(release: Path) -> None:
    """A release has one form: nothing unsigned is used, a key or a signature that is written
    differently was touched, and naming another signer does not make a signature.
    """
    manifest = json.loads((release / MANIFEST).read_bytes())
    for signature in other_signatures(manifest["signature"]):
        changed = canonical_json(manifest | {"signature": signature})
        (release / MANIFEST).write_bytes(changed)
        assert str(release / MANIFEST) in refusal(release), signature


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_or_missing_file_is_refused_and_named(
    release: Path, name: str
) -> None:
    """Wherever the copy stopped."""
    whole = (release / name).read_bytes()
    for length in range(0, len(whole), max(1, len(whole) // 50)):
        (release / name).write_bytes(whole[:length])
        assert str(release / name) in refusal(release), length
    (release / name).unlink()
    words = refusal(release)
    assert name in words and str(release) in words


def test_a_place_without_a_release_is_named(release: Path) -> None:
    """A folder that is not there, and a file where a folder should be."""
    for path in (release / "nothing", release / MANIFEST):
        assert str(path) in refusal(path)


def rewritten(raw: bytes) -> dict[str, bytes]:
    """A manifest in other bytes: some mean the same, others are no manifest."""
    facts = json.loads(raw)
    turned = dict(reversed(facts.items()))
    return {
        "a line at the end": raw + b"\n",
        "a space at the end": raw + b" ",
        "a space at the start": b" " + raw,
        "no last line end": raw.rstrip(),
        "lines ended as on Windows": raw.replace(b"\n", b"\r\n"),
        "a byte order mark": b"\xef\xbb\xbf" + raw,
        "a space within": raw.replace(b'"version": 2', b'"version":  2'),
        "one line": json.dumps(facts, sort_keys=True).encode(),
        "another order": json.dumps(turned, indent=1).encode() + b"\n",
        "escaped letters": raw.replace("é".encode(), rb"\u00e9"),
        "a name twice": raw.replace(b'"version": 2', b'"version": 2,\n "version": 2'),
        "another number": raw.replace(b'"temperature": 0.5', b'"temperature": 0.50'),
        "nothing": b"",
        "an empty object": b"{}",
        "a list": b"[]",
        "null": b"null",
        "a number": b"7",
        "text": b'"text"',
        "no UTF-8": b"\xff\xfe",
        "a nest without end": b"[" * 100_000,
        "not a number": b'{"format": NaN}',
        "zeros": b"\0" * 64,
    }


def test_a_manifest_written_differently_is_refused(release: Path) -> None:
    """What is signed is what is there, to the byte; a manifest that only means the same was
    touched. JSON of another shape, deep nests and no JSON at all are damage, not a crash.
    """
    raw = (release / MANIFEST).read_bytes()
    for change, changed in rewritten(raw).items():
        assert changed != raw
        (release / MANIFEST).write_bytes(changed)
        assert str(release / MANIFEST) in refusal(release), change


def test_a_signature_of_another_release_is_refused(release: Path) -> None:
    """A signature holds for one manifest."""
    first = json.loads((release / MANIFEST).read_bytes())
    sign_again(release, fixed_identity(), {"domains": ["code", "physics"]})
    second = json.loads((release / MANIFEST).read_bytes())
    mixed = second | {"signature": first["signature"]}
    (release / MANIFEST).write_bytes(canonical_json(mixed))
    assert "changed after it was signed" in refusal(release)


def test_files_of_another_release_are_refused(release: Path, tmp_path: Path) -> None:
    """A manifest does not vouch for a router that it was not made for, well formed as it may be."""
    other = replace(fixed_table(), logits=-fixed_table().logits)
    write(tmp_path / "other", table=other)
    shutil.copy(tmp_path / "other" / ROUTER, release / ROUTER)
    assert str(release / ROUTER) in refusal(release)


# Signed by whom


def test_a_release_that_someone_else_signed_is_refused_under_a_pinned_key(
    release: Path,
) -> None:
    """Its signature holds, but it is not the coordinator's: the refusal names both keys."""
    other = fixed_identity(8)
    sign_again(release, other, {})
    assert load_release(release).signer == other.public
    words = refusal(release, key=PUBLIC)
    assert other.public[:12] in words
    assert PUBLIC[:12] in words
    assert load_release(release, key=other.public).id == ID, (
        "who signs is no part of what is signed"
    )


# Signed, and still of no use


@pytest.mark.parametrize(
    "changes",
    [
        {"domains": ["code", "law", "medicine"]},
        {"domains": 2},
        {"domains": None},
        {"domains": ["code", "<img src=x onerror=alert(1)>"]},
        {"domains": ["code", "../../etc/passwd"]},
        {"domains": ["code", "two words"]},
        {"domains": ["code", 7]},
        {"step": "wide"},
        {"step": None},
        {"selector": {"name": "loudest", "k": 3}},
        {"selector": {"name": "entropy", "k": 0}},
        {"selector": {"name": "entropy", "k": 3, "more": 1}},
        {"selector": None},
        {"confidence": {"temperature": 0}},
        {"confidence": {"threshold": 0.5}},
        {"confidence": {"half": -1}},
        {"confidence": {"tail": "long"}},
        {"confidence": 1},
        {
            "encoder": FACTS["encoder"]
            | {"cosines": {"width": 4, "frequency": 326, "amplitude": 64}}
        },
        {"encoder": FACTS["encoder"] | {"kind": "contextual", "weights": "0" * 64}},
        *({"version": version} for version in (0, 1, 3, "2", None, 2.5)),
        {"format": "ridgeway.encoder"},
    ],
    ids=repr,
)
def test_facts_that_cannot_be_used_are_refused(
    release: Path, changes: dict[str, Any]
) -> None:
    """A signature says who, not what: the facts are looked at all the same. A release of the future
    says so.
    """
    sign_again(release, fixed_identity(), changes)
    words = f"{release} is signed but unusable"
    if "version" in changes:
        words = f"has version {changes['version']}; this Ridgeway reads version 2"
    if "format" in changes:
        words = "is ridgeway.encoder, not a release"
    assert words in refusal(release)


@pytest.mark.parametrize(
    "changes",
    [
        {"domains": ["code", "law\x1b]0;owned\x07"]},
        {"domains": ["code", "law\r\nSet-Cookie: a=b"]},
        {"confidence": {"threshold": 0.5, "fallback": "\x9b31mred"}},
        {"masses": {"code": 1, "law\u202e": 1}},
        {"more": [["deep\x7f"]]},
    ],
    ids=repr,
)
def test_text_that_could_steer_a_terminal_is_refused(
    release: Path, changes: dict[str, Any]
) -> None:
    """Wherever it stands in the manifest, signed or not; the refusal itself does not repeat it."""
    sign_again(release, fixed_identity(), changes)
    words = refusal(release)
    assert "control characters" in words and words.isprintable()


def replace_signed(folder: Path, name: str, content: bytes) -> None:
    """Put another file in and sign its hash, as a coordinator could."""
    (folder / name).write_bytes(content)
    files = json.loads((folder / MANIFEST).read_bytes())["files"]
    sign_again(
        folder,
        fixed_identity(),
        {"files": {**files, name: hashlib.sha256(content).hexdigest()}},
    )


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("logits", np.zeros((42, 2), dtype=np.int32)),
        ("logits", np.zeros((42, 2), dtype=np.float32)),
        ("logits", np.zeros(42, dtype=np.int16)),
        ("logits", np.zeros((0, 2), dtype=np.int16)),
        ("logits", np.zeros((41, 2), dtype=np.int16)),
        ("shifts", np.zeros(3, dtype=np.uint8)),
        ("shifts", np.zeros(2, dtype=np.int64)),
        ("shifts", np.full(2, 13, dtype=np.uint8)),
        ("runs", np.zeros((2, 2), dtype=np.int32)),
        ("weights", None),
        ("logits", None),
        ("shifts", None),
    ],
    ids=lambda part: (
        f"{part.dtype}-{part.shape}" if isinstance(part, np.ndarray) else str(part)
    ),
)
def test_a_table_of_another_kind_is_refused(
    release: Path, name: str, array: NDArray[Any] | None
) -> None:
    """Shapes and widths are settled when a release is loaded, not when a prompt comes; a part that
    is missing is named.
    """
    arrays = load((release / ROUTER).read_bytes())
    arrays.pop(name, None)
    if array is not None:
        arrays[name] = array
    replace_signed(release, ROUTER, save(arrays))
    words = f"signed but unusable: '{name}'" if array is None else "signed but unusable"
    assert words in refusal(release)


WIDER_TOKENIZER = json.loads(tiny_definition())
WIDER_TOKENIZER["model"]["vocab"]["é"] = 42


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"\xff", b"no tokenizer", json.dumps(WIDER_TOKENIZER).encode()],
)
def test_a_tokenizer_that_does_not_fit_is_refused(
    release: Path, content: bytes
) -> None:
    """One that is none, or that knows more ids than the table, which would fail on some prompt
    later.
    """
    replace_signed(release, TOKENIZER, content)
    assert "signed but unusable" in refusal(release)


@pytest.mark.parametrize("name", FILES)
def test_a_pickle_is_never_loaded(release: Path, tmp_path: Path, name: str) -> None:
    """A file that would run code when unpickled is refused even under a signature, and its code
    does not run.
    """
    trap = tmp_path / "trap"
    if name == MANIFEST:
        (release / name).write_bytes(trapped_pickle(trap))
    else:
        replace_signed(release, name, trapped_pickle(trap))
    assert str(release) in refusal(release)
    assert not trap.exists()


# Writing and amending


def test_an_amended_release_is_a_new_one_over_the_same_router(release: Path) -> None:
    """Its parent is the one it was made from; nothing but the manifest is written."""
    before = contents(release)
    changed = amend_release(
        release, {"confidence": {"temperature": 2.0}}, fixed_identity()
    )
    loaded = load_release(release, key=PUBLIC)
    assert loaded.id == changed != ID
    assert loaded.manifest["parent"] == ID
    assert loaded.confidence == Confidence(2.0)
    assert {
        name for name, content in contents(release).items() if before[name] != content
    } == {MANIFEST}


def test_what_was_touched_is_not_blessed_by_the_next_signature(release: Path) -> None:
    """Neither a router that was swapped after signing nor a manifest that was changed."""
    swapped = bytearray((release / ROUTER).read_bytes())
    swapped[-1] ^= 1
    (release / ROUTER).write_bytes(swapped)
    amend_release(release, {"parent": None}, fixed_identity())
    assert str(release / ROUTER) in refusal(release)
    touched = (release / MANIFEST).read_bytes().replace(b'"code"', b'"cods"')
    (release / MANIFEST).write_bytes(touched)
    with pytest.raises(ReleaseError, match=re.escape(str(release / MANIFEST))):
        amend_release(release, {"parent": None}, fixed_identity())
    assert (release / MANIFEST).read_bytes() == touched


def test_a_new_release_takes_the_place_of_an_old_one(release: Path) -> None:
    """Whole, with nothing of the old one left."""
    other = write(release, {**FACTS, "parent": ID})
    assert load_release(release).id == other != ID
    assert sorted(contents(release)) == sorted(FILES)
    assert list(release.parent.iterdir()) == [release]


def test_what_lies_beside_a_release_is_not_swept_away(release: Path) -> None:
    """A release folder with other files in it is not replaced, whoever signed it."""
    (release / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(ReleaseError, match="already contains other files"):
        write(release)
    assert (release / "notes.txt").read_text(encoding="utf-8") == "mine"


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    """A slip of the hand does not replace a home folder with a release."""
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("dear", encoding="utf-8")
    for path in (tmp_path / "letters", tmp_path / "letters" / "dear.txt"):
        with pytest.raises(ReleaseError, match=re.escape(str(path))):
            write(path)
    assert contents(tmp_path / "letters") == {"dear.txt": b"dear"}


def test_a_release_that_cannot_be_written_leaves_the_old_one(release: Path) -> None:
    """Facts that JSON cannot hold are an error before anything is touched."""
    before = contents(release)
    with pytest.raises(ValueError, match="not JSON compliant"):
        write(release, {"loss": float("nan")})
    assert contents(release) == before
    assert list(release.parent.iterdir()) == [release]
