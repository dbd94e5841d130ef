"""Private corpora made for a test, and the ways to read and prepare them."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ridgeway.client.sums.corpus import Counters, Position, documents, find_sources
from ridgeway.client.sums.prepare import PrepareJob, PrepareOutcome, Watch, prepare
from ridgeway.common.base.files import labelled_texts
from ridgeway.common.base.identity import create_identity
from ridgeway.common.base.settings import Preset, Sampling
from ridgeway.common.routing.evaluation import Evaluation, evaluate
from ridgeway.common.routing.router import Router
from ridgeway.common.statistics import Integers, to_bytes
from ridgeway.common.text.table_encoder import TableEncoder
from ridgeway.common.text.tokenizer import Ids, Tokenizer
from ridgeway.common.text.tokens import TextReader
from ridgeway.coordinator.solving.solve import RouterChoices, draft, sign
from tests.support.tiny import tiny_encoder

ALPHABETS = {"code": "0123456789., ", "law": "abcdefgh \n", "medicine": "nopqrstuv ,"}
"""Three domains that a router over single characters can tell apart."""
LETTERS = {**ALPHABETS, "poetry": "ijklmwxyz .e"}
"""These, and a fourth."""

SCRIPTS = (
    "the court held that its motion wasn't timely and THEY'LL appeal in 1987",
    "def gather(self, names): return {name: len(name) for name in names} # x_1 += 0.5",
    "Straße naïve café œuvre Žluťoučký kůň ſ İstanbul ǅ ﬁ cafe\u0301",
    "Суд отклонил ходатайство η απόφαση του δικαστηρίου",
    "قررت المحكمة ١٢٣ בית המשפט अदालत ने फैसला ศาลตัดสิน",
    "東京に行く 法院判决 그 법원은 판결했다 🙂 👩\u200d⚕️ ½ \u00a0 \u2003",
)
"""Words in several scripts."""
MAX_TEXT_WORDS = 400


def sentences(domain: str, count: int, size: int = 200) -> list[str]:
    """Texts in a domain's letters, the same on every call."""
    letters = random.Random(domain)
    return [
        f"{domain[0]}{number} " + "".join(letters.choices(LETTERS[domain], k=size))
        for number in range(count)
    ]


def texts_in_scripts(seed: int) -> list[str]:
    """Texts of one to some hundred words of a script, the same on every call."""
    source = random.Random(seed)
    words = [script.split(" ") for script in SCRIPTS]
    return [
        " ".join(
            source.choices(source.choice(words), k=source.randint(1, MAX_TEXT_WORDS))
        )
        for _ in range(40)
    ]


def write_jsonl(path: Path, texts: Iterable[str], field: str = "text") -> Path:
    """A corpus of records, one a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        b"".join(json.dumps({field: text}).encode() + b"\n" for text in texts)
    )
    return path


def write_domains(folder: Path, train: int, test: int) -> None:
    """DOMAIN.train.jsonl and DOMAIN.test.jsonl of every domain, with so many texts."""
    for domain in ALPHABETS:
        texts = sentences(domain, train + test)
        write_jsonl(folder / f"{domain}.train.jsonl", texts[:train])
        write_jsonl(folder / f"{domain}.test.jsonl", texts[train:])


def touch_later(path: Path) -> None:
    """Give a file a time of its own, however fast it was written."""
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000_000))


def read(path: Path, *fields: str) -> tuple[list[str], Counters]:
    """The documents of one file, and what was met in it."""
    counters = Counters()
    [source], _ = find_sources([path])
    return list(documents(source, fields or ("text",), counters, Position())), counters


def texts_of(*roots: Path, whole: bool = False) -> Iterator[str]:
    """The documents of a corpus, one after another."""
    for source in find_sources(roots)[0]:
        yield from documents(source, ("text",), Counters(), Position(), whole=whole)


def job(
    *roots: Path,
    window: int = 4,
    holdout: float = 0.0,
    threads: int = 1,
    max_tokens: int = 0,
) -> PrepareJob:
    """The work on some files and folders."""
    return PrepareJob(
        roots, "law", Sampling(window, max_tokens), holdout, ("text",), threads
    )


def without_cache(
    work: PrepareJob, encoder: TableEncoder, empty: Path
) -> PrepareOutcome:
    """What the work comes to when nothing was kept before."""
    assert not empty.exists()
    return prepare(work, encoder, empty)


def content(outcome: PrepareOutcome) -> bytes:
    """The statistics file of an outcome."""
    return to_bytes(outcome.prepared)


def must_agree(one: PrepareOutcome, other: PrepareOutcome) -> None:
    """Both runs have come to the same file, to the byte, and have met the same."""
    assert content(one) == content(other)
    assert one.counters == other.counters


class Stopper:
    """A holder who asks to stop once, after the work has looked a number of times whether to."""

    def __init__(self, looks: int) -> None:
        self.left = looks

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0

    @property
    def watch(self) -> Watch:
        return Watch(stopped=self)


class SpiedTokenizer(Tokenizer):
    """A tokenizer that notes every text it was given; `before` may refuse one."""

    def __init__(
        self, definition: bytes, before: Callable[[str], None] = lambda text: None
    ) -> None:
        super().__init__(definition)
        self.seen: list[str] = []
        self._before = before

    def encode_many(self, texts: Sequence[str]) -> tuple[Ids, Integers]:
        for text in texts:
            self._before(text)
            self.seen.append(text)
        return super().encode_many(texts)


def spied_encoder(
    before: Callable[[str], None] = lambda text: None,
) -> tuple[TableEncoder, list[str]]:
    """A small encoder, and the list of the texts that it will have tokenised."""
    encoder = replace(tiny_encoder())
    tokenizer = SpiedTokenizer(encoder.definition, before)
    object.__setattr__(encoder, "reader", TextReader(tokenizer))
    return encoder, tokenizer.seen


def measured(
    folder: Path, chosen: Preset, encoder: TableEncoder, work: Path
) -> Evaluation:
    """A preset trained on DOMAIN.train.jsonl and tested on DOMAIN.test.jsonl, nothing tuned on
    either.
    """
    parts = []
    for path in sorted(folder.glob("*.train.jsonl")):
        domain = path.name.removesuffix(".train.jsonl")
        whole = PrepareJob(
            (path,), domain, chosen.sampling, chosen.holdout, ("text",), threads=2
        )
        parts.append(prepare(whole, encoder, work / "cache").prepared)
    choices = RouterChoices.of_preset(chosen)
    key = create_identity(work / "key")
    sign(draft(parts, encoder, choices), key, work / "release")
    router = Router.load(work / "release")
    return evaluate(router, labelled_texts(folder, router.domains, ("text",)))
