"""Which calls of `psdrl.kernels` a configuration makes: what the start-up check and `psdrl.doctor` check.

The configuration's own networks are built on the meta device, which allocates and draws nothing, and asked for an
action, a chunk of planning and a gradient step of each kind; the calls are noted with their shapes and strides.
"""

from typing import NamedTuple

import torch

from psdrl.agents.psdrl.lookahead import Lookahead, predict
from psdrl.agents.psdrl.models import Models
from psdrl.agents.psdrl.planning import value_gradient
from psdrl.agents.psdrl.settings import PsdrlConfig
from psdrl.agents.psdrl.world_model import SampledWorld
from psdrl.config import Precision
from psdrl.envs.vector import EnvSpec
from psdrl.kernels import checks, dispatch, posterior
from psdrl.kernels.linear_tanh import linear_tanh
from psdrl.runtime.device import is_gpu


class KernelCalls(NamedTuple):
    """What a run asks of the kernels."""

    calls: list[checks.Call]
    features: int  # of the posterior

    @classmethod
    @torch.no_grad()
    def of(cls, config: PsdrlConfig, spec: EnvSpec, gpu: bool = False) -> "KernelCalls":
        """The calls of acting, planning and learning, each once."""
        at_once = config.rows_at_once(gpu)
        with torch.device("meta"), checks.recorded() as calls:
            models = Models(config, spec)
            _act(models, config.num_envs // config.env_groups)
            rows = spec.num_actions * models.forward_model.rows_per_state
            _plan(models, max(1, at_once // rows), config)
            _learn(models, config, at_once)
        return cls(calls, models.forward_model.output.in_features)


def _states(models: Models, states: int) -> tuple[SampledWorld, torch.Tensor, torch.Tensor]:
    world = models.forward_model.fold(models.forward_model.sampled(None))
    return world, torch.empty(states, models.autoencoder.latent_size), models.forward_model.no_hidden(states)


def _act(models: Models, states: int) -> None:
    world, latents, hidden = _states(models, states)
    tie_noise = torch.empty(states, world.num_actions)
    Lookahead(world, models.termination, models.value).action(latents, hidden, tie_noise)


def _plan(models: Models, states: int, config: PsdrlConfig) -> None:
    world, latents, hidden = _states(models, states)
    predict(world, models.termination, latents, hidden).planned(models.target)
    rows = config.replay.batch * config.value.target_every * world.num_actions
    narrow = models.forward_model.narrow(models.forward_model.sampled(None), rows)
    if narrow is not None:
        narrow.values(models.target, narrow.predict(models.termination, latents, hidden), latents)


def _learn(models: Models, config: PsdrlConfig, at_once: int) -> None:
    """A window of forward and termination model, a step of the value network, a chunk of the posterior's features."""
    forward_model, batch, latent = models.forward_model, config.replay.batch, models.autoencoder.latent_size
    inputs = forward_model.hidden_size + latent + forward_model.num_actions
    chunk = max(1, at_once // forward_model.rows_per_state)
    for rows in (batch * config.forward.window, chunk):
        forward_model.feature_layers(torch.empty(rows, inputs), linear_tanh)
    models.termination(torch.empty(batch * config.forward.window, latent), linear_tanh)
    states = torch.empty(batch, latent + forward_model.hidden_size)
    models.value.each(value_gradient, states, torch.empty(batch))


def check_kernels(config: PsdrlConfig, spec: EnvSpec, device: torch.device) -> list[checks.Finding]:
    """The start-up check of this run on this device: fallbacks take the place of what fails; returns the failures."""
    calls, features = KernelCalls.of(config, spec, is_gpu(device))
    return checks.start_up(device, of_products(device, config.precision), calls, features)


def of_products(device: torch.device, precision: Precision) -> checks.Precision:
    """How the kernels form products in this precision: tf32 in mixed, float32 on a CPU."""
    if precision == "bf16":
        return "bf16"
    return "fp32" if precision == "fp32" or device.type == "cpu" else "tf32"


def serving(device: torch.device) -> str:
    """Which backends serve on this device, and why better ones do not."""
    serving = {choice.backend: choice.refused for choice in dispatch.explain(device).values()}
    lookahead = "; ".join(
        " ".join([name, *(f"({other} refused: {why})" for other, why in refused.items())])
        for name, refused in serving.items()
    )
    reason = posterior.unavailable(device)
    return f"lookahead {lookahead}; posterior " + ("csrc" if reason is None else f"PyTorch ({reason})")
