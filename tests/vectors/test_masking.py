"""Two masked sessions, fixed: every byte that members send, and the refusal that each damaged one
must end in.

In the first everybody deals to everybody. In the second, small as it is, members deal and lock as
in a large cohort.

`python -m tests.vectors.test_masking` writes the file anew, after a change of the protocol that is
meant.
"""

from __future__ import annotations

import copy
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from ridgeway.common.masking.agreement import Agreement, Secrets, check_agreement
from ridgeway.common.masking.member import open_envelope, reveal
from ridgeway.common.masking.opening import Opening
from ridgeway.common.masking.reference_session import Step, Transcript
from ridgeway.common.masking.shares import _TABLE, BLOCK, Sealed, draw
from tests.support.making import refusing
from tests.support.masked_session import fixed_random, run_session, small_neighbourhoods

FILE = Path(__file__).with_name("masking.json")
SHORT, LONG = "counts", "sums"
SHARED, SENT = [1, 2, 3, 4], [1, 2, 4]
GONE: dict[int, Step] = {3: "send"}
LENGTH = 70_001
"""So long that the masks are made in several blocks, the last one not whole."""

LARGE = 7
NEIGHBOURHOOD = (3, 2)
"""Of seven members, each deals to three others, of whom two give a secret back."""

Facts = dict[str, Any]


def vectors(size: int, members: int = len(SHARED)) -> list[NDArray[np.int64]]:
    """What the members hold: member · (number − 3)³, which has both signs."""
    return [
        member * (np.arange(size, dtype=np.int64) - 3) ** 3
        for member in range(1, members + 1)
    ]


# Playing and writing down


def played() -> Facts:
    """The whole session: four members, of whom the third falls away after it has shared."""
    sizes = {SHORT: 5, LONG: LENGTH}
    runs = {
        sum_name: run_session(4, sum_name, vectors(size), GONE, seed="vector")
        for sum_name, size in sizes.items()
    }
    run = runs[SHORT]  # all that comes before the vectors is the same in both
    return {
        "agreement": run.agreement.model_dump(mode="json"),
        "id": run.agreement.id.hex(),
        "first": {
            "secrets": written_secrets(run.secrets[1]),
            "kept": run.dealt[1].kept.hex(),
            "envelopes": written(
                {member: run.dealt[member].envelopes[1] for member in SHARED[1:]}
            ),
            "held": written(run.held[1]),
        },
        "sent": SENT,
        **{sum_name: opened(run) for sum_name, run in runs.items()},
    }


def played_large() -> Facts:
    """Seven members, of whom the third falls away after it has shared. `random` is what the first
    one draws by.
    """
    with small_neighbourhoods(*NEIGHBOURHOOD):
        run = run_session(LARGE, SHORT, vectors(5, LARGE), GONE, seed="vector")
    random = fixed_random("vector shares 1")
    return {
        "sizes": [[most, *sizes] for most, sizes in _TABLE],
        "neighbourhood": list(NEIGHBOURHOOD),
        "agreement": run.agreement.model_dump(mode="json"),
        "id": run.agreement.id.hex(),
        "first": {
            "random": [random(16).hex() for _ in range(LARGE - 1)],
            "holders": sorted(run.holders[1]),
            "held": written(run.held[1]),
        },
        "holders": {member: sorted(holders) for member, holders in run.holders.items()},
        "sent": sorted(run.reveals),
        SHORT: {**opened(run), "locks": run.locks},
    }


def opened(run: Transcript) -> Facts:
    """One sum, from the sealed vectors to the total; long vectors by their digests."""
    total = run.total
    return {
        "sealed": {member: shown(vector.data) for member, vector in run.sealed.items()},
        "confirmations": run.confirmations,
        "reveals": {giver: written(parts) for giver, parts in run.reveals.items()},
        "total": total.tolist()
        if len(total) < BLOCK
        else shown(total.astype("<i8").data.cast("B")),
    }


def shown(content: memoryview) -> str:
    return (
        content.hex()
        if content.nbytes < BLOCK
        else f"sha256 {hashlib.sha256(content).hexdigest()}"
    )


def written_secrets(secrets: Secrets) -> Facts:
    keys = {
        "masks": [key.hex() for key in secrets.masks],
        "seeds": [seed.hex() for seed in secrets.seeds],
    }
    return {"nonce": secrets.nonce.hex(), "cipher": secrets.cipher.hex(), **keys}


def written(parts: Mapping[int, bytes]) -> dict[int, str]:
    return {member: part.hex() for member, part in parts.items()}


def as_stored(facts: Any) -> Any:
    """The facts as the file has them, where members are words."""
    return json.loads(json.dumps(facts))


def read(parts: dict[str, str]) -> dict[int, bytes]:
    return {int(member): bytes.fromhex(part) for member, part in parts.items()}


# Replaying from the file alone


def agreement_of(facts: Facts) -> Agreement:
    return Agreement.model_validate_json(json.dumps(facts["agreement"]))


def agree(facts: Facts) -> str:
    """The first member checks the agreement, against what it advertised and the roster that it has
    pinned.
    """
    true = agreement_of(stored()["session"])
    check_agreement(
        agreement_of(facts), true.advert(1), [advert.key for advert in true.adverts]
    )
    return agreement_of(facts).id.hex()


def hold(facts: Facts) -> dict[int, str]:
    """The first member opens its envelopes."""
    first = facts["first"]
    words = first["secrets"]
    keys = (
        tuple(map(bytes.fromhex, words["masks"])),
        tuple(map(bytes.fromhex, words["seeds"])),
    )
    secrets = Secrets(
        bytes.fromhex(words["nonce"]), bytes.fromhex(words["cipher"]), *keys
    )
    opened = {
        member: open_envelope(agreement_of(facts), secrets, 1, member, envelope)
        for member, envelope in read(first["envelopes"]).items()
    }
    return written({**opened, 1: bytes.fromhex(first["kept"])})


def choose(facts: Facts) -> list[int]:
    """The first member of a large cohort draws who holds its shares."""
    random = iter(facts["first"]["random"])
    others = [member for member in agreement_of(facts).indices if member != 1]
    return list(
        draw(others, facts["neighbourhood"][0], lambda _: bytes.fromhex(next(random)))
    )


def give(facts: Facts) -> dict[int, str]:
    """The first member gives out its shares."""
    agreement = agreement_of(facts)
    sum_facts = facts[SHORT]
    held = read(facts["first"]["held"])
    signed, locks = (
        {
            int(member): signature
            for member, signature in sum_facts.get(name, {}).items()
        }
        for name in ("confirmations", "locks")
    )
    return written(
        reveal(
            agreement,
            1,
            SHORT,
            held,
            agreement.indices,
            facts["sent"],
            signed,
            locks=locks,
        )
    )


def total(facts: Facts) -> list[int]:
    """The coordinator opens the sum."""
    sum_facts = facts[SHORT]
    agreement, sent = agreement_of(facts), facts["sent"]
    everybody = dict.fromkeys(map(str, agreement.indices), agreement.indices)
    holders = {
        int(member): some for member, some in facts.get("holders", everybody).items()
    }
    reveals = {int(giver): read(parts) for giver, parts in sum_facts["reveals"].items()}
    sealed = {
        member: Sealed.of_bytes(vector)
        for member, vector in read(sum_facts["sealed"]).items()
    }
    opening = Opening(agreement, SHORT, holders, len(sealed[sent[0]]))
    for member in sent:
        opening.add(member, sealed[member])
    return [int(number) for number in opening.total(reveals)]


STEPS: dict[str, tuple[Callable[[Facts], Any], tuple[str, ...]]] = {
    "agree": (agree, ("id",)),
    "hold": (hold, ("first", "held")),
    "choose": (choose, ("first", "holders")),
    "give": (give, (SHORT, "reveals", "1")),
    "total": (total, (SHORT, "total")),
}
"""What can be replayed, and where in the file its result stands."""
REPLAYS = {
    "session": ("agree", "hold", "give", "total"),
    "large": ("choose", "give", "total"),
}


# Damage


Damage = tuple[str, list[str | int], Any, str]
"""What is changed, where in the session, to what, and the code of the refusal."""


def damages(facts: Facts) -> list[Facts]:
    """All of it, by the step in which it is noticed."""
    return [
        *noticed("agree", of_agreement(facts)),
        *noticed("hold", of_envelopes(facts)),
        *noticed("give", of_sets(facts)),
        *noticed("total", of_sums(facts)),
    ]


def noticed(step: str, changes: list[Damage]) -> list[Facts]:
    return [
        {"what": what, "step": step, "path": path, "value": value, "code": code}
        for what, path, value, code in changes
    ]


def of_agreement(facts: Facts) -> list[Damage]:
    adverts = facts["agreement"]["adverts"]
    stranger = (
        run_session(3, seed="stranger").agreement.advert(1).model_dump(mode="json")
    )
    return [
        ("another round", ["agreement", "round"], "6" * 32, "bad_advert"),
        ("other terms", ["agreement", "terms"], "6" * 64, "bad_advert"),
        ("a lower threshold", ["agreement", "threshold"], 2, "wrong_threshold"),
        ("two members", ["agreement", "adverts"], adverts[:2], "cohort_too_small"),
        ("another order", ["agreement", "adverts"], adverts[::-1], "repeated_key"),
        ("a member twice", ["agreement", "adverts", 1], adverts[2], "repeated_key"),
        ("a stranger", ["agreement", "adverts", 3], stranger, "not_pinned"),
        ("a lot less", ["agreement", "lots"], [LONG], "malformed"),
        (
            "masks of before",
            ["agreement", "adverts", 1],
            without(adverts[1], "version"),
            "version",
        ),
        *(
            (f"another member's {name}", *change_of(adverts, 1, name), "bad_advert")
            for name in changeable(adverts[1])
        ),
        *(
            (f"its own {name}", *change_of(adverts, 0, name), "swapped_key")
            for name in changeable(adverts[0])
        ),
    ]


def of_envelopes(facts: Facts) -> list[Damage]:
    envelopes = facts["first"]["envelopes"]
    path: list[str | int] = ["first", "envelopes", "2"]
    return [
        *(
            (f"{name} envelope", path, changed, "bad_envelope")
            for name, changed in cut(envelopes["2"])
        ),
        ("the envelope of another", path, envelopes["3"], "bad_envelope"),
        ("another cohort", ["agreement", "cohort"], "6" * 64, "bad_envelope"),
    ]


def of_sets(facts: Facts) -> list[Damage]:
    signatures = facts[SHORT]["confirmations"]
    return [
        (
            "a changed signature",
            [SHORT, "confirmations", "2"],
            flipped(signatures["2"]),
            "not_confirmed",
        ),
        (
            "one signature twice",
            [SHORT, "confirmations", "2"],
            signatures["4"],
            "not_confirmed",
        ),
        (
            "signatures of another lot",
            [SHORT, "confirmations"],
            facts[LONG]["confirmations"],
            "not_confirmed",
        ),
        ("other survivors", ["sent"], SHARED, "not_confirmed"),
        ("survivors without itself", ["sent"], [2, 3, 4], "declared_dead"),
        ("too few survivors", ["sent"], [1, 2], "too_few_survivors"),
        ("a survivor that never was", ["sent"], [1, 2, 4, 5], "impossible_survivors"),
        (
            "a share that it never got",
            ["first", "held"],
            without(facts["first"]["held"], "3"),
            "missing_shares",
        ),
    ]


def of_sums(facts: Facts) -> list[Damage]:
    reveals, sealed = facts[SHORT]["reveals"], facts[SHORT]["sealed"]
    return [
        (
            "a changed share of a seed",
            [SHORT, "reveals", "2", "1"],
            flipped(reveals["2"]["1"]),
            "wrong_shares",
        ),
        (
            "a changed share of a mask key",
            [SHORT, "reveals", "2", "3"],
            flipped(reveals["2"]["3"]),
            "wrong_shares",
        ),
        (
            "a share beyond the field",
            [SHORT, "reveals", "4", "1"],
            "ff" * 33,
            "wrong_shares",
        ),
        (
            "shares of the other lot",
            [SHORT, "reveals", "1"],
            facts[LONG]["reveals"]["1"],
            "wrong_shares",
        ),
        (
            "a member that gives nothing",
            [SHORT, "reveals"],
            without(reveals, "4"),
            "too_few_shares",
        ),
        ("half a number", [SHORT, "sealed", "2"], sealed["2"][:-2], "shape_mismatch"),
        ("a number less", [SHORT, "sealed", "2"], sealed["2"][:-16], "shape_mismatch"),
    ]


def damages_of_large(facts: Facts) -> list[Facts]:
    sum_facts = facts[SHORT]
    locks = sum_facts["locks"]
    dealer = next(member for member in facts["first"]["held"] if member != "3")
    bare = dict(list(locks.items())[:5])  # more than two thirds of seven, and no more
    changes: list[Damage] = [
        ("a lock less", [SHORT, "locks"], without(bare, "2"), "not_locked"),
        (
            "a changed lock",
            [SHORT, "locks"],
            {**bare, "2": flipped(bare["2"])},
            "not_locked",
        ),
        ("one lock twice", [SHORT, "locks"], {**bare, "2": bare["1"]}, "not_locked"),
        (
            "a signature in a lock's place",
            [SHORT, "locks"],
            {**bare, "2": sum_facts["confirmations"]["2"]},
            "not_locked",
        ),
        (
            "no signature of one that dealt",
            [SHORT],
            {
                **sum_facts,
                "confirmations": without(sum_facts["confirmations"], dealer),
                "locks": without(locks, dealer),
            },
            "not_confirmed",
        ),
        ("other survivors", ["sent"], [*facts["sent"], 3], "not_confirmed"),
    ]
    return noticed("give", changes)


def changeable(advert: Facts) -> list[str]:
    """All fields but the key and the version, which say whose they are and how to read them."""
    return [name for name in advert if name not in ("key", "version")]


def change_of(
    adverts: list[Facts], index: int, name: str
) -> tuple[list[str | int], Any]:
    value = adverts[index][name]
    changed = (
        flipped(value) if isinstance(value, str) else [flipped(value[0]), *value[1:]]
    )
    return ["agreement", "adverts", index, name], changed


def flipped(digits: str) -> str:
    """Another last bit."""
    return digits[:-1] + f"{int(digits[-1], 16) ^ 1:x}"


def cut(digits: str) -> list[tuple[str, str]]:
    return [
        ("a changed", flipped(digits)),
        ("a shortened", digits[:-2]),
        ("a longer", digits + "00"),
        ("an empty", ""),
    ]


def without(facts: Facts, key: str) -> Facts:
    return {name: value for name, value in facts.items() if name != key}


def altered(facts: Facts, path: list[str | int], value: Any) -> Facts:
    changed = copy.deepcopy(facts)
    target: Any = changed
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = value
    return changed


# The file


def stored() -> Facts:
    facts: Facts = json.loads(FILE.read_text(encoding="utf-8"))
    return facts


def content() -> Facts:
    session = as_stored(played())
    large = as_stored(played_large())
    return {
        "session": session,
        "damaged": damages(session),
        "large": large,
        "damaged_large": damages_of_large(large),
    }


def write() -> None:
    words = json.dumps(content(), indent=1, ensure_ascii=False)
    FILE.write_text(f"{words}\n", encoding="utf-8")


def test_every_byte_of_both_sessions_is_fixed() -> None:
    """Adverts, agreement, envelopes, sealed vectors, confirmations, locks, reveals, totals: known
    secrets give known bytes. So are the sizes of neighbourhoods, who holds whose shares, and what
    the sessions are damaged by.
    """
    now = content()
    for part, facts in stored().items():
        assert now.pop(part) == facts, part
    assert not now


def test_holders_are_those_with_the_least_random_numbers() -> None:
    """By other means than the code: each other member draws sixteen bytes, in the order of
    members.
    """
    first = stored()["large"]["first"]
    drawn = sorted(zip(first["random"], range(2, LARGE + 1), strict=True))[
        : NEIGHBOURHOOD[0]
    ]
    assert sorted(member for _, member in drawn) == first["holders"]


def mask(session: Facts, secret: bytes, purpose: str, size: int) -> list[int]:
    """HKDF by two HMACs, and blocks of a counter under bare AES."""
    extracted = hmac.digest(bytes.fromhex(session["id"]), secret, "sha256")
    key = hmac.digest(
        extracted, f"ridgeway masking 2 {purpose}".encode() + b"\1", "sha256"
    )[:16]
    cipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    stream = b"".join(
        cipher.update(count.to_bytes(16, "big")) for count in range(size // 2 + 1)
    )
    return [
        int.from_bytes(stream[8 * number :][:8], "little") for number in range(size)
    ]


def test_a_sealed_vector_is_what_the_protocol_says() -> None:
    """By other means than the code: the first member's own mask and, as it is the first, those of
    all pairs, added.
    """
    session, size = stored()["session"], 5
    secrets = session["first"]["secrets"]
    index = session["agreement"]["lots"].index(SHORT)
    masks = [
        mask(
            session, bytes.fromhex(secrets["seeds"][index]), f"own mask {SHORT} 1", size
        )
    ]
    private = X25519PrivateKey.from_private_bytes(
        bytes.fromhex(secrets["masks"][index])
    )
    for other in SHARED[1:]:
        public = bytes.fromhex(
            session["agreement"]["adverts"][other - 1]["masks"][index]
        )
        agreed = private.exchange(X25519PublicKey.from_public_bytes(public))
        masks.append(mask(session, agreed, f"mask in pairs {SHORT} 1 {other}", size))
    numbers = [
        sum(numbers) % 2**64
        for numbers in zip(vectors(size)[0].tolist(), *masks, strict=True)
    ]
    assert (
        session[SHORT]["sealed"]["1"]
        == b"".join(number.to_bytes(8, "little") for number in numbers).hex()
    )


def entered(session: str) -> AbstractContextManager[None]:
    """Where neighbourhoods have the size of the session's, which is that of no true cohort."""
    return small_neighbourhoods(*NEIGHBOURHOOD) if session == "large" else nullcontext()


@pytest.mark.parametrize(
    ("session", "step"),
    [(name, step) for name, steps in REPLAYS.items() for step in steps],
)
def test_a_session_can_be_replayed_from_the_file_alone(session: str, step: str) -> None:
    """Whoever reads the file, in whatever language, has all that a member or the coordinator
    needs.
    """
    facts = stored()[session]
    replay, path = STEPS[step]
    with entered(session):
        assert as_stored(replay(facts)) == reduce(getitem, path, facts)


def all_damages() -> list[Any]:
    facts = stored()
    kinds = {"session": facts["damaged"], "large": facts["damaged_large"]}
    return [
        pytest.param(name, damage, id=f"{name} {damage['what']}")
        for name, changes in kinds.items()
        for damage in changes
    ]


@pytest.mark.parametrize(("session", "damage"), all_damages())
def test_each_damage_is_refused_by_its_code(session: str, damage: Facts) -> None:
    """In the step where it must be noticed, before anything secret is given out."""
    changed = altered(stored()[session], damage["path"], damage["value"])
    with entered(session), refusing(damage["code"]):
        STEPS[damage["step"]][0](changed)


if __name__ == "__main__":
    write()
