"""What has the agent learned? `python -m psdrl.experiments.probe --env CartPole-v1 --steps 10000` trains, then asks.

Flags are those of psdrl.train. On all stored transitions: which ends the termination model recognises (estimate at the
threshold or above) in the states and in the sampled model's predictions of them, what reward the sampled model
predicts where there was one and where there was none, how far the value network is from the discounted return that
followed, and how far apart it holds the actions. In episodes that were cut by a time limit the return lacks what would
have come, so V may lie above it there.
"""

import sys
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from psdrl.agents.psdrl import learning
from psdrl.agents.psdrl.agent import PsdrlAgent
from psdrl.agents.psdrl.lookahead import predict
from psdrl.agents.psdrl.value import THRESHOLD
from psdrl.cli import exit_with, helped, parse_train
from psdrl.envs import make_env
from psdrl.run.loop import train


class Probe(NamedTuple):
    """Answers, averaged over the stored transitions."""

    ends: int
    ends_found: float  # share of the ends that are recognised
    false_ends: float  # share of the other states that are taken for an end
    ends_foreseen: float  # the same of the states that the sampled model predicts, which is what planning asks about
    false_foreseen: float
    reward_there: float  # predicted, where the reward was not zero
    reward_was: float
    reward_elsewhere: float  # mean absolute prediction where it was zero
    value: float
    following: float  # discounted return that followed
    correlation: float  # of the two
    gap: float  # best less worst action, of the one-step return


def returns_after(rewards: Tensor, discount: float) -> Tensor:
    """Discounted return (n,) from each step of an episode on."""
    total, after = 0.0, torch.zeros_like(rewards)
    for t in range(len(rewards) - 1, -1, -1):
        total = float(rewards[t]) + discount * total
        after[t] = total
    return after


@torch.no_grad()
def probe(agent: PsdrlAgent) -> Probe:
    """Ask the agent's models about all that is stored."""
    models, replay, config = agent.models, agent.replay, agent.config
    latents = learning.encode_buffer(models, replay, agent.execution)
    model = models.forward_model
    hidden, world = model.memory.hidden_states(model, replay, latents, config.chunk_rows), model.fold(agent.model)
    parts: list[tuple[Tensor, ...]] = []
    for episode in replay.episodes:
        slots = (episode.start + torch.arange(episode.length)) % replay.num_slots
        z, h = latents[slots], hidden[slots]
        ahead = predict(world, models.termination, z, h)
        returns = ahead.returns(models.acting_value)
        did = (torch.arange(episode.length), replay.actions[slots])
        parts.append(
            (
                models.termination(latents[(slots + 1) % replay.num_slots]) >= THRESHOLD,
                ahead.omega[did] >= THRESHOLD,
                replay.terminated[slots] > 0,
                ahead.rewards[did],
                replay.rewards[slots],
                models.acting_value(torch.cat([z, h], 1)),
                returns_after(replay.rewards[slots], config.value.discount),
                returns.amax(1) - returns.amin(1),
            )
        )
    found, foreseen, ended, taken, reward, value, following, gap = (torch.cat(p) for p in zip(*parts, strict=True))
    paid = reward != 0
    return Probe(
        ends=int(ended.sum()),
        ends_found=float(found[ended].float().mean()),
        false_ends=float(found[~ended].float().mean()),
        ends_foreseen=float(foreseen[ended].float().mean()),
        false_foreseen=float(foreseen[~ended].float().mean()),
        reward_there=float(taken[paid].mean()),
        reward_was=float(reward[paid].mean()),
        reward_elsewhere=float(taken[~paid].abs().mean()),
        value=float(value.mean()),
        following=float(following.mean()),
        correlation=float(torch.corrcoef(torch.stack([value, following]))[0, 1]),
        gap=float(gap.mean()),
    )


def run(arguments: list[str]) -> int:
    """Train and print."""
    if helped(arguments):
        return 0
    flags = ["--eval-every", "0", "--checkpoint-every", "0", "--device", "cpu"]
    config, _ = parse_train(arguments + flags)
    config.check()
    env = make_env(config)
    agent = PsdrlAgent(config, env.spec)
    train(agent, env)
    env.close()
    table = Table("of the stored transitions", "", title=f"{config.env_name}, {agent.step} steps, seed {config.seed}")
    for name, answer in probe(agent)._asdict().items():
        table.add_row(name.replace("_", " "), f"{answer:.4g}")
    Console().print(table)
    return 0


if __name__ == "__main__":
    exit_with(run, sys.argv[1:])
