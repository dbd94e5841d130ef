"""Laws of the messages: what is sealed opens to the same, and whatever else arrives is refused with
a code.
"""

from __future__ import annotations

import json
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ridgeway.common.base.errors import Refused
from ridgeway.common.base.records import Mode
from ridgeway.common.base.settings import EQUAL_MASS, Sampling
from ridgeway.common.masking.agreement import Advert, Agreement
from ridgeway.common.privacy.accountant import Privacy
from ridgeway.common.protocol import packet as packet_module
from ridgeway.common.protocol.cohort import Cohort, Terms, form_cohort
from ridgeway.common.protocol.messages import (
    KINDS,
    MAX_BLOBS,
    SUM_NAMES,
    ClearStatistics,
    Evaluate,
    HeldRelease,
    Hello,
    Here,
    Message,
    NoisyStatistics,
    Offer,
    OpenEpoch,
)
from ridgeway.common.protocol.packet import (
    MAX_HEADER_BYTES,
    Opened,
    Packet,
    open_packet,
    seal_packet,
    vector_blob,
    vector_of,
    weights_blob,
    weights_of,
)
from tests.support.flower_parts import (
    BULK,
    HEADER,
    MESSAGE_TYPE,
    SMALL_BULK_BYTES,
    Array,
    ArrayRecord,
    ClientApp,
    ConfigRecord,
    FlowerMessage,
    LocalGrid,
    MetricRecord,
    RecordDict,
    from_record,
    put_together,
    taken_apart,
    to_record,
)
from tests.support.making import drawn_samples, fixed_identity, one_domain

SENDER, STRANGER = fixed_identity(1), fixed_identity(2)
ROUND = "ab" * 16
CODES = {"malformed", "bad_signature", "version", "too_large"}

digests = st.binary(min_size=32, max_size=32).map(bytes.hex)
names = st.text("abcxyz019_-.", min_size=1, max_size=12).map(lambda word: f"d{word}")
counts = st.integers(-(1 << 53), 1 << 53)


privacies = st.builds(
    Privacy,
    mode=st.sampled_from(("columns", "full")),
    epsilon=st.floats(0.01, 20),
    delta=st.floats(1e-30, 1e-3),
    prior=digests,
)


@st.composite
def terms(draw: st.DrawFn) -> Terms:
    mode: Mode = draw(st.sampled_from(get_args(Mode)))
    equal = mode != "private" and draw(st.booleans())
    return Terms(
        mode=mode,
        encoder=draw(digests),
        encoder_name=draw(st.sampled_from(("tiny", "smollm2", "hf:some/model"))),
        features=draw(st.integers(2, 1 << 16)),
        sampling=Sampling(
            window=draw(st.integers(1, 1 << 16)),
            max_tokens=draw(st.integers(0, 1 << 40)),
        ),
        weighting="equal" if equal else "tokens",
        mass=EQUAL_MASS if equal else 0,
        privacy=draw(privacies) if mode == "private" else None,
    )


@st.composite
def cohorts(draw: st.DrawFn) -> Cohort:
    domains = draw(st.dictionaries(digests, names, min_size=1, max_size=4))
    return form_cohort(draw(terms()), domains)


some_domains = st.lists(names, min_size=2, max_size=4, unique=True).map(tuple)


def several(items: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(items, min_size=1, max_size=4).map(tuple)


signatures = st.integers(0, 2**512 - 1).map(lambda number: f"{number:0128x}")
nonces = st.integers(0, 2**128 - 1).map(lambda number: f"{number:032x}")
held_releases = st.builds(HeldRelease, number=st.integers(1, 1 << 53), release=digests)
indices = st.lists(st.integers(1, 10_000), max_size=5).map(tuple)
adverts = st.builds(
    Advert,
    key=digests,
    source=digests,
    held_out=digests,
    history=digests,
    nonce=nonces,
    cipher=digests,
    masks=several(digests),
    seeds=several(digests),
    signature=signatures,
)
agreements = st.builds(
    Agreement,
    terms=digests,
    cohort=digests,
    round=nonces,
    lots=st.just(SUM_NAMES),
    threshold=st.integers(1, 99),
    adverts=several(adverts),
)

FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "terms": terms(),
    "cohort": cohorts(),
    "agreement": agreements,
    "session": digests,
    "lot": st.sampled_from(SUM_NAMES),
    "shared": indices,
    "sent": indices,
    "confirmations": several(st.tuples(st.integers(1, 99), signatures)),
    "signature": signatures,
    "domains": some_domains,
    "selector": st.sampled_from(("average", "entropy", "all")),
    "k": st.integers(1, 1 << 20),
    "holders": st.just(()) | several(names),
    "last": st.none() | digests,
    "temperatures": st.just(()) | several(st.floats(min_value=1e-100, max_value=1e100)),
    "experts": st.lists(names, max_size=3, unique=True).map(tuple),
    "number": st.integers(1, 1 << 80),
    "release": digests,
    "domain": names,
    "epoch": st.builds(OpenEpoch, name=digests, used=st.booleans()),
    "holdout": st.floats(0, 1, exclude_max=True),
    "advert": st.none() | adverts,
    "source": digests,
    "counts": several(counts),
    "quality": st.just(()) | several(counts),
    "reliability": st.just(()) | several(counts),
    "code": st.from_regex(r"\A[a-z_]{1,40}\Z"),
    "reason": st.text("abcäß ,.;’", max_size=60),
    "keys": several(digests),
}
"""What the fields of messages may hold, by their names."""
FIELDS_OF_KIND: dict[type[Message], dict[str, st.SearchStrategy[Any]]] = {
    Evaluate: {"session": st.none() | digests},
    Here: {"release": st.none() | held_releases},
    Offer: {"release": st.none() | held_releases},
    ClearStatistics: {"cohort": digests},
    NoisyStatistics: {"cohort": digests},
}


def messages(kind: str) -> st.SearchStrategy[Message]:
    message = KINDS[kind]
    known = FIELDS | FIELDS_OF_KIND.get(message, {})
    fields = message.model_fields
    return st.builds(message, **{name: known[name] for name in known.keys() & fields})


@st.composite
def packets(draw: st.DrawFn) -> tuple[Message, Packet]:
    """A message of any kind, sealed, with as much bulk as its kind carries."""
    message = draw(st.sampled_from(sorted(KINDS)).flatmap(messages))
    blobs = [draw(st.binary(max_size=20)) for _ in range(message.blob_count)]
    reply_to = draw(st.none() | digests)
    return message, seal_packet(
        message, SENDER, round=ROUND, reply_to=reply_to, blobs=blobs
    )


def opened_or_refused(packet: Packet) -> Opened[Any] | str:
    """The message, or the code of the refusal; anything else that is raised is a failure."""
    try:
        opened = open_packet(packet)
    except Refused as error:
        assert error.code in CODES
        assert error.reason
        return error.code
    assert type(opened.message) in KINDS.values()
    return opened


def signed(header: bytes, blobs: tuple[bytes | memoryview, ...] = ()) -> Packet:
    return Packet(header, SENDER.sign(header), blobs)


# What is sent arrives


@given(given_packet=packets())
def test_a_sealed_message_opens_to_itself(given_packet: tuple[Message, Packet]) -> None:
    """With its bulk, its sender, its round and the request that it answers."""
    message, packet = given_packet
    opened = open_packet(packet)
    assert opened.message == message
    assert type(opened.message) is type(message)
    assert (opened.blobs, opened.sender, opened.round) == (
        packet.blobs,
        SENDER.public,
        ROUND,
    )
    assert opened.digest == packet.digest
    assert json.loads(packet.header)["reply_to"] == opened.reply_to


@given(given_packet=packets(), padding=st.sampled_from((0, SMALL_BULK_BYTES)))
def test_a_packet_travels_through_flower_unchanged(
    given_packet: tuple[Message, Packet], padding: int
) -> None:
    """As a record, and taken apart to bytes and put together by Flower's own code, be its bulk
    small or large.
    """
    _, packet = given_packet
    padded = tuple(
        bytes(blob) + bytes(0 if index else padding)
        for index, blob in enumerate(packet.blobs)
    )
    packet = Packet(packet.header, packet.signature, padded)
    LocalGrid(ClientApp(), {})
    sent = FlowerMessage(to_record(packet), 7, MESSAGE_TYPE)
    sent.metadata.__dict__["_message_id"] = sent.object_id
    for record in (to_record(packet), put_together(taken_apart([sent])[0]).content):
        arrived = from_record(record)
        assert (arrived.header, arrived.signature) == (packet.header, packet.signature)
        assert [*map(bytes, arrived.blobs)] == [*map(bytes, packet.blobs)]


@given(samples=drawn_samples(4), position=st.integers(0, 2), given_terms=terms())
def test_statistics_travel_bit_for_bit(
    samples: Any, position: int, given_terms: Terms
) -> None:
    """Through their bulk and back, with the column where it was; columns alone where no products
    are sent.
    """
    placed = one_domain(samples).placed(position, 3)
    agreed = given_terms.model_copy(update={"features": 4})
    bulk = vector_blob(agreed.vector_of(placed))
    arrived = agreed.statistics_of(vector_of(bulk, agreed.vector_size(3)), 3)
    assert (arrived.cross == placed.cross).all()
    columns_alone = agreed.privacy is not None and agreed.privacy.mode == "columns"
    assert columns_alone or arrived.equals(placed)
    assert columns_alone == (memoryview(bulk).nbytes == 8 * 4 * 3)


# Cohorts


@given(
    given_terms=terms(), domains=st.dictionaries(digests, names, min_size=1, max_size=9)
)
def test_the_shares_of_a_domain_add_up_to_the_mass(
    given_terms: Terms, domains: dict[str, str]
) -> None:
    """And are as equal as integers can be; where nothing is weighted, there are none."""
    cohort = form_cohort(given_terms, domains)
    assert set(cohort.shares) == set(domains)
    for domain in cohort.domains:
        shares = [cohort.shares[key] for key in domains if domains[key] == domain]
        assert sum(shares) == given_terms.mass
        assert max(shares) - min(shares) <= 1
        assert bool(given_terms.mass) == all(shares)


@given(
    given_terms=terms(),
    domains=st.dictionaries(digests, names, min_size=2, max_size=9),
    data=st.data(),
)
def test_a_cohort_does_not_depend_on_the_order_of_its_holders(
    given_terms: Terms, domains: dict[str, str], data: st.DataObject
) -> None:
    """The same holders under the same terms are one cohort, with one name; fewer of them are
    another.
    """
    shuffled = dict(data.draw(st.permutations(list(domains.items()))))
    cohort = form_cohort(given_terms, domains)
    assert form_cohort(given_terms, shuffled) == cohort
    del shuffled[data.draw(st.sampled_from(sorted(domains)))]
    assert form_cohort(given_terms, shuffled).id != cohort.id


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (
            Sampling(),
            "71ca2962d85d42e328d8aaf0fdae82293dab9fb6b92af7fcbdfe441442d313df",
        ),
        (
            Sampling(8, stride=32, units=15, mistyped=8),
            "d06ccc884b346fd3990ca3f785b693b121de1179f7cc1be1bbbc609b22853b1a",
        ),
    ],
)
def test_the_ids_of_terms_are_fixed(sampling: Sampling, expected: str) -> None:
    """Sessions, epochs and kept totals are found by them."""
    fixed = Terms(
        mode="masked",
        encoder="0" * 64,
        encoder_name="tiny",
        features=4,
        sampling=sampling,
        weighting="equal",
        mass=EQUAL_MASS,
    )
    assert fixed.id == expected
    assert Terms.model_validate_json(fixed.model_dump_json()) == fixed


@given(
    weights=st.lists(st.floats(min_value=-9e99, max_value=9e99), min_size=6, max_size=6)
)
def test_weights_travel_bit_for_bit(weights: list[float]) -> None:
    """Through their bulk and back."""
    matrix = np.array(weights).reshape(3, 2)
    assert weights_of(weights_blob(matrix), 3, 2).tobytes() == matrix.tobytes()


# Whatever else arrives is refused

leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(0, 1 << 300)
    | st.floats()
    | st.text(max_size=8)
    | digests
    | st.sampled_from(sorted(KINDS))
)
json_values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3)
    ),
)


@given(
    header=st.binary(max_size=60)
    | json_values.map(lambda value: json.dumps(value).encode())
)
@example(header=b"")
@example(header=b"\xff\xfe")
@example(header=b'{"version": 1' + b"0" * 5000 + b"}")
@example(header=b'{"version": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")
@example(header=b'{"version": 1, "body": {"a": ' + b"9" * 5000 + b"}}")
@example(header=b'{"version": NaN}')
@example(header=b'{"version": true}')
def test_bytes_that_are_no_message_are_refused_though_they_are_signed(
    header: bytes,
) -> None:
    """Never another error, whatever the bytes."""
    assert opened_or_refused(signed(header)) in ("malformed", "version")


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every dictionary and list within a JSON value, with each of its keys."""
    if not isinstance(value, dict | list):
        return []
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return [place for key, item in items for place in ((value, key), *places(item))]


@given(data=st.data())
def test_a_signed_header_with_any_field_changed_is_refused_or_valid(
    data: st.DataObject,
) -> None:
    """Missing, unknown, of another type, too large, not a number, too deep: a code, or a message
    that fits its form.
    """
    _, packet = data.draw(packets())
    header = json.loads(packet.header)
    target, key = data.draw(st.sampled_from(places(header)))
    value = data.draw(json_values | st.sampled_from((1e999, -1e999, 10**400, [[[[]]]])))
    kind = data.draw(st.sampled_from(("set", "drop", "add")))
    if kind == "set":
        target[key] = value
    elif kind == "drop":
        del target[key]
    elif isinstance(target, dict):
        target["extra"] = value
    opened = opened_or_refused(signed(json.dumps(header).encode(), packet.blobs))
    if kind == "add" and isinstance(target, dict):
        assert opened == "malformed"


@pytest.mark.parametrize(
    "nested",
    [
        "[" * 5000 + "]" * 5000,
        '{"a":' * 5000 + "1" + "}" * 5000,
        "9" * 5000,
        "NaN",
        "-1e999",
    ],
)
@pytest.mark.parametrize("field", ["body", "round", "kind", "blobs", "extra"])
def test_values_that_trouble_decoders_are_refused(field: str, nested: str) -> None:
    """Too deep for a stack, too long for a number, or no number at all, in any place of the header
    or of the body.
    """
    header = json.loads(seal_packet(Here(), SENDER, round=ROUND).header)
    outer = json.dumps(header | {field: "HERE"}).replace('"HERE"', nested)
    inner = json.dumps(header | {"body": {"release": "HERE"}}).replace('"HERE"', nested)
    for words in (outer, inner):
        assert opened_or_refused(signed(words.encode())) == "malformed"


@given(given_packet=packets(), version=st.integers().filter(lambda number: number != 1))
def test_a_message_of_another_version_is_refused_as_such(
    given_packet: tuple[Message, Packet], version: int
) -> None:
    """Whatever else a later version may say, so that the other side learns what is wrong."""
    _, packet = given_packet
    later = {"version": version, "kind": 3, "new": {}}
    assert (
        opened_or_refused(signed(json.dumps(later).encode(), packet.blobs)) == "version"
    )


@given(data=st.data())
def test_a_bit_that_flips_on_the_way_is_noticed(data: st.DataObject) -> None:
    """In the header, in the signature or in the bulk; cut off, too."""
    _, packet = data.draw(packets())
    parts = [packet.header, packet.signature.encode(), *map(bytes, packet.blobs)]
    index = data.draw(
        st.sampled_from([index for index, part in enumerate(parts) if part])
    )
    part = parts[index]
    bit = data.draw(st.integers(0, 8 * len(part) - 1))
    flipped = bytearray(part)
    flipped[bit // 8] ^= 1 << bit % 8
    parts[index] = bytes(flipped) if data.draw(st.booleans()) else part[: bit // 8]
    changed = Packet(parts[0], parts[1].decode("latin-1"), tuple(parts[2:]))
    assert opened_or_refused(changed) in CODES


@given(given_packet=packets(), data=st.data())
def test_bulk_that_was_added_dropped_or_swapped_is_refused(
    given_packet: tuple[Message, Packet], data: st.DataObject
) -> None:
    """The header holds the size and hash of each."""
    _, packet = given_packet
    blobs = data.draw(
        st.permutations(packet.blobs) | st.lists(st.binary(max_size=5), max_size=4)
    )
    opened = opened_or_refused(Packet(packet.header, packet.signature, tuple(blobs)))
    is_same = [*map(bytes, blobs)] == [*map(bytes, packet.blobs)]
    assert (opened == "malformed") != is_same


@given(given_packet=packets())
def test_a_signature_has_one_signer_and_one_spelling(
    given_packet: tuple[Message, Packet],
) -> None:
    """Another's signature and other spellings of the right one are refused."""
    _, packet = given_packet
    right = packet.signature
    spellings = [
        right.upper(),
        f" {right}",
        f"{right}\n",
        f"{right[:64]} {right[64:]}",
        right + "00",
        right[:-2],
        "",
    ]
    for wrong in {STRANGER.sign(packet.header), *spellings} - {right}:
        changed = Packet(packet.header, wrong, packet.blobs)
        assert opened_or_refused(changed) == "bad_signature"


def test_a_message_larger_than_any_is_refused_before_it_is_read() -> None:
    """By its header, and by the number of its blobs."""
    assert opened_or_refused(signed(b" " * (MAX_HEADER_BYTES + 1))) == "too_large"
    assert opened_or_refused(signed(b"{}", (b"",) * (MAX_BLOBS + 1))) == "too_large"


def test_a_kind_that_nobody_knows_and_bulk_that_a_kind_does_not_carry_are_refused() -> (
    None
):
    """However well they are signed."""
    header = json.loads(seal_packet(Hello(), SENDER, round=ROUND).header)
    unknown = signed(json.dumps(header | {"kind": "hallo"}).encode())
    with_bulk = seal_packet(Hello(), SENDER, round=ROUND, blobs=[b""])
    assert opened_or_refused(unknown) == opened_or_refused(with_bulk) == "malformed"


def test_a_message_that_nobody_would_accept_is_not_sealed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same limit holds for what is sent."""
    size = len(seal_packet(Hello(), SENDER, round=ROUND).header)
    monkeypatch.setattr(packet_module, "MAX_HEADER_BYTES", size)
    open_packet(seal_packet(Hello(), SENDER, round=ROUND))
    monkeypatch.setattr(packet_module, "MAX_HEADER_BYTES", size - 1)
    with pytest.raises(Refused, match=f"a message of {size} bytes"):
        seal_packet(Hello(), SENDER, round=ROUND)


# Records of any form

arrays = st.dictionaries(
    st.sampled_from(("00", "01", "02", "0", "x")),
    st.builds(
        Array,
        dtype=st.just("uint8"),
        shape=st.just((1,)),
        stype=st.sampled_from(("numpy.ndarray", "x")),
        data=st.binary(),
    ),
    max_size=3,
)
entries: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.sampled_from(("header", "signature", "blobs", "x")),
    st.binary(max_size=9)
    | st.text(max_size=300)
    | st.integers(0, 9)
    | st.lists(st.booleans(), max_size=2)
    | st.lists(st.binary(max_size=9), max_size=20),
)
records = st.dictionaries(
    st.sampled_from((HEADER, BULK, "other")),
    entries.map(ConfigRecord)
    | arrays.map(ArrayRecord)
    | st.just(MetricRecord({"a": 1.0})),
    max_size=3,
)


EMPTY: Any = {"header": b"", "signature": ""}


@given(parts=records)
@example(parts={HEADER: ConfigRecord(EMPTY), BULK: ArrayRecord({})})
@example(
    parts={
        HEADER: ConfigRecord(EMPTY | {"signature": "a" * 257}),
        BULK: ArrayRecord({}),
    }
)
@example(parts={HEADER: ConfigRecord(EMPTY | {"blobs": [b"x"]})})
@example(parts={HEADER: ConfigRecord(EMPTY | {"blobs": [True]})})
@example(parts={HEADER: ConfigRecord(EMPTY | {"blobs": [b""] * 999})})
def test_a_record_of_any_form_is_refused_or_holds_a_packet(
    parts: dict[str, Any],
) -> None:
    """What another app may send never raises anything but a refusal."""
    try:
        packet = from_record(RecordDict(parts))
    except Refused as error:
        assert error.code == "malformed"
    else:
        assert set(parts) in ({HEADER}, {HEADER, BULK})
        assert to_record(packet) is not None
        opened_or_refused(packet)


@given(
    blobs=st.lists(
        st.binary(max_size=100)
        | st.sampled_from((32, 80)).flatmap(lambda n: st.binary(min_size=n, max_size=n))
    )
)
def test_bulk_of_any_bytes_is_refused_or_has_its_shape(blobs: list[bytes]) -> None:
    """Sums and weights are made of the right number of bytes, or not at all."""
    for blob in blobs:
        try:
            assert vector_of(blob, 10).shape == (10,)
        except Refused as error:
            assert error.code == "shape_mismatch"
        try:
            assert np.isfinite(weights_of(blob, 4, 1)).all()
        except Refused as error:
            assert error.code in ("shape_mismatch", "malformed")
