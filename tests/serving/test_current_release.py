"""The release in use: which folder it comes from, when a new one takes its place, and what is
refused.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

from ridgeway.common.base.errors import InputError, ReleaseError
from ridgeway.common.routing.release import (
    MANIFEST,
    ROUTER,
    CurrentRelease,
    amend_release,
    find_release,
)
from ridgeway.common.routing.router import Router
from ridgeway.serving.routing_service import ReleaseSource
from tests.support.making import fixed_identity
from tests.support.serving import release_of

DOMAINS = ["code", "law"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    release_of(tmp_path / "release", DOMAINS)
    return tmp_path / "release"


def test_a_release_is_found_by_its_folder_or_by_its_coordinator(
    folder: Path, tmp_path: Path
) -> None:
    """The folder itself, a coordinator's folder, or its folder of releases: the newest of them."""
    releases = tmp_path / "co" / "releases"
    releases.mkdir(parents=True)
    shutil.copytree(folder, releases / "0001")
    (releases / "latest").symlink_to("0001")
    assert find_release(folder) == folder
    assert find_release(tmp_path / "co").resolve() == (releases / "0001").resolve()
    assert find_release(releases).resolve() == (releases / "0001").resolve()
    with pytest.raises(ReleaseError, match="contains no release"):
        find_release(tmp_path)


def test_a_new_release_takes_the_place_of_the_old(folder: Path) -> None:
    """Whoever holds the old one goes on with it; whoever asks next gets the new one."""
    current = CurrentRelease(ReleaseSource(folder))
    before = current.served
    assert not current.refresh()
    newest = release_of(folder, [*DOMAINS, "medicine"])
    assert current.refresh()
    assert current.served.id == newest != before.id
    assert before.router.route("still here").best in DOMAINS
    assert current.refused is None


def test_a_link_to_another_release_is_a_new_release(
    folder: Path, tmp_path: Path
) -> None:
    """A coordinator moves releases/latest from one folder to the next."""
    newest = release_of(tmp_path / "next", ["code", "law", "medicine"])
    link = tmp_path / "latest"
    link.symlink_to("release")
    current = CurrentRelease(ReleaseSource(link))
    (tmp_path / "new").symlink_to("next")
    os.replace(tmp_path / "new", link)  # noqa: PTH105  # over the link itself
    assert current.refresh()
    assert current.served.id == newest
    assert current.served.folder == (tmp_path / "next").resolve()


@pytest.mark.parametrize("name", [MANIFEST, ROUTER, "tokenizer.json"])
def test_a_damaged_release_is_refused_and_the_old_one_goes_on(
    folder: Path, name: str
) -> None:
    """One byte is enough, in any of the files, and it is said once, not every second; the next good
    one is taken.
    """
    current = CurrentRelease(ReleaseSource(folder))
    before = current.served
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    assert current.refresh()
    assert current.served is before
    assert current.refused is not None
    assert not current.refresh()
    shutil.rmtree(folder)
    newest = release_of(folder, DOMAINS, strength=50)
    assert current.refresh()
    assert current.served.id == newest and not current.refused


def test_a_folder_in_the_middle_of_being_replaced_is_waited_for(
    folder: Path, tmp_path: Path
) -> None:
    """Between two renames there is nothing: that is no bad release."""
    current = CurrentRelease(ReleaseSource(folder))
    folder.rename(tmp_path / "aside")
    assert not current.refresh()
    assert current.refused is None
    (tmp_path / "aside").rename(folder)
    assert not current.refresh() or current.refused is None


def test_a_key_that_is_given_must_have_signed_the_first_release_too(
    folder: Path,
) -> None:
    """The operator's word comes before the release's own."""
    signer = fixed_identity().public
    assert ReleaseSource(folder, signer).open().release.signer == signer
    with pytest.raises(ReleaseError, match="not by the key you trust"):
        CurrentRelease(ReleaseSource(folder, fixed_identity(9).public))


def test_the_card_shows_what_was_signed_and_not_the_signature(folder: Path) -> None:
    """Everything of the manifest, and who signed it."""
    served = CurrentRelease(ReleaseSource(folder)).served
    card = served.card()
    assert card["release"] == served.id
    assert card["signer"] == fixed_identity().public
    assert card["domains"] == DOMAINS
    assert "signature" not in card["manifest"]
    assert card["manifest"]["masses"] == card["masses"]


@pytest.mark.parametrize("name", ["release", "rel", "a", "signed"])
def test_a_refusal_is_a_sentence_without_a_path(
    folder: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the folder is called, and however it was named; a change is refused, and so is
    another signer.
    """
    folder.rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").rename(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    current = CurrentRelease(ReleaseSource(Path(name)))
    with (tmp_path / name / ROUTER).open("ab") as file:
        file.write(b"!")
    assert current.refresh()
    assert (
        current.refused
        == f"{ROUTER} was changed after the release was signed; download the release again"
    )
    shutil.rmtree(tmp_path / name)
    release_of(tmp_path / name, DOMAINS, fixed_identity(9))
    assert current.refresh()
    assert str(current.refused).startswith("the new release is signed by ")


def test_what_a_release_was_refused_for_may_change(folder: Path) -> None:
    """When experts are added for a domain that had none, the release that waited for them is
    taken.
    """
    served = set(DOMAINS)

    def check(router: Router) -> None:
        if not served >= set(router.domains):
            raise InputError("nobody serves medicine")

    current = CurrentRelease(ReleaseSource(folder, check=check))
    newest = release_of(folder, [*DOMAINS, "medicine"])
    assert current.refresh()
    assert str(current.refused) == "nobody serves medicine"
    with pytest.raises(InputError, match="nobody serves medicine"):
        CurrentRelease(ReleaseSource(folder, check=check))
    served.add("medicine")
    assert not current.refresh()
    current.look_again()
    assert current.refresh()
    assert (current.served.id, current.refused) == (newest, None)


def test_a_release_that_cannot_be_read_just_now_is_tried_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many open files is no fault of the release's."""
    current = CurrentRelease(ReleaseSource(folder))
    newest = release_of(folder, [*DOMAINS, "medicine"])
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", Mock(side_effect=OSError(24, "too many")))
        assert current.refresh()
    assert current.refresh()
    assert current.served.id == newest


# It does not go back


@pytest.mark.parametrize("number", [None, 1, 3])
def test_a_release_with_a_lower_number_or_none_is_refused(
    folder: Path, number: int | None
) -> None:
    """A higher number is taken, over one that was refused too; and then the lower one is refused
    again.
    """
    shutil.rmtree(folder)
    release_of(folder, DOMAINS, number=4)
    current = CurrentRelease(ReleaseSource(folder))
    release_of(folder, DOMAINS, strength=50, number=number)
    assert current.refresh()
    assert str(current.refused).startswith(
        f"release {number or 0} is older than release 4, which is in use"
    )
    assert current.served.number == 4
    newest = release_of(folder, DOMAINS, strength=50, number=5)
    assert current.refresh()
    assert (current.served.id, current.refused) == (newest, None)
    release_of(folder, DOMAINS, number=4)
    assert current.refresh()
    assert current.served.id == newest


@pytest.mark.parametrize("number", [None, 4])
def test_a_release_that_was_amended_is_taken_and_its_earlier_state_is_not(
    folder: Path, number: int | None
) -> None:
    """Calibrating keeps the number; a process that has only met the amended one refuses the one
    before too.
    """
    shutil.rmtree(folder)
    release_of(folder, DOMAINS, number=number)
    before = (folder / MANIFEST).read_bytes()
    met_both = CurrentRelease(ReleaseSource(folder))
    amended = amend_release(folder, {"evaluation": None}, fixed_identity())
    assert met_both.refresh()
    assert met_both.served.id == amended
    met_one = CurrentRelease(ReleaseSource(folder))
    (folder / MANIFEST).write_bytes(before)
    for current in (met_both, met_one):
        assert current.refresh()
        assert current.served.id == amended
        assert "it is older than the one in use" in str(current.refused)


def test_a_release_without_a_number_is_not_taken_twice(
    folder: Path, tmp_path: Path
) -> None:
    """Whoever keeps an old copy cannot bring it back while the service runs."""
    shutil.copytree(folder, tmp_path / "old")
    current = CurrentRelease(ReleaseSource(folder))
    for strength in (50, 60):
        newest = release_of(folder, DOMAINS, strength=strength)
        assert current.refresh()
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "old", folder)
    assert current.refresh()
    assert current.served.id == newest
    assert "was replaced before" in str(current.refused)
