"""Train: `python -m psdrl.train --game Pong --compile`."""

import shlex
import signal
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import FrameType, TracebackType

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from psdrl.agents.interface import Agent
from psdrl.agents.registry import make_agent
from psdrl.config import Config
from psdrl.console import PatientConsole
from psdrl.cost import forecast as cost
from psdrl.envs import make_env
from psdrl.envs.vector import VectorEnv
from psdrl.errors import UserError
from psdrl.run.callbacks import Callback, resume
from psdrl.run.checkpoint import Store, check_same, latest, newest, restore, write_config
from psdrl.run.log import run_callbacks
from psdrl.run.loop import train
from psdrl.run.store.lock import Lock
from psdrl.run.store.saver import order
from psdrl.runtime.device import limited_threads
from psdrl.version import __version__

BEFORE_CONFIG = (".lock", ".holder.json", ".partial-config.json")  # what a run that died at once may leave


class Stop:
    """Ctrl-C and SIGTERM end the run at the next step, after saving; a second one ends it at once."""

    def __init__(self, console: Console) -> None:
        self.console, self.asked = console, False

    def __enter__(self) -> "Stop":
        self._old = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self.console.print("Stopping after this step or update; once more to stop at once without saving.")

    def __call__(self) -> bool:
        return self.asked


def run(config: Config, why_preset: str, arguments: list[str]) -> int:
    """`psdrl train` with the configuration parsed from `arguments`; returns the exit code."""
    console = PatientConsole()
    config.check()
    logdir = config.logdir or config.default_logdir
    config = replace(config, logdir=logdir)
    callbacks = run_callbacks(config, console)
    refuse_what_is_no_run(config, logdir)
    with ExitStack() as stack:
        old, checkpoint = (logdir / "config.json").exists(), None
        if old:
            stack.enter_context(Lock(logdir))
            checkpoint = _find_checkpoint(logdir, console)
            if checkpoint and _finished(console, config, logdir, checkpoint):
                return 0
        env = make_env(config)
        agent = make_agent(config, env.spec, check=True)
        if not old:  # nothing is left behind if the agent cannot be made
            stack.enter_context(Lock(logdir))
            refuse_what_is_no_run(config, logdir)
        return _run(agent, env, checkpoint, callbacks, console, why_preset, arguments)


def _run(
    agent: Agent,
    env: VectorEnv,
    checkpoint: Path | None,
    callbacks: list[Callback],
    console: Console,
    why_preset: str,
    arguments: list[str],
) -> int:
    """`run`, as the only process that writes into logdir."""
    config, logdir = agent.config, agent.config.logdir
    assert logdir is not None
    for name, problem in agent.failed.items():
        _warn(
            console,
            f"{name} fails its check on {agent.device}: {problem}; the fallback serves. See python -m psdrl.doctor.",
        )
    store = Store(logdir, config.checkpoint_keep, lambda text: _warn(console, text))
    extra = restore(checkpoint, agent) if checkpoint else {}
    if checkpoint:
        store.resume(checkpoint, agent.replay)
        resume(callbacks, extra.get("callbacks", {}))
    write_config(logdir, config)
    _summary(console, agent, why_preset, checkpoint)
    _forecast(console, agent)
    first_update = agent.updates
    again = f"python -m psdrl.train {shlex.join(arguments)}"  # the same logdir resumes
    try:
        with Stop(console) as stop:
            train(agent, env, callbacks, stop, store, state=extra.get("loop"))
    except KeyboardInterrupt:
        store.wait()
        kept = latest(logdir)
        since = f"continues from {kept.name}" if kept else "starts again: no checkpoint was written"
        console.print(f"Stopped without saving. The same command {since}.", highlight=False)
        return 130
    finally:
        store.wait()  # what was begun is written before another process may come
        env.close()
    for fallback in agent.fallbacks:
        _warn(console, f"{fallback}.")
    _unprofiled(console, config, range(first_update, agent.updates))
    if stop.asked:
        saved = store.saved is not None and order(store.saved.path)[0] == agent.step
        what = f"Saved at step {agent.step}" if saved else f"Stopped at step {agent.step}, not saved"
        console.print(f"{what}. Resume with:\n  {again}", highlight=False, soft_wrap=True)
        return 130
    console.print(
        f"Done: {agent.step} steps, {agent.episodes} episodes, {agent.updates} updates. "
        f"Play it with:\n  python -m psdrl.evaluate {shlex.quote(str(logdir))}",
        highlight=False,
        soft_wrap=True,
    )
    return 0


def _warn(console: Console, text: str) -> None:
    console.print(f"[bold]warning[/]      {escape(text)}", highlight=False, soft_wrap=True)


def _finished(console: Console, config: Config, logdir: Path, checkpoint: Path) -> bool:
    """Whether the run has its steps already; if so, say it and change nothing."""
    step, _ = order(checkpoint)
    if step < config.steps:
        return False
    asked = "" if step == config.steps else f", and --steps asks for {config.steps}"
    where = shlex.quote(str(logdir))
    console.print(
        f"{where} is finished: it has {step} steps{asked}. Train on with --steps {2 * step}, or play it with:\n"
        f"  python -m psdrl.evaluate {where}",
        highlight=False,
        soft_wrap=True,
        markup=False,
    )
    return True


def _unprofiled(console: Console, config: Config, updates: range) -> None:
    """Say so if --profile asked for updates that were not made."""
    if config.profiled and not set(config.profiled) & set(updates):
        made = f"updates {updates.start} to {updates.stop - 1}" if updates else "no update"
        _warn(console, f"--profile {config.profile}: nothing was profiled, this run made {made}.")


def refuse_what_is_no_run(config: Config, logdir: Path) -> None:
    """Refuse to touch what is not ours, or belongs to another run."""
    if logdir.exists() and not logdir.is_dir():
        raise UserError(f"--logdir {logdir} is a file: name a directory.")
    exists = (logdir / "config.json").exists()
    if exists and config.resume == "never":
        raise UserError(f"{logdir} holds a run already and --resume is never: use another --logdir or remove it.")
    if exists:
        check_same(logdir, config)
    elif logdir.exists() and any(path.name not in BEFORE_CONFIG for path in logdir.iterdir()):
        raise UserError(f"{logdir} is not empty and holds no run: use another --logdir.")
    if config.resume == "must" and not any(logdir.glob("checkpoint-*")):
        raise UserError(f"--resume must, but {logdir} holds no checkpoint: train first, or use --resume auto.")


def _find_checkpoint(logdir: Path, console: Console) -> Path | None:
    """The newest whole checkpoint; says which newer ones are damaged."""
    found = newest(logdir)
    for path, reason in found.damaged:
        _warn(console, f"{path} cannot be used ({reason}): {found.newest} serves.")
    return found.newest


def _summary(console: Console, agent: Agent, why_preset: str, checkpoint: Path | None) -> None:
    config = agent.config
    table = Table(show_header=False, box=None, pad_edge=False)
    groups = f" in {config.env_groups} groups" if config.env_groups > 1 else ""
    rows = {
        "psdrl": f"{__version__}, agent {config.algo}",
        "environment": f"{agent.spec.name}, {agent.spec.num_actions} actions, {agent.spec.kind} {agent.spec.shape}, "
        f"{config.num_envs} x {agent.spec.backend}{groups}",
        "preset": f"{config.preset} ({why_preset})",
        "device": f"{agent.device}, {_modes(agent)}",
        **agent.description(),
        "logdir": f"{config.logdir}" + (f", resumed at step {agent.step}" if checkpoint else ""),
    }
    for name, value in rows.items():
        table.add_row(f"[bold]{name}", value)
    console.print(table, highlight=False)


def _modes(agent: Agent) -> str:
    """Precision, compilation and graphs in force."""
    config = agent.config
    precision = "fp32" if agent.device.type == "cpu" and config.precision in ("tf32", "mixed") else config.precision
    words = [precision, f"compile {'on' if config.compile else 'off'}"]
    if agent.device.type == "cpu":
        with limited_threads(config.threads) as threads:
            words.append(f"{threads} thread{'s' if threads > 1 else ''}")
    if agent.device.type == "cuda":
        words.append(f"CUDA graphs {'on' if config.cuda_graphs else 'off'}")
    return ", ".join(words)


def _forecast(console: Console, agent: Agent) -> None:
    """What the cost model expects of this run, if the agent describes its work; see `psdrl.cost`."""
    config = replace(agent.config, device=agent.device.type)
    work = agent.workload(config, agent.spec)
    if work is None:
        return
    if agent.device.type == "cuda":
        known = cost.known_gpu(torch.cuda.get_device_name(agent.device))
        if known is None:
            return
        device = cost.data_sheet(known, config.precision, config.cuda_graphs)
    else:
        device = cost.device_for("here", work)
    expected = cost.forecast(config, agent.spec, device, work)
    left = cost.duration(3600 * expected.hours * (1 - agent.step / config.steps))
    source = "from rates measured now" if device.measured else "predicted from the data sheet"
    console.print(
        f"[bold]forecast[/]     about {left}, {sum(expected.bytes.values()) / 1e9:.2g} GB ({source})", highlight=False
    )
