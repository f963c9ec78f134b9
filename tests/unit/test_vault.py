"""Where tokens are kept, with keyrings that work and keyrings that do not."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import keyring
import keyring.backends.fail
import keyring.backends.null
import pytest

from oaken_app import vault
from oaken_app.vault import Vault
from tests import keyrings

BAD = [
    (keyrings.Locked, "does not work (KeyringLocked)"),
    (keyrings.Dropping, "does not keep what is written"),
    (keyrings.Mangling, "does not keep what is written"),
    (keyrings.Hanging, "has not answered within 1 s"),
    (keyrings.Broken, "does not work (RuntimeError)"),
    (keyring.backends.null.Keyring, "does not keep what is written"),
    (keyring.backends.fail.Keyring, "does not work (NoKeyringError)"),
]


@pytest.fixture
def use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TEST_KEYRING", str(tmp_path / "ring"))
    monkeypatch.setattr(vault, "PATIENCE_SECONDS", 1.0)
    before = keyring.get_keyring()
    keyring.set_keyring(keyrings.InFile())
    yield
    keyring.set_keyring(before)


@pytest.mark.usefixtures("use")
def test_a_keyring_that_works_keeps_the_token_and_no_file_does(tmp_path: Path) -> None:
    kept = Vault("name", tmp_path / "folder" / "file")
    assert kept.find() is None
    assert kept.keep("oak_1") == ("the system's keyring", None)
    assert keyring.get_password("oaken-swarm", "name") == "oak_1"
    assert not (tmp_path / "folder").exists()
    assert kept.find() == "oak_1"
    assert Vault("other", tmp_path / "other").find() is None
    assert (kept.forget(), kept.forget(), kept.find()) == (True, False, None)


@pytest.mark.usefixtures("use")
@pytest.mark.parametrize(("backend", "why"), BAD)
def test_where_no_keyring_works_an_owner_only_file_does(tmp_path: Path, backend: type, why: str) -> None:
    keyring.set_keyring(backend())
    file = tmp_path / "folder" / "file"
    kept = Vault("name", file).keep("oak_1")
    assert (kept.place, why in str(kept.why), "oak_1" in str(kept)) == (str(file), True, False)
    assert file.read_text() == "oak_1\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert [path.name for path in file.parent.iterdir()] == ["file"]
    assert Vault("name", file).find() == "oak_1"
    assert Vault("name", file).forget()
    assert not file.exists()


@pytest.mark.usefixtures("use")
def test_a_keyring_that_works_again_takes_the_place_of_the_file(tmp_path: Path) -> None:
    kept = Vault("name", tmp_path / "file")
    keyring.set_keyring(keyrings.Locked())
    kept.keep("oak_1")
    keyring.set_keyring(keyrings.InFile())
    assert kept.find() == "oak_1"
    kept.keep("oak_2")
    assert not (tmp_path / "file").exists()
    assert kept.find() == "oak_2"


@pytest.mark.usefixtures("use")
def test_a_file_is_replaced_whole_whatever_its_mode_was(tmp_path: Path) -> None:
    keyring.set_keyring(keyrings.Locked())
    (tmp_path / "file").write_text("old and much longer than the new one")
    (tmp_path / "file").chmod(0o644)
    Vault("name", tmp_path / "file").keep("oak_1")
    assert (tmp_path / "file").read_text() == "oak_1\n"
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


@pytest.mark.usefixtures("use")
def test_a_file_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    keyring.set_keyring(keyrings.Locked())
    (tmp_path / "folder").write_text("in the way")
    with pytest.raises(OSError, match="folder"):
        Vault("name", tmp_path / "folder" / "file").keep("oak_1")


def test_each_server_has_a_place_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    urls = ["http://a:1", "http://a-1", "https://a:1", "http://a/1", "http://" + "x" * 300, "http://" + "x" * 301]
    files = {vault.of_server(url)._file for url in urls}
    assert len(files) == len(urls)
    assert {file.parent for file in files} == {vault.of_server("http://b")._file.parent}
