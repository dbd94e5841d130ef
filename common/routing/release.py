"""The signed artefact: a folder with manifest.json, router.safetensors and its tokenizer.

Verifies every byte before anything is used; unpickles nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ridgeway.common.base.errors import (
    FormatError,
    InputError,
    ReleaseError,
    RidgewayError,
)
from ridgeway.common.base.files import (
    canonical_json,
    stamp_if_there,
    whole_folder,
    write_whole,
)
from ridgeway.common.base.identity import (
    HandOver,
    HandOvers,
    Identity,
    is_signed_by,
    public_key,
)
from ridgeway.common.base.settings import (
    Confidence,
    Selector,
    SentenceUse,
    check_domain_name,
)
from ridgeway.common.routing.decision import Floats
from ridgeway.common.routing.quality import QualityTable, quality_from_json
from ridgeway.common.routing.sentence_table import (
    TABLE_PREFIX,
    Cascade,
    SentenceTable,
)
from ridgeway.common.routing.token_table import RouterTable, TokenTable, check_domains
from ridgeway.common.text.sentence_encoder import SentenceFeatures
from ridgeway.common.text.table_encoder import (
    check_kind,
    sentence_features,
    word_features,
)
from ridgeway.common.text.tokens import (
    TOKENIZER_FILES,
    TextReader,
    tokenizer_file,
    tokenizer_of,
)
from ridgeway.common.text.word_sketch import WordSketch

_FORMAT = "ridgeway.release"
_VERSION = 2
MANIFEST = "manifest.json"
ROUTER = "router.safetensors"
NO_FILES: Mapping[str, bytes] = MappingProxyType({})
QUALITY = "quality"
"""Where a manifest says how good experts are, if they were measured."""
EXAMPLES = "examples"
"""Where it has prompts for visitors, which the operator wrote."""
CASCADE = "cascade"
"""Where it says when the table decides and when the sentence encoder does, if there is one."""
PRIVACY = "privacy"
"""Where it says what a release may tell of a document, if that is bounded."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Release:
    """A published router: its manifest, the weights it was compiled from, and all that routing with
    it takes.
    """

    manifest: dict[str, Any]
    weights: Floats
    compiled: RouterTable
    reader: TextReader
    selector: Selector
    confidence: Confidence
    quality: QualityTable | None = None

    def __post_init__(self) -> None:
        for name in self.domains:
            check_domain_name(name)
        check_domains(self.domains, self.compiled)

    @property
    def id(self) -> str:
        return release_id(self.manifest)

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(self.manifest["domains"])

    @property
    def number(self) -> int:
        """Its number in its federation; 0 without one."""
        number = self.manifest.get("number")
        return number if isinstance(number, int) else 0

    @property
    def signer(self) -> str:
        return str(self.manifest["signature"]["key"])

    def __repr__(self) -> str:
        return f"<Release {self.id[:12]} {len(self.domains)} domains>"


def release_id(manifest: Mapping[str, Any]) -> str:
    """A release is known by the hash of its manifest, signature apart."""
    return hashlib.sha256(canonical_json(_unsigned(manifest))).hexdigest()


def save_release(
    folder: Path,
    facts: Mapping[str, Any],
    weights: Floats,
    compiled: RouterTable,
    definition: bytes,
    identity: Identity,
) -> str:
    """Write and sign a release in one step; returns its id. What stands in the folder stays if
    anything fails.

    facts: what the manifest says beyond format, files and signature.
    """
    refuse_foreign(folder, identity.public)
    # the same bytes for the same router
    arrays = {"weights": weights, **compiled.arrays()}
    router = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    files = {ROUTER: router, tokenizer_file(definition): definition}
    cascade = compiled.to_json() if isinstance(compiled, Cascade) else None
    manifest = {
        **facts,
        **({CASCADE: cascade} if cascade else {}),
        "format": _FORMAT,
        "version": _VERSION,
        "step": compiled.step,
        "files": {
            name: hashlib.sha256(content).hexdigest() for name, content in files.items()
        },
    }
    with whole_folder(folder) as draft:
        for name, content in files.items():
            write_whole(draft / name, content)
        write_whole(
            draft / MANIFEST,
            _signed(
                manifest, identity, [link.to_json() for link in identity.handovers]
            ),
        )
    return release_id(manifest)


def release_files(folder: Path) -> list[bytes]:
    """Manifest, router and tokenizer of a release."""
    names = [name for name in TOKENIZER_FILES if (folder / name).exists()]
    return [(folder / name).read_bytes() for name in (MANIFEST, ROUTER, *names)]


def named_files(files: Sequence[bytes]) -> dict[str, bytes]:
    """What manifest, router and tokenizer of a release are called in its folder."""
    names = MANIFEST, ROUTER, *map(tokenizer_file, files[2:])
    return dict(zip(names, files, strict=True))


def check_signer(release: Release, identity: Identity) -> None:
    """Raise unless a release was signed with this key: only its signer may change it."""
    if release.signer != identity.public:
        raise InputError(
            f"the release was signed by {release.signer[:12]}…, but your key is"
            f" {identity.public[:12]}…; set the coordinator's key with --key-file"
        )


def sign_confidence(
    folder: Path, fitted: Release, figures: Mapping[str, Any], identity: Identity
) -> str:
    """Put the confidence and the margin that were fitted for a release into it; returns its new id.

    figures: counts and rates over the held-out text, none of the text itself.
    """
    facts = {"confidence": fitted.confidence.to_json(), "evaluation": figures}
    if isinstance(fitted.compiled, Cascade):
        facts[CASCADE] = fitted.compiled.to_json()
    return amend_release(folder, facts, identity)


def amend_release(folder: Path, changes: Mapping[str, Any], identity: Identity) -> str:
    """Sign a release's manifest again with some facts changed: a new release over the same
    router.
    """
    manifest = load_manifest(folder)
    amended = {**_unsigned(manifest), **changes, "parent": release_id(manifest)}
    write_whole(
        folder / MANIFEST,
        _signed(amended, identity, manifest["signature"].get("handovers", [])),
    )
    return release_id(amended)


def load_release(
    folder: Path,
    *,
    key: str | None = None,
    sentences: SentenceUse = "auto",
    files: Mapping[str, bytes] = NO_FILES,
) -> Release:
    """Read a release, verify hashes and signature, and make it ready to route.

    key:   the one that must have signed it, or have led, by the hand-overs in the manifest, to the
           one that did.
    sentences: which prompts are given to the sentence encoder, if the release has one; with `never`
               it need not be installed.
    files: what the folder is to hold, by name, where it is not written yet.
    """
    manifest = load_manifest(folder, key=key, files=files)
    named = [name for name in TOKENIZER_FILES if name in manifest["files"]]
    tokenizer_name = named[0] if named else TOKENIZER_FILES[0]
    content = {
        name: _verified_file(folder, name, manifest, files)
        for name in (ROUTER, tokenizer_name)
    }
    try:
        arrays = load(content[ROUTER])
        check_kind(manifest["encoder"])
        words = word_features(manifest["encoder"])
        compiled = _table(manifest, arrays, sentences)
        reader = TextReader(
            tokenizer_of(content[tokenizer_name]),
            WordSketch(words) if words else None,
            compiled.tokenizer
            if isinstance(compiled, Cascade | SentenceTable)
            else None,
        )
        for prefix in ("", TABLE_PREFIX) if CASCADE in manifest else ("",):
            logits = arrays[f"{prefix}logits"]
            _check_fit(reader, logits, arrays.get(f"{prefix}runs"))
        selector = Selector(**manifest["selector"])
        confidence = Confidence.of_json(manifest["confidence"])
        if CASCADE in manifest and sentences != "auto":
            confidence = replace(confidence, calibrated=False)
        quality = (
            quality_from_json(manifest[QUALITY]).of_domains(manifest["domains"])
            if QUALITY in manifest
            else None
        )
        return Release(
            manifest,
            arrays["weights"],
            compiled,
            reader,
            selector,
            confidence,
            quality,
        )
    except (
        SafetensorError,
        KeyError,
        TypeError,
        ValueError,
        struct.error,
        RidgewayError,
    ) as error:
        raise ReleaseError(
            f"the release in {folder} is signed but unusable: {error}"
        ) from error


def _check_fit(
    reader: TextReader, logits: NDArray[Any], runs: NDArray[Any] | None
) -> None:
    """Raise unless every token, and every bucket of runs of letters, has its logits."""
    if 1 < len(logits) < reader.tokenizer.rows:
        raise FormatError(
            f"its tokenizer has {reader.tokenizer.rows:,} ids, its table {len(logits):,}"
        )
    buckets = reader.words.width if reader.words else None
    if buckets != (None if runs is None else len(runs)):
        raise FormatError(f"expected runs of letters in {buckets} buckets")


def _table(
    manifest: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], use: SentenceUse
) -> RouterTable:
    """The router of a table encoder, and of its sentences if it has any."""
    step = float(manifest["step"])
    whole = _tokens(arrays, step)
    if CASCADE not in manifest:
        return whole
    table = _tokens(
        {
            name.removeprefix(TABLE_PREFIX): array
            for name, array in arrays.items()
            if name.startswith(TABLE_PREFIX)
        },
        step,
    )
    if use == "never":
        return table
    reader = sentence_features(manifest["encoder"])
    if reader is None:
        raise FormatError("it has a cascade but no sentence encoder")
    cascade = manifest[CASCADE]
    sentences = SentenceTable(
        whole,
        arrays["sentence_weights"],
        int(cascade["bits"]),
        SentenceFeatures(reader),
    )
    if use == "always":
        return sentences
    return Cascade(table, sentences, float(cascade["margin"]))


def _tokens(arrays: Mapping[str, NDArray[Any]], step: float) -> TokenTable:
    return TokenTable(arrays["logits"], step, arrays["shifts"], arrays.get("runs"))


def load_manifest(
    folder: Path, *, key: str | None = None, files: Mapping[str, bytes] = NO_FILES
) -> dict[str, Any]:
    """The manifest of a release alone, its signature verified; the files that it names need not be
    there.
    """
    path = folder / MANIFEST
    try:
        raw = files[MANIFEST] if files else path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise ReleaseError(
            f"{folder} contains no release: {MANIFEST} is missing"
        ) from None
    manifest = _parsed(path, raw)
    if manifest["version"] != _VERSION:
        raise ReleaseError(
            f"the release in {folder} has version {manifest['version']}; this "
            f"Ridgeway reads version {_VERSION}: have it published again"
        )
    signature = manifest["signature"]
    if not is_signed_by(
        signature["key"], signature["value"], canonical_json(_unsigned(manifest))
    ):
        raise ReleaseError(
            f"{path} was changed after it was signed; download the release again"
        )
    if key is not None and not _leads(public_key(key), path, signature):
        raise ReleaseError(
            f"the release in {folder} is signed by {signature['key'][:12]}…, not by the"
            f" key you trust ({public_key(key)[:12]}…); do not use it"
        )
    return manifest


def _leads(trusted: str, path: Path, signature: Mapping[str, Any]) -> bool:
    """Whether a key is the signer's, or was handed over to it, as the signature itself shows.

    A signer's key of which the same signature shows that it was handed over does not count.
    """
    signer = signature["key"]
    try:
        known = HandOvers().merged_with(
            HandOver.of(link) for link in signature.get("handovers", ())
        )
        before = [link.before for link in known.leading_to(signer)]
        return known.newest(signer) == signer and trusted in (signer, *before)
    except (ValueError, KeyError, TypeError, RidgewayError):
        raise ReleaseError(
            f"{path} was changed after it was signed; download the release again"
        ) from None


def _parsed(path: Path, raw: bytes) -> dict[str, Any]:
    try:
        manifest = json.loads(raw)
        whole = canonical_json(manifest) == raw
        known = manifest["format"] == _FORMAT
        signature = manifest["signature"]
        shaped = (
            isinstance(signature["key"], str)
            and isinstance(signature["value"], str)
            and isinstance(manifest["files"], dict)
            and "version" in manifest
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ReleaseError(
            f"{path} is corrupt, or not a release manifest; download the release again"
        ) from None
    if not _is_printable(manifest):
        raise ReleaseError(
            f"{path} contains control characters; do not use this release"
        )
    if not known:
        raise ReleaseError(f"{path} is {manifest['format']}, not a release")
    if not whole or not shaped:
        raise ReleaseError(
            f"{path} was changed after it was signed; download the release again"
        )
    return dict(manifest)


def _is_printable(value: Any) -> bool:
    """Whether every text in a value can be shown as it is."""
    if isinstance(value, dict):
        return all(map(_is_printable, (*value, *value.values())))
    if isinstance(value, list):
        return all(_is_printable(item) for item in value if type(item) is not int)
    return not isinstance(value, str) or value.isprintable()


def _verified_file(
    folder: Path, name: str, manifest: Mapping[str, Any], files: Mapping[str, bytes]
) -> bytes:
    path = folder / name
    try:
        content = files[name] if files else path.read_bytes()
    except FileNotFoundError:
        raise ReleaseError(
            f"{name} is missing in the release {folder}; download it again"
        ) from None
    if hashlib.sha256(content).hexdigest() != manifest["files"].get(name):
        raise ReleaseError(
            f"{path} was changed after the release was signed; download the release "
            "again"
        )
    return content


def _signed(
    manifest: Mapping[str, Any],
    identity: Identity,
    handovers: Sequence[Mapping[str, Any]],
) -> bytes:
    """handovers: that lead to the signer's key; they are signed by themselves, and are no part of
    the release's id.
    """
    body = _unsigned(manifest)
    signature = {"key": identity.public, "value": identity.sign(canonical_json(body))}
    return canonical_json(
        {
            **body,
            "signature": signature | ({"handovers": handovers} if handovers else {}),
        }
    )


def _unsigned(manifest: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in manifest.items() if name != "signature"}


def refuse_foreign(folder: Path, signer: str | None = None) -> None:
    """Raise unless a release may be written here: over nothing, or over an older release of the
    same signer.
    """
    if folder.exists() and not folder.is_dir():
        raise ReleaseError(
            f"{folder} is a file, and a release is a folder; use another path"
        )
    known = {MANIFEST, ROUTER, *TOKENIZER_FILES}
    if folder.is_dir() and not {path.name for path in folder.iterdir()} <= known:
        raise ReleaseError(
            f"{folder} already contains other files; use an empty or new folder"
        )
    path = folder / MANIFEST
    if not path.is_file():
        return
    before: str | None = None
    # of a damaged one it cannot be told who signed it
    with contextlib.suppress(ReleaseError):
        before = str(_parsed(path, path.read_bytes())["signature"]["key"])
    if before != signer:
        raise ReleaseError(
            f"{folder} contains a release signed with another key; use another folder"
        )


# The release in use, and the next one taking its place.
#
# Knows how releases follow each other; what is made of one to route with is its opener's to say.


_LATEST = Path("releases", "latest")


class OpenedRelease(Protocol):
    """What a release was made into."""

    @property
    def release(self) -> Release: ...


_Opened = TypeVar("_Opened", bound=OpenedRelease)
_OpenedNow = TypeVar("_OpenedNow", bound=OpenedRelease, covariant=True)


class ReleaseOpener(Protocol[_OpenedNow]):
    """Where releases come from. open: reads and verifies the one that is in the folder now; signer:
    the newest key that is known of those who sign.
    """

    @property
    def folder(self) -> Path: ...

    def open(self, signer: str | None = None) -> _OpenedNow: ...


def _release_stamp(folder: Path) -> list[object]:
    """What changes when the release in a folder does."""
    stamps = [stamp_if_there(folder / name) for name in (MANIFEST, ROUTER)]
    tokenizers = [stamp_if_there(folder / name) for name in TOKENIZER_FILES]
    return [*stamps, next(filter(None, tokenizers), None)]


def find_release(path: Path) -> Path:
    """The folder of the release: the path itself, or the newest of a coordinator's folder or of its
    releases.
    """
    for folder in (path, path / _LATEST, path / _LATEST.name):
        if (folder / MANIFEST).is_file():
            return folder
    if not path.is_dir():
        raise ReleaseError(
            f"there is no folder {path}; use that of a release or of a coordinator"
        )
    raise ReleaseError(
        f"{path} contains no release: {MANIFEST} and {_LATEST} are missing"
    )


def _without_path(words: str, folder: Path) -> str:
    """What is wrong with a release, without saying where on this machine it lies."""
    for path in (str(folder.resolve()), str(folder.absolute())):
        words = words.replace(f"the release in {path}", "the new release").replace(
            f"{path}/", ""
        )
    return words


class CurrentRelease(Generic[_Opened]):
    """The release in use. `refresh` takes a new one if there is one and it is good; a bad one is
    refused.

    It does not go back: neither to a lower number, nor to a release that it left, nor to a key that
    was handed over. This is kept in memory: a new process begins with the release that is there.
    """

    def __init__(self, source: ReleaseOpener[_Opened]) -> None:
        self._source = source
        self._stamp = _release_stamp(source.folder)
        self._older: set[str] = set()
        self.served = source.open()
        self._signer = self.served.release.signer
        self.refused: str | None = None

    def look_again(self) -> None:
        """What a release was refused for may be different now."""
        if self.refused is not None:
            self._stamp = []

    def refresh(self) -> bool:
        """Whether the release in use, or what is known of a refused one, has changed."""
        stamp = _release_stamp(self._source.folder)
        if stamp == self._stamp or None in stamp:  # in the middle of being replaced
            return False
        self._stamp = stamp
        before = (self.served.release.id, self.refused)
        try:
            manifest = load_manifest(self._source.folder.resolve(), key=self._signer)
            # newer, even if the release is refused
            self._signer = str(manifest["signature"]["key"])
            taken = self._source.open(self._signer)
            self._check_order(taken)
        except OSError:
            self._stamp = []  # that may pass: look again
            self.refused = "it cannot be read now; trying again"
        except RidgewayError as error:
            self.refused = _without_path(str(error), self._source.folder)
        else:
            self.refused = None
            if taken.release.id != self.served.release.id:
                self._older.add(self.served.release.id)
                self.served = taken
        return before != (self.served.release.id, self.refused)

    def _check_order(self, taken: _Opened) -> None:
        """Raise if a release is older than the one in use. Releases that no federation made have no
        number.
        """
        number = taken.release.number
        in_use = self.served.release.number
        if number < in_use:
            raise ReleaseError(
                f"release {number} is older than release {in_use}, which is in use; "
                "`coordinator rollback` publishes an earlier router under a higher "
                "number"
            )
        if taken.release.id in (
            *self._older,
            self.served.release.manifest.get("parent"),
        ):
            raise ReleaseError(
                "it is older than the one in use, or was replaced before; publish it "
                "under a higher number"
            )
