"""A save that fails or is cut off at any single operation: never no valid checkpoint once there was one."""

import copy
import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

from psdrl.run import checkpoint
from psdrl.run.checkpoint import Store
from psdrl.run.store.files import Disk
from psdrl.run.store.segments import MERGED
from psdrl.run.store.settings import read_config, write_config
from tests.helpers import small_config
from tests.storage import Crash, FaultyDisk, ForgetfulDisk, SmallAgent, frozen, whole_state

KINDS = ("episodes", "frames")
CAPACITY = 500
EXTRA = ({"position": 1}, {"position": 2})


class Scene:
    """A run with checkpoints, about to save another: `old` and `new` are what may be found afterwards."""

    def __init__(self, kind: str, folder: Path, saves: int) -> None:
        self.kind, self.before = kind, folder
        self.agent = SmallAgent(kind, CAPACITY)
        store = Store(folder)
        for _ in range(saves):
            self.agent.play(30)
            store.save(self.agent, EXTRA[0])
        store.wait()
        self.path = store.saved.path if store.saved else None
        self.old = whole_state(self.agent)
        self.later = copy.deepcopy(self.agent)
        self.later.play(30)
        self.new = whole_state(self.later)

    def save(self, folder: Path, disk: Disk) -> tuple[Store, SmallAgent, list[str]]:
        """Copy the run, resume it and save it once more on this disk."""
        shutil.copytree(self.before, folder)
        said: list[str] = []
        store = Store(folder, warn=said.append, disk=disk)
        agent = copy.deepcopy(self.agent)
        if self.path:
            store.resume(folder / self.path.name, agent.replay)
        agent.play(30)
        assert whole_state(agent) == self.new
        store.save(agent, EXTRA[1])
        return store, agent, said

    def found(self, folder: Path) -> tuple[Any, Any]:
        """What a new process finds, if anything."""
        path = checkpoint.find(folder).newest
        if path is None:
            return None, None
        fresh = SmallAgent(self.kind, CAPACITY, seed=5)
        extra = checkpoint.restore(path, fresh)
        return whole_state(fresh), extra


@pytest.fixture(scope="module", params=[(kind, saves) for kind in KINDS for saves in (MERGED - 1, MERGED)], ids=str)
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """So many saves that the next one merges segments, or removes those that were merged."""
    return Scene(request.param[0], tmp_path_factory.mktemp("run") / "run", request.param[1])


@pytest.fixture(scope="module")
def operations(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The operations of an undisturbed save."""
    disk = FaultyDisk()
    store, _, said = scene.save(tmp_path_factory.mktemp("plain") / "run", disk)
    store.wait()
    assert not said
    assert {name.split()[0] for name in disk.done} == {"open", "write", "fsync", "mkdir", "rename", "unlink", "rmdir"}
    new, removed = (sum(name.startswith(f"{what} segment") for name in disk.done) for what in ("open", "unlink"))
    assert (new, removed) in ((2, 1), (1, MERGED - 1)), "one merges, the next one removes what was merged"
    return disk.done


def check_one_of_both(scene: Scene, folder: Path, where: str) -> bool:
    """The directory holds the old state or the new one, exactly; returns whether it is the new one."""
    state, extra = scene.found(folder)
    assert state is not None, f"no valid checkpoint after {where}"
    assert (state, extra) in ((scene.old, EXTRA[0]), (scene.new, EXTRA[1])), f"neither state after {where}"
    return extra == EXTRA[1]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_at_every_operation(scene: Scene, operations: list[str], after: bool, tmp_path: Path) -> None:
    outcomes = []
    for at, name in enumerate(operations):
        folder = tmp_path / str(at)
        store, _, _ = scene.save(folder, FaultyDisk(at, Crash, after))
        with pytest.raises(Crash):
            store.wait()
        outcomes.append(check_one_of_both(scene, folder, f"operation {at}, {name}"))
    assert outcomes == sorted(outcomes), "old before the rename, new after it"
    assert len(set(outcomes)) == 2
    assert outcomes.index(True) == operations.index(f"rename .partial-checkpoint-{scene.later.step}") + (not after)


def test_a_power_failure_at_every_operation(scene: Scene, operations: list[str], tmp_path: Path) -> None:
    """What was not synced is gone."""
    outcomes = []
    for at, name in enumerate(operations):
        folder = tmp_path / str(at)
        disk = ForgetfulDisk(at)
        store, _, _ = scene.save(folder, disk)
        with pytest.raises(Crash):
            store.wait()
        disk.lose()
        outcomes.append(check_one_of_both(scene, folder, f"operation {at}, {name}"))
    synced = operations.index("fsync run", operations.index(f"rename .partial-checkpoint-{scene.later.step}"))
    assert outcomes == [False] * (synced + 1) + [True] * (len(operations) - synced - 1), (
        "nothing goes before it is safe"
    )


@pytest.mark.parametrize(
    ("error", "lasting"),
    [(errno.ENOSPC, False), (errno.EIO, False), (errno.ENOSPC, True), (errno.EROFS, True), (errno.EACCES, True)],
    ids=["ENOSPC once", "EIO once", "ENOSPC from then on", "EROFS from then on", "EACCES from then on"],
)
def test_an_error_at_every_operation(
    scene: Scene, operations: list[str], error: int, lasting: bool, tmp_path: Path
) -> None:
    """Training goes on with a warning; a later save on a mended disk succeeds and leaves nothing of the failed one."""
    for at, name in enumerate(operations):
        folder, where = tmp_path / str(at), f"operation {at}, {name}"
        disk = FaultyDisk(at, error, lasting=lasting)
        store, agent, said = scene.save(folder, disk)
        store.wait()
        saved = check_one_of_both(scene, folder, where)
        assert len(said) == 1, where
        assert "injected" in said[0], said
        assert saved == ("is written" in said[0]), where
        if not lasting and not saved:
            assert not list(folder.glob(".partial-*")), f"left-overs after {where}"
        store.disk = Disk()
        store.save(agent, EXTRA[1])
        store.wait()
        assert len(said) == 1, said
        assert scene.found(folder) == (scene.new, EXTRA[1]), where
        check_tidy(folder)
        shutil.rmtree(folder)


def check_tidy(folder: Path) -> None:
    """Only checkpoints, at most two, and segments that they name."""
    found = checkpoint.checkpoints(folder)
    assert {p.name for p in folder.iterdir()} == {p.name for p in found} | {"replay"}
    assert len(found) <= 2
    named = {s.name for p in found for s in checkpoint.manifest.verify(p, folder / "replay").segments}
    assert {p.name for p in (folder / "replay").iterdir()} == named


@pytest.mark.parametrize("error", ["short", "silent"])
def test_half_a_write_at_every_operation(scene: Scene, operations: list[str], error: str, tmp_path: Path) -> None:
    """One that is reported is continued; one that is not is found when the checkpoint is read back."""
    writes = [at for at, name in enumerate(operations) if name == "write"]
    assert len(writes) > 7
    for at in writes:
        folder = tmp_path / str(at)
        store, agent, said = scene.save(folder, FaultyDisk(at, error))
        store.wait()
        assert check_one_of_both(scene, folder, f"operation {at}") == (error == "short")
        assert len(said) == (error == "silent"), said
        store.disk = Disk()
        store.save(agent, EXTRA[1])
        store.wait()
        assert scene.found(folder) == (scene.new, EXTRA[1])
        check_tidy(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_save_of_a_run(kind: str, tmp_path: Path) -> None:
    """There is none before it: afterwards there is none or the new one, and the run can be saved again."""
    (tmp_path / "run").mkdir()
    scene = Scene(kind, tmp_path / "run", 0)
    plain = FaultyDisk()
    scene.save(tmp_path / "plain", plain)[0].wait()
    for at, name in enumerate(plain.done):
        folder = tmp_path / str(at)
        store, agent, _ = scene.save(folder, FaultyDisk(at, Crash))
        with pytest.raises(Crash):
            store.wait()
        assert scene.found(folder) in ((None, None), (scene.new, EXTRA[1])), name
        again = Store(folder)
        again.save(agent, EXTRA[1])
        again.wait()
        assert scene.found(folder) == (scene.new, EXTRA[1]), name
        check_tidy(folder)


def test_config_json_is_whole_at_any_time(tmp_path: Path) -> None:
    """A run that is killed while its settings are written again is not lost."""
    old, new = small_config(steps=100), small_config(steps=200)
    plain = FaultyDisk()
    write_config(tmp_path / "plain", new, plain)
    for at, name in enumerate(plain.done):
        folder = tmp_path / str(at)
        write_config(folder, old)
        with pytest.raises(Crash):
            write_config(folder, new, FaultyDisk(at, Crash))
        assert read_config(folder).steps in (100, 200), name
        write_config(folder, new)
        assert read_config(folder).steps == 200


def test_the_comparison_sees_a_bit() -> None:
    """The tests above compare with this."""
    one, other = SmallAgent(), SmallAgent()
    other.weights = copy.deepcopy(one.weights)
    assert frozen(one.state_dict()) == frozen(other.state_dict())
    other.weights["channels"][0, 0, 0, 0] += 1e-7
    assert frozen(one.state_dict()) != frozen(other.state_dict())
