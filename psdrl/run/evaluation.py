"""Play a trained agent: `python -m psdrl.evaluate RUN --episodes 10 --policy mean --video out.mp4`."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from numpy.typing import NDArray
from rich.console import Console

from psdrl.agents.interface import Agent
from psdrl.agents.registry import entry, make_agent
from psdrl.config import Config
from psdrl.envs import make_env
from psdrl.envs.vector import EnvSpec
from psdrl.errors import UserError
from psdrl.run.checkpoint import newest, read_config, restore


def evaluate(
    agent: Agent,
    episodes: int = 10,
    stream: int = 10_000,
    on_frame: Callable[[NDArray[np.uint8]], None] | None = None,
    policy: str | None = None,
) -> list[float]:
    """Returns of `episodes` episodes of this policy, the agent's default if none is named, with the noise of training.

    The environment, hidden state and random stream are its own: training goes on as if nothing had happened.
    """
    env = make_env(agent.config, num_envs=1, stream=stream, render=on_frame is not None)
    try:
        actor = agent.player(stream, policy)
        observation = env.reset()
        returns: list[float] = []
        score = 0.0
        while True:
            if on_frame:
                on_frame(env.render())
            step = env.step(actor.act(observation))
            score += float(step.reward[0])
            observation = step.observation
            if step.terminated[0] or step.truncated[0]:
                returns.append(score)
                score = 0.0
                if len(returns) == episodes:
                    return returns
                observation = env.step(np.zeros(1, np.int64)).observation  # starts the next episode
                actor.start(np.ones(1, bool))
    finally:
        env.close()


def load(run: Path, device: str = "auto", replay: bool = False) -> Any:
    """The agent of a run, as its last checkpoint has it."""
    config = replace(read_config(run), device=device)
    checkpoint = newest(run, replay).newest
    if checkpoint is None:
        raise UserError(f"{run} has no checkpoint yet: train on, or wait for one (--checkpoint-every).")
    env = make_env(config, num_envs=1)
    env.close()
    try:
        _refuse_what_is_too_large(run, config, env.spec)
        agent = make_agent(config, env.spec)
    except (RuntimeError, MemoryError, OverflowError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise UserError(f"The agent of {run} cannot be made here: {reason}") from None
    restore(checkpoint, agent, replay=replay)
    return agent


def _refuse_what_is_too_large(run: Path, config: Config, spec: EnvSpec) -> None:
    """Settings of a stranger may ask for any size: refused before memory is taken, if the agent describes its work."""
    work = entry(config.algo).agent.workload(config, spec)
    if work is None:
        return
    needed = sum(size for name, size in work.memory().items() if name in ("replay", "networks", "posterior"))
    here = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > here:
        raise UserError(f"The agent of {run} needs {needed / 1e9:.3g} GB and this machine has {here / 1e9:.3g} GB.")


@dataclass(frozen=True)
class Evaluation:
    """Play the last checkpoint of a run and report its returns."""

    run: Annotated[Path, tyro.conf.Positional]
    """Run directory, as given to --logdir."""
    episodes: int = 10
    """Episodes to play."""
    policy: str | None = None
    """One of the agent's ways to play; of PSDRL sample, the model sampled last (default), or mean, the posterior's."""
    video: Path | None = None
    """Write the episodes as a video, e.g. out.mp4 or out.gif."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""


def run(options: Evaluation) -> None:
    """`psdrl evaluate`."""
    if options.episodes < 1:
        raise UserError(f"--episodes is {options.episodes} but must be at least 1.")
    console = Console()
    agent = load(options.run, options.device)
    policy = options.policy or next(iter(agent.POLICIES))
    if policy not in agent.POLICIES:
        ways = ", ".join(f"{name} ({words})" for name, words in agent.POLICIES.items())
        raise UserError(f"--policy {policy} is none of {agent.config.algo}'s: {ways}.")
    if options.video is None:
        returns = evaluate(agent, options.episodes, policy=policy)
    else:
        if options.video.suffix not in (".mp4", ".gif"):
            raise UserError(f"--video {options.video} must end in .mp4 or .gif.")
        import imageio.v2 as imageio

        options.video.parent.mkdir(parents=True, exist_ok=True)
        extra = {"macro_block_size": 2} if options.video.suffix == ".mp4" else {}
        writer: Any = imageio.get_writer(str(options.video), fps=15, **extra)  # type: ignore[arg-type]
        with writer:
            returns = evaluate(agent, options.episodes, on_frame=writer.append_data, policy=policy)
        console.print(f"video: {options.video}", highlight=False, soft_wrap=True)
    for i, score in enumerate(returns):
        console.print(f"episode {i + 1}: {score:g}", highlight=False)
    console.print(
        f"{agent.config.env_name} after {agent.step} steps, policy {policy}: "
        f"mean {np.mean(returns):.3f}, sd {np.std(returns):.3f} over {len(returns)} episodes",
        highlight=False,
        soft_wrap=True,
    )
