"""What each precision does to planning targets: `python -m bench.precision --preset cpu --updates 3`.

Targets of all actions' best returns on stored states, against float64. tf32 is emulated: the factors of every product
and convolution keep 10 bits of mantissa, the products are added in float32, as on a GPU. cuBLAS and cuDNN round them;
Triton hands float32 to the tensor cores, which cut the rest off: both are reported. In mixed precision the encoder
computes in bfloat16 and everything else in tf32, cut off. The measure is the spread of the
same targets between models drawn from the posterior: an error far below it is lost in the sampling.
"""

import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
import tyro
from torch import Tensor

from bench.workload import make_agent
from psdrl.agents.psdrl.agent import PsdrlAgent
from psdrl.agents.psdrl.learning import encode_buffer
from psdrl.agents.psdrl.lookahead import predict
from psdrl.agents.psdrl.settings import PosteriorConfig
from psdrl.kernels import dispatch
from psdrl.kernels.checks.rounding import Emulated, cut_to_tf32, to_tf32
from psdrl.runtime.execution import Execution


@torch.no_grad()
def targets(agent: PsdrlAgent, weight: Tensor, execution: Execution, product: AbstractContextManager) -> Tensor:
    """max over actions of r^ + gamma v^ for all stored states, from hidden states of one stream of numbers."""
    models, model = agent.models, agent.models.forward_model
    with dispatch.force("reference"), product:
        latents = encode_buffer(models, agent.replay, execution)[agent.replay.stored_slots()]
        generator = torch.Generator().manual_seed(0)
        hidden = torch.tanh(torch.randn(len(latents), model.hidden_size, generator=generator)).to(latents)
        world = model.fold(model.sampled(weight))
        with execution.autocast():
            return predict(world, models.termination, latents, hidden).planned(models.value).double()


@dataclass(frozen=True)
class Options:
    """Error of planning targets by precision."""

    preset: Literal["paper", "cpu"] = "cpu"
    """Sizes of the networks."""
    variances: Literal["preset", "paper"] = "preset"
    """Noise and prior variances of the posterior: the preset's or the paper's."""
    updates: int = 3
    """Updates before measuring, on random frames."""
    transitions: int = 1000
    """Transitions in the buffer."""
    batch: int = 0
    """Sequences in a batch, instead of the preset's: the paper's updates take a CPU hours."""
    length: int = 0
    """Steps of a sequence, instead of the preset's."""
    draws: int = 5
    """Models drawn for the spread."""


def main() -> None:
    """Print the errors as JSON."""
    options = tyro.cli(Options, prog="bench.precision")
    settings: dict[str, Any] = {"posterior": PosteriorConfig()} if options.variances == "paper" else {}
    sizes = {name: getattr(options, name) for name in ("batch", "length") if getattr(options, name)}
    settings |= {"replay": sizes} if sizes else {}
    agent = make_agent(options.preset, 6, options.transitions, "fast", precision="fp32", **settings)
    for _ in range(options.updates):
        agent.update()
    cpu = torch.device("cpu")
    weight, full = agent.model.weight.clone(), Execution(cpu)
    modes: dict[str, tuple[Execution, AbstractContextManager]] = {
        "fp32": (full, nullcontext()),
        "tf32 (rounded)": (full, Emulated(to_tf32, torch.float32)),
        "tf32 (cut off)": (full, Emulated(cut_to_tf32, torch.float32)),
        "mixed (cut off)": (Execution(cpu, precision="mixed"), Emulated(cut_to_tf32, torch.float32)),
        "bf16": (Execution(cpu, precision="bf16"), nullcontext()),
    }
    found = {name: targets(agent, weight, *how) for name, how in modes.items()}
    drawn = torch.stack([targets(agent, agent.draw().weight, full, nullcontext()) for _ in range(options.draws)])
    agent.models.double()
    exact = targets(agent, weight.double(), full, nullcontext())
    scale, spread = exact.std(), drawn.std(0).square().mean().sqrt()
    print(f"targets: sd {scale:.3g} over states, {spread:.3g} between drawn models", flush=True)
    errors = {name: float((x - exact).square().mean().sqrt()) for name, x in found.items()}
    for name, error in errors.items():
        print(f"{name:16} rms error {error:.2e} = {error / scale:.1e} of the sd, {error / spread:.1e} of the spread")
    print(json.dumps({"options": vars(options), "sd": float(scale), "spread": float(spread), "rms_error": errors}))


if __name__ == "__main__":
    main()
