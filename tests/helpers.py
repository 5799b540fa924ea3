"""What several tests share: the paper's networks written out in NumPy, small agents, filled buffers, a scripted env."""

import weakref
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import psdrl
from psdrl.agents.psdrl import lookahead
from psdrl.agents.psdrl.agent import PsdrlAgent
from psdrl.agents.psdrl.flat_model import FlatModel
from psdrl.agents.psdrl.lookahead import predict
from psdrl.agents.psdrl.models import Models
from psdrl.agents.psdrl.networks import TanhNet
from psdrl.agents.psdrl.oracle import Lookahead
from psdrl.agents.psdrl.settings import PsdrlConfig
from psdrl.agents.psdrl.synthetic import add_episode, agent_of
from psdrl.agents.psdrl.value import MinEnsemble
from psdrl.agents.psdrl.work import PsdrlWorkload
from psdrl.agents.psdrl.world_model import SampledModel, WorldModel
from psdrl.envs.vector import EnvSpec, State, Step, VectorEnv
from psdrl.replay.episodes import Replay
from psdrl.run.callbacks import Scalars

Array = NDArray[np.float64]
INPUTS = {"features": "tanh+inputs"}  # forward settings: the inputs are among the features
GRID: dict[str, Any] = {"grid": True, "forward": {"features": "tanh"}}
GRID_INPUTS: dict[str, Any] = {"grid": True, "forward": INPUTS}
# Makes packages look as if they were not installed: neither found nor importable.
BLOCKER = """
import importlib.machinery, sys
class Blocked(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in BLOCKED else super().find_spec(name, path, target)
sys.meta_path = [Blocked if finder is importlib.machinery.PathFinder else finder for finder in sys.meta_path]
"""


def vector_spec(size: int = 3, actions: int = 2) -> EnvSpec:
    return EnvSpec("test", "vector", (size,), "float32", actions, "test")


def small_config(**settings: Any) -> PsdrlConfig:
    """Tiny networks; `env` only names a run, the tests bring their own observations."""
    return psdrl.configure(env=settings.pop("env", "deepsea-4"), preset="debug", device="cpu", **settings)


def dotted_names(config: Any, prefix: str = "") -> list[str]:
    """Every setting, those of groups as group.name."""
    names = []
    for f in fields(config):
        value = getattr(config, f.name)
        names += dotted_names(value, f"{prefix}{f.name}.") if is_dataclass(value) else [prefix + f.name]
    return names


def small_models(config: PsdrlConfig, spec: EnvSpec, seed: int = 0) -> Models:
    """Networks in float64, drawn from a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Models(config, spec).double()


def small_agent(spec: EnvSpec | None = None, **settings: Any) -> PsdrlAgent:
    return agent_of(small_config(**settings), spec or vector_spec())


def filled_replay(lengths: list[int], capacity: int = 1000, size: int = 3, actions: int = 2, seed: int = 0) -> Replay:
    """Episodes of these lengths, every second one truncated."""
    replay = Replay(capacity, 1, (size,), "float32")
    rng = np.random.default_rng(seed)
    for i, length in enumerate(lengths):
        add_episode(replay, rng, length, i % 2 == 0, actions)
    return replay


def parameters_of(module: torch.nn.Module) -> dict[str, Array]:
    return {name: p.detach().double().numpy() for name, p in module.named_parameters()}


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def hand_hidden(model: WorldModel, z: Array, action: NDArray, h: Array) -> Array:
    """The GRU cell for z (n, Z), actions (n,), h (n, H)."""
    p = parameters_of(model.gru)
    x = np.concatenate([z, np.eye(model.num_actions)[action]], 1)
    inputs = np.split(x @ p["weight_ih"].T + p["bias_ih"], 3, axis=1)
    recurrent = np.split(h @ p["weight_hh"].T + p["bias_hh"], 3, axis=1)
    reset, update = sigmoid(inputs[0] + recurrent[0]), sigmoid(inputs[1] + recurrent[1])
    candidate = np.tanh(inputs[2] + reset * recurrent[2])
    return (1 - update) * candidate + update * h


def hand_features(model: WorldModel, next_hidden: Array, z: Array, action: NDArray) -> Array:
    """phi on [h', z, onehot(a)]: tanh layers, the last of which may be linear; perhaps the inputs as well."""
    assert isinstance(model, FlatModel)
    p = parameters_of(model.layers)
    x = inputs = np.concatenate([next_hidden, z, np.eye(model.num_actions)[action]], 1)
    count = len(model.layers)
    for i in range(count):
        x = x @ p[f"{i}.weight"].T + p[f"{i}.bias"]
        x = np.tanh(x) if i < count - 1 or model.tanh_features else x
    return np.concatenate([x, inputs], 1) if model.with_inputs else x


def hand_net(net: TanhNet | MinEnsemble, x: Array) -> Array:
    """Tanh layers and one linear output: (n, inputs) -> (n,); of several networks the smallest."""
    if isinstance(net, MinEnsemble):
        return np.min([hand_net(network, x) for network in net.networks()], 0)
    p = parameters_of(net.layers)
    count = len(net.layers)
    for i in range(count):
        x = x @ p[f"{i}.weight"].T + p[f"{i}.bias"]
        x = x if i == count - 1 else np.tanh(x)
    return x[:, 0]


def hand_returns(
    models: Models,
    weight: Array,
    bias: Array,
    z: Array,
    h: Array,
    discount: float,
    value: MinEnsemble,
    steps: int = 1,
) -> tuple[Array, Array]:
    """Eq. 6 and 7: Q_1 = r^ + gamma 1[omega < 0.5] V(z^, h') (n, A) and h' (n, A, H); for more steps
    Q_K = r^ + gamma 1[omega < 0.5] Q_{K-1}(z^, h', the action with the largest Q_1 there)."""
    returns, hidden = [], []

    def after(z: Array, h: Array) -> Array:
        if steps == 1:
            return hand_net(value, np.concatenate([z, h], 1))
        arguments = (models, weight, bias, z, h, discount, value)
        greedy = hand_returns(*arguments)[0].argmax(1)
        return hand_returns(*arguments, steps - 1)[0][np.arange(len(z)), greedy]

    for a in range(models.forward_model.num_actions):
        action = np.full(len(z), a)
        following = hand_hidden(models.forward_model, z, action, h)
        prediction = hand_features(models.forward_model, following, z, action) @ weight.T + bias
        alive = hand_net(models.termination, prediction[:, :-1]) < 0.5
        returns.append(prediction[:, -1] + discount * alive * after(prediction[:, :-1], following))
        hidden.append(following)
    return np.stack(returns, 1), np.stack(hidden, 1)


def count_steps(optimiser: torch.optim.Optimizer) -> list[int]:
    """A list that grows by one with each step of the optimiser."""
    steps: list[int] = []
    optimiser.register_step_post_hook(lambda *_: steps.append(1))
    return steps


class ListLog(Scalars):
    """Keeps what the training loop logs."""

    def __init__(self) -> None:
        self.lines: list[dict[str, float]] = []

    def scalars(self, step: int, values: dict[str, float]) -> None:
        self.lines.append({"step": step, **values})

    def steps_with(self, key: str) -> list[float]:
        return [line["step"] for line in self.lines if key in line]

    def values_of(self, key: str) -> list[float]:
        return [line[key] for line in self.lines if key in line]


@dataclass
class ScriptedEpisode:
    length: int
    end: str  # "terminated", "truncated" or "both"


class ScriptedEnv(VectorEnv):
    """Plays a script with next-step autoreset; observation [env, episode, t], reward 100 env + 10 episode + t."""

    def __init__(self, script: list[list[ScriptedEpisode]], num_actions: int = 2, offset: int = 0) -> None:
        self.script, self.num_envs, self.offset = script, len(script), offset  # number of the first environment
        self.spec = vector_spec(3, num_actions)
        self.taken: dict[tuple[int, int, int], int] = {}  # (env, episode, t) -> action
        self.calls = 0
        self._at = [(0, 0)] * self.num_envs
        self._ended = np.zeros(self.num_envs, bool)

    def _observation(self) -> NDArray:
        return np.array([(i, episode, t) for i, (episode, t) in enumerate(self._at, self.offset)], np.float32)

    def reset(self) -> NDArray:
        self._at = [(0, 0)] * self.num_envs
        self._ended[:] = False
        return self._observation()

    def send(self, actions: NDArray[np.int64]) -> None:
        self._actions = actions.copy()

    def recv(self) -> Step:
        self.calls += 1
        reward = np.zeros(self.num_envs, np.float32)
        terminated, truncated = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        started = self._ended.copy()
        for i, (episode, t) in enumerate(self._at):
            if started[i]:
                self._at[i] = (episode + 1, 0)
                continue
            plan = self.script[i][episode % len(self.script[i])]
            self.taken[self.offset + i, episode, t] = int(self._actions[i])
            reward[i] = 100 * (self.offset + i) + 10 * episode + t
            self._at[i] = (episode, t + 1)
            if t + 1 == plan.length:
                terminated[i], truncated[i] = plan.end in ("terminated", "both"), plan.end in ("truncated", "both")
        self._ended = terminated | truncated
        return Step(
            self._observation(), reward, terminated, truncated, started, self._ended, np.zeros(self.num_envs, bool)
        )

    def state(self) -> State:
        return {"at": [list(at) for at in self._at], "ended": self._ended.copy()}

    def restore(self, state: State) -> NDArray:
        self._at, self._ended = [(episode, t) for episode, t in state["at"]], np.array(state["ended"])
        return self._observation()

    def close(self) -> None:
        pass


def stored_episodes(replay: Replay) -> list[dict[str, NDArray]]:
    """The buffer's episodes, oldest first, read slot by slot."""
    episodes = []
    for start, length in replay.episodes:
        slots = [(start + i) % replay.num_slots for i in range(length + 1)]
        episodes.append(
            {
                "observations": replay.frames(torch.tensor(slots)).numpy(),
                "actions": replay.actions[slots[:-1]].numpy(),
                "rewards": replay.rewards[slots[:-1]].numpy(),
                "terminated": replay.terminated[slots[:-1]].numpy(),
            }
        )
    return episodes


@torch.no_grad()
def fast_lookahead(
    models: Models, sample: SampledModel, value: MinEnsemble, latents: torch.Tensor, hidden: torch.Tensor
) -> Lookahead:
    """`oracle.lookahead`, as far as `value` looks, by the operations that acting and planning use."""
    world = models.forward_model.fold(sample)
    ahead = predict(world, models.termination, latents, hidden)
    values = lookahead.Lookahead(world, models.termination, value).followed(ahead, latents.shape[1])
    returns = value.returns(ahead.rewards, ahead.omega, values)
    return Lookahead(returns, ahead.latents_hidden[..., latents.shape[1] :])


def largest_tensor(config: PsdrlConfig, spec: EnvSpec) -> float:
    """Bytes of the largest tensor an update may make, float32: a chunk at its widest (posterior chunks are float64),
    a batch of B * L states, the tables of latent states and of predictions, or the Gram matrix."""
    w, r = PsdrlWorkload(config, spec), config.replay
    k = w.features
    chunk = 4 * config.chunk_rows * max(3 * w.hidden + k, 2 * (w.latent + 1), 2 * k)
    batch = 4 * r.batch * (r.length + 1) * max(w.latent + max(w.hidden, spec.num_actions), 3 * w.hidden)
    tables = max(4 * r.capacity * 9 / 8 * w.latent, w.foreseen_bytes)
    return max(chunk, w.grid_bytes, batch, tables, 8 * k * max(k, w.latent + 1))


class Allocations(TorchDispatchMode):
    """Bytes of live storages that operations made, their peak, and the largest tensor."""

    def __init__(self):
        super().__init__()
        self.live = self.peak = self.largest = 0
        self.known: weakref.WeakSet = weakref.WeakSet()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage not in self.known:
                    self.known.add(storage)
                    self.live += storage.nbytes()
                    self.peak = max(self.peak, self.live)
                    self.largest = max(self.largest, storage.nbytes())
                    weakref.finalize(storage, self.release, storage.nbytes())
        return result

    def release(self, size):
        self.live -= size
