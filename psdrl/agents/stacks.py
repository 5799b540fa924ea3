"""What agents share that see stacks of frames and learn from single transitions."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from psdrl.envs.vector import EnvSpec
from psdrl.errors import UserError
from psdrl.runtime.device import is_gpu, pinned_empty

TRANSFORMS: dict[str, Callable[[NDArray], NDArray]] = {
    "sign": np.sign,
    "tanh": np.tanh,
    "none": lambda reward: reward,
}  # of rewards, before they are stored


class TorsoSizes(Protocol):
    """What a torso needs of an agent's settings."""

    @property
    def channels(self) -> tuple[int, ...]:
        """Of convolutions on images."""

    @property
    def kernels(self) -> tuple[int, ...]:
        """Their sizes."""

    @property
    def strides(self) -> tuple[int, ...]:
        """Their strides."""

    @property
    def grid_channels(self) -> int:
        """Of a 3 x 3 convolution on grids; 0: none."""

    @property
    def torso(self) -> tuple[int, ...]:
        """Units of the ReLU layers that follow."""


class Torso(nn.Module):
    """Stacks of frames to features: convolutions on images and grids, then ReLU layers; vectors have only these."""

    def __init__(self, config: TorsoSizes, spec: EnvSpec, stack: int) -> None:
        super().__init__()
        self.grid, self.scale = spec.grid if config.grid_channels else None, 1 / 255 if spec.kind == "image" else 1.0
        layers: list[nn.Module] = []
        size = stack * math.prod(spec.shape)
        if self.grid:
            height, width, planes = self.grid
            layers += [nn.Conv2d(stack * planes, config.grid_channels, 3), nn.ReLU()]
            size = config.grid_channels * (height - 2) * (width - 2)
        elif spec.kind == "image":
            channels, height, width = spec.shape
            channels *= stack
            for outputs, kernel, stride in zip(config.channels, config.kernels, config.strides, strict=True):
                height, width = ((side - kernel) // stride + 1 for side in (height, width))
                if min(height, width) < 1:
                    raise UserError(f"The torso shrinks {spec.shape} to nothing: use smaller --network.kernels.")
                layers += [nn.Conv2d(channels, outputs, kernel, stride), nn.ReLU()]
                channels = outputs
            size = channels * height * width
        layers.append(nn.Flatten())
        for units in config.torso:
            layers += [nn.Linear(size, units), nn.ReLU()]
            size = units
        self.layers, self.size = nn.Sequential(*layers), size
        self.bf16 = False  # whether it runs in bfloat16 although the heads do not (--precision mixed)

    def forward(self, stacks: Tensor) -> Tensor:
        """Features (n, F) of stacks (n, stack, *shape), in the parameters' type."""
        if self.grid:  # flattened with its channels last
            stacks = stacks.unflatten(2, self.grid).permute(0, 1, 4, 2, 3)
        inputs = stacks.flatten(1, 2)
        inputs = inputs * self.scale if self.scale != 1 else inputs
        if not self.bf16:
            return self.layers(inputs)
        with torch.autocast(inputs.device.type, torch.bfloat16):
            return self.layers(inputs).to(stacks.dtype)


class TargetNetworks(nn.Module):
    """A trained network and its target network, of one shape."""

    online: nn.Module
    target: nn.Module

    @torch.no_grad()
    def update_target(self) -> None:
        """Copy the trained network into the target network, in place, where CUDA graphs read it."""
        old: list[Tensor] = list(self.target.parameters())
        new: list[Tensor] = list(self.online.parameters())
        torch._foreach_copy_(old, new)


class Stacks:
    """The last frames of N environments, oldest first; zeros before an episode's first."""

    def __init__(self, num_envs: int, stack: int, spec: EnvSpec, device: torch.device) -> None:
        shape, dtype = (num_envs, stack, *spec.shape), getattr(torch, spec.dtype)
        self.device = device
        # Pinned on a GPU, which copies from there: it is free again, because `act` waits for its actions.
        self._frames = pinned_empty(shape, dtype).zero_() if is_gpu(device) else torch.zeros(shape, dtype=dtype)
        self._view: NDArray = self._frames.numpy()

    def start(self, started: NDArray[np.bool_]) -> None:
        """New episodes begin where `started` (N,)."""
        self._view[started] = 0

    def push(self, observations: NDArray) -> None:
        """The newest frames (N, *shape)."""
        self._view[:, :-1] = self._view[:, 1:].copy()
        self._view[:, -1] = observations

    def state_dict(self) -> dict[str, Any]:
        """The frames."""
        return {"frames": self._frames}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self._frames.copy_(state["frames"])

    def on_device(self) -> Tensor:
        """Stacks (N, stack, *shape) where the networks are."""
        return self._frames.to(self.device, non_blocking=True)


class StackActor(ABC):
    """Plays N environments by their stacks; a share of the actions is random."""

    def __init__(
        self, stacks: Stacks, num_actions: int, random_share: Callable[[], float], rng: np.random.Generator
    ) -> None:
        self.stacks, self.num_actions, self.random_share, self.rng = stacks, num_actions, random_share, rng

    @abstractmethod
    def chosen(self, stacks: Tensor) -> Tensor:
        """Actions (N,) for stacks (N, stack, *shape)."""

    def start(self, started: NDArray[np.bool_]) -> None:
        """New episodes begin where `started` (N,)."""
        self.stacks.start(started)

    def state_dict(self) -> dict[str, Any]:
        """Frames of the running episodes."""
        return self.stacks.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.stacks.load_state_dict(state)

    @torch.no_grad()
    def act(self, observations: NDArray) -> NDArray[np.int64]:
        """Actions (N,) for observations (N, *shape)."""
        self.stacks.push(observations)
        count = len(observations)
        random = self.rng.random(count) < self.random_share()
        actions = self.rng.integers(self.num_actions, size=count)
        if not random.all():  # the networks are not asked in the random steps: 4 to 30 ms each on a CPU
            actions = np.where(random, actions, self.chosen(self.stacks.on_device()).cpu().numpy())
        return actions
