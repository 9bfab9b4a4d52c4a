"""Which release is current, how it became so, and how to go back."""

import errno
import multiprocessing
import os
import pkgutil
import signal
from pathlib import Path

import pytest

from mpdeploy.bundle import store as store_module
from mpdeploy.bundle.check import check_bundle, digest_text
from mpdeploy.bundle.pack import Packing, pack
from mpdeploy.bundle.store import Action, Store
from mpdeploy.bundle.triton import Serving
from mpdeploy.errors import UsageError, VerificationFailed


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


@pytest.fixture
def release(export, tmp_path):
    """Return a function that packs a version."""

    def make(version):
        target = tmp_path / f"bundle-{version}"
        pack(export, target, Packing("net", version=version))
        return target

    return make


def promote(store, bundle):
    return store.promote(bundle, who="ann", why="because")


def test_a_promoted_version_is_current_and_whole(store, release):
    entry = store.promote(release("1"), who="ann", why="first release")
    assert (entry.action, entry.version, entry.previous) == (Action.PROMOTE, "1", "")
    assert (entry.who, entry.why) == ("ann", "first release")
    assert store.current() == "1"
    assert check_bundle(store.folder / "current").version == "1"
    assert store.history().entries == (entry,)


def test_back_and_forth(store, release):
    bundles = {version: release(version) for version in ("1", "2", "3")}
    for bundle in bundles.values():
        promote(store, bundle)
    assert store.rollback(who="bob", why="worse").version == "2"
    assert store.rollback(who="bob", why="worse still").version == "1"
    with pytest.raises(UsageError, match="no release before"):
        store.rollback(who="bob", why="?")
    assert promote(store, bundles["3"]).previous == "1"  # packed anew it would be another bundle: it has another date
    assert store.rollback(who="bob", why="again").version == "1"
    assert store.rollback(who="bob", why="that one", to="2").version == "2"
    assert store.current() == "2"
    assert [entry.version for entry in store.history().entries] == ["1", "2", "3", "2", "1", "3", "1", "2"]


def test_a_release_that_did_not_pass_is_refused(export, store, release):
    promote(store, release("1"))
    (export / "drift.fp16.json").unlink()
    with pytest.raises(VerificationFailed, match=r"version 2 may not be shipped: .*no drift report"):
        promote(store, release("2"))
    assert store.current() == "1"
    assert len(store.history().entries) == 1
    assert not (store.folder / "versions" / "2").exists()


def test_a_changed_bundle_is_refused(store, release):
    bundle = release("1")
    (bundle / "models" / "model.onnx").write_bytes(b"other")
    with pytest.raises(VerificationFailed, match=r"model\.onnx differs"):
        promote(store, bundle)
    assert store.current() == ""


def test_a_version_that_rotted_is_not_gone_back_to(store, release):
    promote(store, release("1"))
    promote(store, release("2"))
    (store.folder / "versions" / "1" / "models" / "model.onnx").write_bytes(b"rot")
    with pytest.raises(VerificationFailed, match="differs"):
        store.rollback(who="bob", why="worse")
    assert store.current() == "2"


def test_one_version_is_one_bundle(store, release, export, tmp_path):
    promote(store, release("1"))
    with pytest.raises(UsageError, match="is the current one already"):
        promote(store, release("1"))
    promote(store, release("2"))
    other = tmp_path / "other"
    pack(export, other, Packing("other", version="1"))
    with pytest.raises(UsageError, match=r"another bundle as version 1.*--version"):
        promote(store, other)


def test_only_what_was_promoted_can_be_gone_back_to(store, release):
    promote(store, release("1"))
    for version in ("9", "1"):
        with pytest.raises(UsageError, match=r"cannot go back to version .*there are 1"):
            store.rollback(who="bob", why="?", to=version)


def test_a_store_with_a_key_takes_signed_bundles_only(export, tmp_path, release, keys):
    private, public = keys
    store = Store(tmp_path / "store", key=public)
    with pytest.raises(VerificationFailed, match="not signed"):
        promote(store, release("1"))
    pack(export, tmp_path / "signed", Packing("net", version="1", key=private))
    assert promote(store, tmp_path / "signed").version == "1"


def test_a_link_that_cannot_be_made_leaves_history_as_it_was(store, release, monkeypatch):
    promote(store, release("1"))
    bundle = release("2")

    def refuse(*_, **__):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    with pytest.raises(UsageError, match="current version cannot be changed"):
        promote(store, bundle)
    assert store.current() == "1"
    assert len(store.history().entries) == 1


def _watch(link, stop, torn):
    while not stop.is_set():
        try:
            if not (Path(os.path.realpath(link)) / "manifest.json").is_file():
                torn.value += 1
        except OSError:
            torn.value += 1


def test_readers_never_see_a_moment_without_a_current_version(store, release):
    promote(store, release("1"))
    promote(store, release("2"))
    fork = multiprocessing.get_context("fork")
    stop, torn = fork.Event(), fork.Value("i", 0)
    watcher = fork.Process(target=_watch, args=(store.folder / "current", stop, torn))
    watcher.start()
    for _ in range(10):
        store.rollback(who="bob", why="back", to="1")
        store.rollback(who="bob", why="forth", to="2")
    stop.set()
    watcher.join(10)
    assert watcher.exitcode == 0
    assert torn.value == 0


@pytest.mark.parametrize("version", ["../../../outside", "..", ".", "/outside", ""])
def test_a_forged_version_is_no_path(store, release, tmp_path, version):
    promote(store, release("1"))
    bundle = release("2")
    manifest = bundle / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"version": "2"', f'"version": "{version}"'))
    (bundle / "manifest.sha256").write_bytes(digest_text(manifest.read_bytes(), None))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(VerificationFailed, match="cannot be the version"):
        promote(store, bundle)
    assert sorted(tmp_path.rglob("*")) == before
    for wrong in filter(None, [version]):
        with pytest.raises(UsageError, match="cannot go back"):
            store.rollback(who="bob", why="?", to=wrong)


def test_a_store_that_is_not_there_is_not_made_by_going_back(store):
    with pytest.raises(UsageError, match="no such store"):
        store.rollback(who="bob", why="worse")
    assert not store.folder.exists()


def test_the_history_wants_who_and_why(store, release):
    bundle = release("1")
    for who, why in (("", "because"), ("ann", "  ")):
        with pytest.raises(UsageError, match="is empty"):
            store.promote(bundle, who=who, why=why)


_MOMENTS = [
    ("mpdeploy.bundle.store.shutil.copyfile", True),
    ("mpdeploy.bundle.store.records.save", False),
    ("mpdeploy.bundle.store.records.save", True),
    ("pathlib.Path.symlink_to", True),
    ("pathlib.Path.replace", False),
    ("pathlib.Path.replace", True),
]


@pytest.mark.parametrize("action", ["promote", "rollback"])
@pytest.mark.parametrize(("moment", "after"), _MOMENTS)
def test_a_kill_at_any_moment_leaves_a_store_that_works_on(store, release, action, moment, after):
    for version in ("1", "2"):
        promote(store, release(version))
    third = release("3")
    process = multiprocessing.get_context("fork").Process(target=_killed, args=(store, third, action, moment, after))
    process.start()
    process.join(30)
    assert process.exitcode == (0 if action == "rollback" and "copyfile" in moment else -signal.SIGKILL)
    now = store.current()
    assert now in {"2", "3" if action == "promote" else "1"}
    assert check_bundle(store.folder / "current").version == now
    assert store.history().entries[-1].version == now
    if now == "2":
        assert promote(store, third).previous == "2"
    assert store.history().entries[-1].version == store.current()
    assert not [path.name for path in (store.folder / "versions").iterdir() if path.name.startswith(".")]
    assert store.rollback(who="bob", why="back", to="1" if store.current() != "1" else "2").previous


def _killed(store, bundle, action, moment, after):
    home, _, name = moment.rpartition(".")
    owner = Path if home == "pathlib.Path" else pkgutil.resolve_name(home)
    real = getattr(owner, name)

    def kill(*arguments, **words):
        if after:
            real(*arguments, **words)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, kill)
    if action == "promote":
        promote(store, bundle)
    else:
        store.rollback(who="bob", why="worse")


def _promote_one(folder, bundle, start):
    start.wait()
    promote(Store(folder), bundle)


def test_promotions_at_once_stand_in_the_history_one_after_the_other(store, release):
    fork = multiprocessing.get_context("fork")
    bundles = [release(str(number)) for number in range(4)]
    start = fork.Barrier(len(bundles))
    processes = [fork.Process(target=_promote_one, args=(store.folder, bundle, start)) for bundle in bundles]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    entries = store.history().entries
    assert sorted(entry.version for entry in entries) == ["0", "1", "2", "3"]
    assert [entry.previous for entry in entries] == ["", *(entry.version for entry in entries[:-1])]
    assert entries[-1].version == store.current()


def test_files_that_share_their_bytes_in_a_bundle_share_them_in_the_store(export, store, tmp_path):
    pytest.importorskip("tritonclient", reason="tritonclient is not installed")
    pack(export, tmp_path / "bundle", Packing("net", version="1", serving=Serving()))
    promote(store, tmp_path / "bundle")
    home = store.folder / "current"
    assert (home / "triton/model_onnx/1/model.onnx").samefile(home / "models/model.onnx")
    assert not (home / "models/model.onnx").samefile(tmp_path / "bundle/models/model.onnx")


def test_a_full_disk_is_told_and_leaves_the_store_as_it_was(release, store, monkeypatch):
    promote(store, release("1"))

    def full(source, target):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    bundle = release("2")
    monkeypatch.setattr("mpdeploy.bundle.store.shutil.copyfile", full)
    with pytest.raises(UsageError, match=r"No space left on device .*free some space"):
        promote(store, bundle)
    assert store.current() == "1"
    assert [path.name for path in (store.folder / "versions").iterdir()] == ["1"]


def test_a_history_that_cannot_be_read_says_what_to_do(release, store):
    promote(store, release("1"))
    (store.folder / "history.json").write_text("{")
    with pytest.raises(UsageError, match=r"history cannot be read.*from a backup"):
        promote(store, release("2"))
    (store.folder / "history.json").unlink()
    assert promote(store, release("3")).previous == "1"


@pytest.mark.parametrize("other", ["failed", "older"])
def test_a_bundle_exchanged_between_check_and_copy_is_not_promoted(
    export, store, release, tmp_path, monkeypatch, other
):
    """The copy is judged, not what was there before (E5)."""
    good = release("2")
    if other == "failed":
        (export / "drift.fp16.json").unlink()
    evil = tmp_path / "evil"
    manifest = pack(export, evil, Packing("net", version="2" if other == "failed" else "1"))
    assert manifest.passed is (other == "older")
    copy = store_module._copy

    def exchanged(bundle, folder):
        bundle.rename(tmp_path / "was")
        evil.rename(bundle)
        copy(bundle, folder)

    monkeypatch.setattr(store_module, "_copy", exchanged)
    with pytest.raises(VerificationFailed) as caught:
        store.promote(good, who="w", why="y")
    assert ".mpdeploy" not in str(caught.value)
    assert store.current() == ""
    assert not list((store.folder / "versions").iterdir())


def test_a_store_remembers_that_it_demands_a_key(export, tmp_path, keys):
    private, public = keys
    for version, key in (("1", private), ("2", None), ("3", private)):
        pack(export, tmp_path / version, Packing("net", version=version, key=key))
    folder = tmp_path / "store"
    Store(folder, key=public).promote(tmp_path / "1", who="w", why="y")
    with pytest.raises(VerificationFailed, match="not signed"):
        Store(folder).promote(tmp_path / "2", who="w", why="the key was left out")
    Store(folder).promote(tmp_path / "3", who="w", why="y")
    assert Store(folder).rollback(who="w", why="y").version == "1"
    other = tmp_path / "other.pub"
    other.write_bytes(public.read_bytes() + b"\n")
    with pytest.raises(UsageError, match="demands another key"):
        Store(folder, key=other).promote(tmp_path / "3", who="w", why="y")


def test_a_store_that_learned_a_key_goes_back_to_no_unsigned_version(export, tmp_path, keys):
    private, public = keys
    pack(export, tmp_path / "1", Packing("net", version="1"))
    pack(export, tmp_path / "2", Packing("net", version="2", key=private))
    folder = tmp_path / "store"
    Store(folder).promote(tmp_path / "1", who="w", why="y")
    Store(folder, key=public).promote(tmp_path / "2", who="w", why="y")
    with pytest.raises(VerificationFailed, match="not signed"):
        Store(folder).rollback(who="w", why="y")
    assert Store(folder).current() == "2"
