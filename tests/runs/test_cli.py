"""What a user can get wrong: one clear sentence, exit code 2, nothing overwritten; and how a run is interrupted."""

import errno
import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import pytest
import torch

from psdrl import cli
from psdrl.run.checkpoint import settings_of
from psdrl.run.store.files import Disk
from tests.conftest import Outcome, Run

SMALL = ("--env", "deepsea-4", "--preset", "debug", "--device", "cpu", "--eval-every", "0", "--steps", "310")
no_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 300 steps; tests work on copies."""
    logdir = tmp_path_factory.mktemp("run") / "logdir"
    assert cli.train([*SMALL, "--steps", "300", "--logdir", str(logdir)]) == 0
    return logdir


@pytest.fixture
def run_copy(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def check_refusal(outcome: Outcome, says: str) -> None:
    assert outcome.code == 2, outcome
    assert "Traceback" not in outcome.err + outcome.out
    lines = outcome.err.strip().splitlines()
    assert len(lines) == 1, f"one sentence, not {outcome.err!r}"
    assert lines[0].startswith("error: ")
    assert says in lines[0], lines[0]


IMAGE = ("--env", "deepsea-4-image", "--preset", "debug")
BAD_INPUT: dict[str, tuple[tuple[str, ...], str]] = {
    "unknown game": (("--game", "Pnog"), "Pong"),
    "empty game": (("--game", ""), "--game"),
    "unknown env": (("--env", "CartPol-v1"), "CartPole-v1"),
    "malformed env": (("--env", "no such env!"), "no such env!"),
    "env of a missing module": (("--env", "nowhere:Thing-v0"), "nowhere"),
    "env in brackets": (("--env", "[/bold]"), "[/bold]"),
    "unknown MinAtar game": (("--env", "minatar/pong"), "breakout"),
    "DeepSea of size 0": (("--env", "deepsea-0"), "deepsea-N"),
    "no environment": ((), "--game"),
    "two environments": (("--game", "Pong", "--env", "deepsea-4"), "one environment"),
    "continuous actions": (("--env", "Pendulum-v1"), "discrete"),
    "no-ops": (("--game", "Pong", "--preset", "debug", "--atari.noop-max", "0"), "noop-max"),
    "unknown device": ((*SMALL, "--device", "tpu"), "--device tpu"),
    "steps": ((*SMALL, "--steps", "0"), "--steps is 0"),
    "environments": ((*SMALL, "--num-envs", "0"), "--num-envs is 0"),
    "seed": ((*SMALL, "--seed", "-1"), "--seed is -1"),
    "batch": ((*SMALL, "--replay.batch", "0"), "--replay.batch is 0"),
    "length": ((*SMALL, "--replay.length", "-3"), "--replay.length is -3"),
    "capacity": ((*SMALL, "--replay.capacity", "0"), "--replay.capacity is 0"),
    "units": ((*SMALL, "--forward.units", "0"), "--forward.units is 0"),
    "layers": ((*SMALL, "--value.layers", "1"), "--value.layers is 1"),
    "window": ((*SMALL, "--forward.window", "0"), "--forward.window is 0"),
    "period": ((*SMALL, "--policy.update-every", "0"), "--policy.update-every is 0"),
    "noise": ((*SMALL, "--posterior.noise", "1", "0"), "--posterior.noise is 1.0 0.0"),
    "learning rate": ((*SMALL, "--value.learning-rate", "nan"), "--value.learning-rate is nan"),
    "epsilon": ((*SMALL, "--policy.epsilon", "1.5"), "--policy.epsilon is 1.5"),
    "discount": ((*SMALL, "--value.discount", "1"), "--value.discount is 1"),
    "sticky": (("--env", "minatar/breakout", "--minatar.sticky", "1.5"), "--minatar.sticky is 1.5"),
    "encoder of nothing": ((*IMAGE, "--autoencoder.channels", "4", "4", "4", "4", "4"), "--autoencoder.channels"),
    "grid of linear features": ((*IMAGE, "--autoencoder.latent", "0", "--grid"), "--forward.features tanh"),
    "no grid": ((*SMALL, "--grid", "--forward.features", "tanh"), "no grid"),
    "no channels": ((*IMAGE, "--autoencoder.channels", "4", "0"), "positive"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input(case: str, cli_run: Run, tmp_path: Path) -> None:
    arguments, says = BAD_INPUT[case]
    brief = () if "--steps" in arguments else ("--steps", "5")  # what is not refused must not run for long
    check_refusal(cli_run("train", *arguments, *brief, "--logdir", "new"), says)
    assert contents(tmp_path) == {}, "nothing is written for a run that cannot start"


@no_cuda
@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_cuda_without_cuda(command: str, cli_run: Run, run_copy: Path) -> None:
    before = contents(run_copy)
    arguments = (*SMALL, "--logdir", run_copy) if command == "train" else (run_copy,)
    check_refusal(cli_run(command, *arguments, "--device", "cuda"), "--device cuda")
    assert contents(run_copy) == before


def test_mistyped_flag(cli_run: Run, tmp_path: Path) -> None:
    outcome = cli_run("train", *SMALL, "--valu.units", "3")
    assert outcome.code == 2
    assert "--valu.units" in outcome.err
    assert "Traceback" not in outcome.err
    assert contents(tmp_path) == {}


def test_logdir_of_another_configuration(cli_run: Run, run_copy: Path) -> None:
    before = contents(run_copy)
    for extra, says in [
        (("--seed", "1"), "seed = 0 there, 1 now"),
        (("--value.units", "17"), "value.units"),
        (("--algo", "fresh-value"), "algo"),
        (("--replay.capacity", "999", "--replay.batch", "5"), "replay.batch"),
    ]:
        check_refusal(cli_run("train", *SMALL, "--steps", "310", "--logdir", run_copy, *extra), says)
    check_refusal(cli_run("train", *SMALL, "--env", "deepsea-5", "--steps", "310", "--logdir", run_copy), "env")
    assert contents(run_copy) == before


def test_logdirs_that_are_no_runs(cli_run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("mine")
    before = contents(tmp_path)
    check_refusal(cli_run("train", *SMALL, "--logdir", "file"), "is a file")
    check_refusal(cli_run("train", *SMALL, "--logdir", "file/below"), "file")
    check_refusal(cli_run("train", *SMALL, "--logdir", "full"), "not empty")
    check_refusal(cli_run("train", *SMALL, "--logdir", "new", "--resume", "must"), "--resume must")
    assert contents(tmp_path) == before


def test_resume_never(cli_run: Run, run_copy: Path) -> None:
    before = contents(run_copy)
    check_refusal(cli_run("train", *SMALL, "--logdir", run_copy, "--resume", "never"), "--resume is never")
    assert contents(run_copy) == before


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "one bit":
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    else:
        path.write_bytes({"empty": b"", "half": data[: len(data) // 2], "text": b"not a checkpoint"}[how])


@pytest.mark.parametrize("how", ["missing", "empty", "half", "text", "one bit"])
@pytest.mark.parametrize("name", ["agent.json", "agent.safetensors", "manifest.json", "replay.json", "segment"])
def test_damaged_checkpoint(name: str, how: str, cli_run: Run, run_copy: Path) -> None:
    """The only checkpoint: refused in a sentence. Playing needs no replay buffer."""
    damage(run_copy / ("replay/segment-1.zst" if name == "segment" else f"checkpoint-300/{name}"), how)
    before = contents(run_copy)
    check_refusal(cli_run("train", *SMALL, "--steps", "400", "--logdir", run_copy), "checkpoint-300")
    outcome = cli_run("evaluate", run_copy, "--device", "cpu", "--episodes", "1")
    if name in ("segment", "replay.json"):
        assert outcome.code == 0
    else:
        check_refusal(outcome, "checkpoint-300")
    assert contents(run_copy) == before


def test_a_damaged_checkpoint_gives_way_to_the_one_before(cli_run: Run, run_copy: Path) -> None:
    assert cli_run("train", *SMALL, "--steps", "400", "--logdir", run_copy).code == 0
    assert cli_run("train", *SMALL, "--steps", "500", "--logdir", run_copy).code == 0
    assert {p.name for p in run_copy.glob("checkpoint-*")} == {"checkpoint-400", "checkpoint-500"}
    damage(run_copy / "checkpoint-500" / "agent.safetensors", "one bit")
    outcome = cli_run("train", *SMALL, "--steps", "600", "--logdir", run_copy)
    assert outcome.code == 0
    assert "checkpoint-500 cannot be used (agent.safetensors has changed since it was written)" in outcome.out
    assert "resumed at step 400" in outcome.out
    assert {p.name for p in run_copy.glob("checkpoint-*")} == {"checkpoint-400", "checkpoint-600"}
    assert not list(run_copy.glob(".aside-*"))


def test_checkpoints_of_earlier_versions_are_refused(cli_run: Run, run_copy: Path) -> None:
    for path in (run_copy / "checkpoint-300").iterdir():
        path.unlink()
    torch.save({"a": 1}, run_copy / "checkpoint-300" / "agent.pt")
    check_refusal(cli_run("evaluate", run_copy), "earlier version")


def test_a_moved_run_goes_on(cli_run: Run, run_copy: Path, tmp_path: Path) -> None:
    """And knows where it is now."""
    moved = tmp_path / "elsewhere" / "moved"
    moved.parent.mkdir()
    run_copy.rename(moved)
    assert settings_of(moved).logdir == moved
    assert cli_run("train", *SMALL, "--steps", "400", "--resume", "must", "--logdir", moved).code == 0
    assert (moved / "checkpoint-400").is_dir()
    assert not run_copy.exists()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": 1}', '{"config": {"bogus": 1}}', '{"config": 3}'], ids=str
)
def test_damaged_config(text: str, cli_run: Run, run_copy: Path) -> None:
    (run_copy / "config.json").write_text(text)
    before = contents(run_copy)
    check_refusal(cli_run("train", *SMALL, "--logdir", run_copy), "")
    check_refusal(cli_run("evaluate", run_copy), "")
    assert contents(run_copy) == before


def test_bad_evaluations(cli_run: Run, run_copy: Path, tmp_path: Path) -> None:
    check_refusal(cli_run("evaluate", tmp_path / "nothing"), "no run")
    check_refusal(cli_run("evaluate", run_copy, "--episodes", "0"), "--episodes is 0")
    check_refusal(cli_run("evaluate", run_copy, "--video", "film.txt"), ".mp4")
    assert not (tmp_path / "film.txt").exists()
    shutil.rmtree(run_copy / "checkpoint-300")
    check_refusal(cli_run("evaluate", run_copy), "no checkpoint")


def test_a_finished_run_is_left_alone(cli_run: Run, run_copy: Path) -> None:
    metrics = (run_copy / "metrics.jsonl").read_bytes()
    outcome = cli_run("train", *SMALL, "--steps", "300", "--logdir", run_copy)
    assert outcome.code == 0
    assert "--steps" in outcome.out
    assert (run_copy / "metrics.jsonl").read_bytes() == metrics


def test_what_a_user_sees_at_the_start(cli_run: Run) -> None:
    outcome = cli_run("train", *SMALL, "--steps", "20", "--logdir", "run")
    assert outcome.code == 0
    for word in ("deepsea-4", "2 actions", "debug", "cpu", "gymnasium", "parameters", "psdrl.evaluate"):
        assert word in outcome.out, word


def test_console_script_usage(cli_run: Run) -> None:
    for arguments, code in (((), 2), (("--help",), 0), (("nonsense",), 2)):
        outcome = cli_run("psdrl", *arguments)
        assert outcome.code == code, arguments
        assert "psdrl train" in outcome.out + outcome.err
        assert "psdrl evaluate" in outcome.out + outcome.err


def test_installed_console_script(tmp_path: Path) -> None:
    script = Path(sys.executable).parent / "psdrl"
    done = subprocess.run([script, "train", "--env", "CartPol-v1"], cwd=tmp_path, capture_output=True, text=True)
    check_refusal(Outcome(done.returncode, done.stdout, done.stderr), "CartPole-v1")
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_interrupt_saves_and_resumes(number: signal.Signals, tmp_path: Path, cli_run: Run) -> None:
    """Interrupted after its first update, a run saves, says how to resume, and the same logdir goes on."""
    flags = [*SMALL, "--steps", "1000000", "--checkpoint-every", "0", "--logdir", "run"]
    command = [sys.executable, "-u", "-m", "psdrl.train", *flags]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stderr
        seen = ""
        for line in process.stdout:
            seen += line
            if "sequence length" in line:  # logged with the first update
                process.send_signal(number)
                break
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, seen + out + err
    assert "Traceback" not in err
    saved = re.search(r"Saved at step (\d+)\. Resume with:\n\s*(.*)", out)
    assert saved, out
    step = int(saved[1])
    assert saved[2].split() == ["python", "-m", "psdrl.train", *flags]
    assert (tmp_path / "run" / f"checkpoint-{step}").is_dir()
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    flags[flags.index("1000000")] = str(step + 60)
    outcome = cli_run("train", *flags, "--resume", "must")
    assert outcome.code == 0
    assert f"resumed at step {step}" in outcome.out
    after = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert after[: len(lines)] == lines
    assert [json.loads(line)["step"] for line in after[len(lines) :]][-1] > step
    assert (tmp_path / "run" / f"checkpoint-{step + 60}").is_dir()


def test_a_full_disk_stops_no_run(cli_run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every save fails: the run ends as it should, says so once per save, and leaves nothing half written."""

    write = Disk.write

    def full(disk: Disk, file: BinaryIO, data: memoryview) -> int:
        if "config.json" in file.name:  # without it there is no run
            return write(disk, file, data)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Disk, "write", full)
        outcome = cli_run("train", *SMALL, "--steps", "300", "--checkpoint-every", "100", "--logdir", "run")
    assert outcome.code == 0
    assert outcome.out.count("No checkpoint could be written") >= 3
    assert "No space left on device" in outcome.out
    assert not list((tmp_path / "run").glob("*checkpoint*"))
    assert cli_run("train", *SMALL, "--steps", "300", "--logdir", "run").code == 0
    assert (tmp_path / "run" / "checkpoint-300").is_dir()
