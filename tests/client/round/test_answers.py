"""A holder's answers: the right one to each request, and a refusal without anything private
whatever goes wrong.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ridgeway.client.round.holder
from ridgeway.client.evidence import HolderRecord
from ridgeway.client.round.answers import NO_ROUND, answer
from ridgeway.client.round.epochs import EpochStore
from ridgeway.client.round.holder import Holder
from ridgeway.common.base.identity import hand_over
from ridgeway.common.base.settings import EQUAL_MASS
from ridgeway.common.protocol.cohort import Cohort, Terms, form_cohort
from ridgeway.common.protocol.messages import (
    Announce,
    ClearStatistics,
    Collect,
    Counted,
    Deliver,
    Evaluate,
    Hello,
    Here,
    Message,
    Offer,
    OpenEpoch,
    Refusal,
)
from ridgeway.common.protocol.packet import (
    Blob,
    Packet,
    open_packet,
    seal_packet,
    vector_of,
    weights_blob,
)
from ridgeway.common.text.encoder_files import save_encoder
from tests.support.hostile import code_of
from tests.support.making import fixed_identity
from tests.support.simulated_federation import Parties, found, own_texts
from tests.support.tiny import tiny_encoder

ROUND = "cd" * 16
SECRET = "the secret sentence of a private document"
WORDS = (
    b"Traceback",
    b"Error",
    b"Exception",
    b"Errno",
    b"No space",
    b"secret",
    b"/tmp",
    b".jsonl",
    b".py",
)
DOMAINS = ("code", "law", "medicine")
WEIGHTS = weights_blob(np.eye(7, 3))


def evaluate(terms: Terms, **changes: Any) -> Evaluate:
    asked = Evaluate(terms=terms, domains=DOMAINS, selector="average", k=10)
    return asked.model_copy(update=changes)


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Parties:
    """One holder, of law."""
    made = found(tmp_path_factory.mktemp("private-place"))
    made.settle("law", "law", [*own_texts("law", "law", 20), SECRET])
    return made


@pytest.fixture
def home(parties: Parties, tmp_path: Path) -> Iterator[Holder]:
    """The holder in a folder of its own."""
    forget = ridgeway.client.round.holder._encoder.cache_clear
    forget()
    holder = parties.copy(tmp_path / "private-place").holder("law")
    yield holder
    forget()


@pytest.fixture
def terms(parties: Parties) -> Terms:
    return parties.terms


@pytest.fixture
def ask(parties: Parties, home: Holder) -> Callable[..., Any]:
    """Ask the holder as its coordinator; the answer is signed, names the request, and holds nothing
    private.
    """

    def asked(message: Message, blobs: Sequence[Blob] = ()) -> Any:
        request = seal_packet(
            message, parties.federation.identity, round=ROUND, blobs=blobs
        )
        reply = answer(home, request)
        opened = open_packet(reply)
        assert (opened.sender, opened.round, opened.reply_to) == (
            home.key,
            ROUND,
            request.digest,
        )
        must_be_clean(reply, home)
        return opened.message

    return asked


def must_be_clean(reply: Packet, holder: Holder) -> None:
    """No path, no text, no word of an exception."""
    everything = b"".join((reply.header, *map(bytes, reply.blobs)))
    for word in (
        *WORDS,
        str(holder.folder).encode(),
        holder.folder.name.encode() + b"/",
        b"private-place",
    ):
        assert word not in everything


def cohort_of(
    holder: Holder, terms: Terms, domain: str = "law", others: int = 1
) -> Cohort:
    domains = {holder.key: domain} | {
        fixed_identity(9 + n).public: "code" for n in range(others)
    }
    return form_cohort(terms, domains)


# When all is well


def epoch_of(home: Holder, *, used: bool = False) -> OpenEpoch:
    current = home.epochs.current()
    assert current is not None
    return OpenEpoch(name=current.name, used=used)


def test_a_greeting_is_answered_with_the_newest_release(
    ask: Callable[..., Any],
) -> None:
    """None yet."""
    assert ask(Hello()) == Here()


def test_an_announcement_is_answered_with_an_offer(
    ask: Callable[..., Any], home: Holder, terms: Terms
) -> None:
    """It names the epoch, the same as long as its owner opens no other."""
    offer = ask(Announce(terms=terms))
    assert offer == Offer(domain="law", epoch=epoch_of(home), holdout=0.25)
    assert ask(Announce(terms=terms)) == offer


def test_what_is_sent_is_the_own_sums_weighted_to_the_share(
    parties: Parties, home: Holder, terms: Terms
) -> None:
    """Of its own domain alone, and nothing else."""
    cohort = cohort_of(home, terms)
    request = seal_packet(
        Collect(cohort=cohort), parties.federation.identity, round=ROUND
    )
    opened = open_packet(answer(home, request))
    epoch = home.epoch(terms)
    assert opened.message == ClearStatistics(cohort=cohort.id, source=epoch.name)
    sent = terms.statistics_of(vector_of(opened.blobs[0], terms.vector_size(1)), 1)
    assert sent.equals(home.epochs.statistics(epoch).statistics.weighted(EQUAL_MASS))


def test_an_exact_output_is_paid_for_with_infinity(
    ask: Callable[..., Any], home: Holder, terms: Terms
) -> None:
    """Sums and counts, each once an epoch; an offer costs nothing."""
    ask(Announce(terms=terms))
    assert home.account.epsilon() == 0
    for _ in range(2):
        ask(Collect(cohort=cohort_of(home, terms)))
        ask(evaluate(terms), (WEIGHTS,))
    assert home.account.epsilon() == float("inf")
    outputs = [expense.output for expense in home.account.expenses()]
    assert outputs == ["statistics", "counts"]


def test_every_answer_is_noted_with_its_kind_and_size(
    ask: Callable[..., Any], home: Holder, terms: Terms
) -> None:
    """So that a holder can tell what left its machine; of sums, also for which cohort, and who is
    in it.
    """
    for message in (
        Hello(),
        Announce(terms=terms),
        Collect(cohort=cohort_of(home, terms)),
        Here(),
    ):
        ask(message)
    noted = [entry.facts for entry in home.journal.entries() if entry.kind == "sent"]
    assert [facts["kind"] for facts in noted] == [
        "here",
        "offer",
        "clear_statistics",
        "refusal",
    ]
    assert all(facts["bytes"] > 200 and facts["round"] == ROUND for facts in noted)
    assert noted[2]["cohort"] == cohort_of(home, terms).id
    assert noted[2]["epoch"] == home.epoch(terms).name
    assert [facts.get("mode") for facts in noted] == [None, "clear", "clear", None]
    assert noted[3]["code"] == "malformed"
    [sums] = [
        item
        for item in HolderRecord(home.folder).sent()
        if item.kind == "clear_statistics"
    ]
    assert set(sums.members) == set(cohort_of(home, terms).shares)


def test_one_holder_under_two_keys_is_no_cohort_of_two(
    ask: Callable[..., Any], home: Holder, terms: Terms
) -> None:
    """Its earlier key is nobody to be hidden among."""
    home.take_handovers([hand_over(fixed_identity(9), home.identity, 1)])
    assert ask(Collect(cohort=cohort_of(home, terms))).code == "repeated_holder"


# When somebody asks for what it must not have


def other(terms: Terms, **changes: Any) -> Terms:
    return terms.model_copy(update=changes)


@pytest.mark.parametrize(
    ("request_of", "blobs", "code"),
    [
        (lambda h, t: Here(), (), "malformed"),
        (
            lambda h, t: Announce(terms=other(t, encoder="0" * 64)),
            (),
            "encoder_not_allowed",
        ),
        (
            lambda h, t: Announce(terms=other(t, features=8)),
            (),
            "encoder_mismatch",
        ),
        (
            lambda h, t: Announce(terms=other(t, mode="masked")),
            (),
            "mode_not_allowed",
        ),
        (
            lambda h, t: Collect(cohort=cohort_of(h, other(t, mode="masked"))),
            (),
            "mode_not_allowed",
        ),
        (lambda h, t: Collect(cohort=cohort_of(h, t, "code")), (), "wrong_domain"),
        (
            lambda h, t: Collect(cohort=cohort_of(h, t, others=0)),
            (),
            "cohort_too_small",
        ),
        (lambda h, t: evaluate(t), (b"",), "shape_mismatch"),
        (
            lambda h, t: evaluate(t),
            (weights_blob(np.full((7, 3), np.nan)),),
            "malformed",
        ),
        (
            lambda h, t: evaluate(t),
            (weights_blob(np.full((7, 3), 1e101)),),
            "malformed",
        ),
        (lambda h, t: evaluate(t, temperatures=(2.0, 1.0)), (WEIGHTS,), "malformed"),
        (lambda h, t: evaluate(t, domains=("a", "b", "c")), (WEIGHTS,), "wrong_domain"),
        (
            lambda h, t: Deliver(number=1, release="0" * 64),
            (b"", b"", b""),
            "bad_release",
        ),
    ],
)
def test_what_the_policy_or_the_form_does_not_allow_is_refused_with_its_code(
    ask: Callable[..., Any],
    home: Holder,
    terms: Terms,
    request_of: Callable[[Holder, Terms], Message],
    blobs: Sequence[Blob],
    code: str,
) -> None:
    """And a reason that says nothing private."""
    assert ask(request_of(home, terms), blobs).code == code


@pytest.mark.parametrize("message", [Hello(), Deliver(number=1, release="0" * 64)])
def test_a_request_of_anybody_else_is_refused_and_tells_no_round(
    home: Holder, message: Message
) -> None:
    """Only the pinned coordinator is answered."""
    blobs = (b"",) * message.blob_count
    request = seal_packet(message, fixed_identity(9), round=ROUND, blobs=blobs)
    opened = open_packet(answer(home, request))
    assert (code_of(opened), opened.round) == ("unknown_coordinator", NO_ROUND)


def test_an_answer_is_no_request(parties: Parties, home: Holder) -> None:
    """Though it is the coordinator's and says what could be asked."""
    packet = seal_packet(
        Hello(), parties.federation.identity, round=ROUND, reply_to="0" * 64
    )
    assert code_of(open_packet(answer(home, packet))) == "malformed"


@given(
    header=st.binary(max_size=50),
    signature=st.text(max_size=20),
    blobs=st.lists(st.binary(max_size=9), max_size=3),
)
def test_whatever_arrives_is_answered_with_a_signed_refusal(
    parties: Parties, header: bytes, signature: str, blobs: list[bytes]
) -> None:
    """Signed by the coordinator or by nobody, of any form."""
    holder = parties.law
    for sign in (signature, parties.federation.identity.sign(header)):
        packet = Packet(header, sign, tuple(blobs))
        reply = answer(holder, packet)
        opened = open_packet(reply)
        assert isinstance(opened.message, Refusal)
        assert opened.reply_to == packet.digest
        must_be_clean(reply, holder)


# When something goes wrong here


def full(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device", "/tmp/private-place/secret")


def unexpected(*_: Any, **__: Any) -> Any:
    raise RuntimeError(f"{SECRET} in /tmp/private-place/law.jsonl")


@pytest.mark.parametrize(
    ("trouble", "code"), [(full, "disk_full"), (unexpected, "failed")]
)
@pytest.mark.parametrize("what", ["statistics", "held_out"])
def test_trouble_with_the_data_is_a_refusal_and_the_story_is_in_the_own_log(
    ask: Callable[..., Any],
    home: Holder,
    terms: Terms,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    trouble: Callable[..., Any],
    code: str,
) -> None:
    """A full disk, a bug: the coordinator learns a code, the holder everything."""
    monkeypatch.setattr(EpochStore, what, trouble)
    asked = (
        Collect(cohort=cohort_of(home, terms))
        if what == "statistics"
        else evaluate(terms)
    )
    assert ask(asked, (WEIGHTS,) if what == "held_out" else ()).code == code
    log = (home.folder / "logs" / "holder.log").read_text()
    assert "Traceback" in log
    assert "private-place" in log
    assert home.account.expenses() == []


def test_a_release_that_finds_no_room_is_refused(
    ask: Callable[..., Any], home: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not half stored."""
    verified = SimpleNamespace(id="0" * 64, manifest={"number": 1}, domains=DOMAINS)
    monkeypatch.setattr(
        ridgeway.client.round.holder, "_verified_release", lambda *_: verified
    )
    monkeypatch.setattr(ridgeway.client.round.holder, "write_whole", full)
    release = Deliver(number=1, release="0" * 64)
    assert ask(release, (b"a", b"b", b"c")).code == "disk_full"
    assert ask(Hello()) == Here()


def rewrite(home: Holder, old: str, new: str) -> Holder:
    path = home.folder / "client.toml"
    path.write_text(path.read_text().replace(old, new))
    return Holder(home.folder)


@pytest.mark.parametrize(
    "content",
    [None, b"", b"\xff\xfe not text", b'{"other": "secret"}\n', b"not json\n"],
)
def test_a_corpus_that_is_gone_or_cannot_be_read_changes_no_answer(
    parties: Parties, home: Holder, terms: Terms, tmp_path: Path, content: bytes | None
) -> None:
    """Deleted, emptied, or damaged since its owner opened an epoch: rounds do not look at it."""
    asked = Announce(terms=terms), Collect(cohort=cohort_of(home, terms))
    requests = [
        seal_packet(message, parties.federation.identity, round=ROUND)
        for message in asked
    ]
    before = [open_packet(answer(home, request)) for request in requests]
    corpus = tmp_path / "private-place" / "corpus.jsonl"
    if content is not None:
        corpus.write_bytes(content)
    holder = rewrite(home, str(parties.folder / "corpora" / "law.jsonl"), str(corpus))
    after = [open_packet(answer(holder, request)) for request in requests]
    assert [(opened.message, *map(bytes, opened.blobs)) for opened in before] == [
        (opened.message, *map(bytes, opened.blobs)) for opened in after
    ]


@pytest.mark.parametrize(
    ("folder", "code"), [("nothing", "encoder_missing"), ("other", "encoder_mismatch")]
)
def test_an_encoder_that_is_not_there_or_is_another_is_named_by_its_fingerprint_alone(
    parties: Parties, home: Holder, terms: Terms, tmp_path: Path, folder: str, code: str
) -> None:
    """Where it was looked for stays here."""
    save_encoder(tiny_encoder(seed=5), tmp_path / "private-place" / "other")
    holder = rewrite(
        home,
        f"dir:{parties.folder / 'encoder'}",
        f"dir:{tmp_path / 'private-place' / folder}",
    )
    reply = answer(
        holder,
        seal_packet(Announce(terms=terms), parties.federation.identity, round=ROUND),
    )
    must_be_clean(reply, holder)
    message = open_packet(reply).message
    assert isinstance(message, Refusal)
    assert message.code == code
    assert terms.encoder[:12] in message.reason


def test_counts_are_the_only_thing_that_an_evaluation_gives_away(
    ask: Callable[..., Any], terms: Terms
) -> None:
    """Over as many documents as were held out, and over their beginnings; one router an epoch."""
    counted = ask(evaluate(terms, temperatures=(1.0, 2.0)), (WEIGHTS,))
    assert isinstance(counted, Counted)
    assert len(counted.counts) == len(DOMAINS) + 2
    assert sum(counted.counts) > 0
    assert json.loads(counted.model_dump_json()).keys() == {
        "counts",
        "quality",
        "reliability",
    }
    assert ask(evaluate(terms, temperatures=(1.0, 2.0)), (WEIGHTS,)) == counted
    for asked, weights in (
        (evaluate(terms, temperatures=(1.0, 2.0)), weights_blob(2 * np.eye(7, 3))),
        (evaluate(terms), WEIGHTS),
        (evaluate(terms, temperatures=(1.0, 2.0), selector="all"), WEIGHTS),
    ):
        assert ask(asked, (weights,)).code == "already_counted"
