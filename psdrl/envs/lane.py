"""One gymnasium environment of a vector: it starts its episodes itself, survives faults, and can be restored.

Restored directly, if it has `state_dict` and `load_state_dict`, as DeepSea and MinAtar have. Any other one is played
again: the generator as it was before the running episode began, a reset, the episode's actions. A checksum over what
the episode showed tells whether it came out the same."""

import contextlib
import copy
import struct
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import wrappers
from numpy.typing import NDArray

from psdrl.envs.observations import Checked, Converted, Unfit
from psdrl.envs.vector import EnvSpec, State
from psdrl.errors import UserError

Env = gymnasium.Env[Any, Any]
STATELESS = (
    wrappers.OrderEnforcing,
    wrappers.PassiveEnvChecker,
    wrappers.TransformAction,
    Checked,
    Converted,
)


class Row(NamedTuple):
    """Outcome of one step of one environment."""

    observation: NDArray
    reward: float
    terminated: bool
    truncated: bool
    started: bool = False
    failed: bool = False


class Mark(NamedTuple):
    """All that a lane needs to get back to this moment; holds references, so it costs next to nothing."""

    seed: int
    generator: dict[str, Any] | None  # of np_random before the episode's reset; None: the episode began with the seed
    actions: list[int]
    length: int  # actions of the episode so far: the list grows
    checksum: int
    observation: NDArray
    done: bool
    counts: tuple[int, int, int]
    own: State | None


class Lane:
    """`make` makes the environment, again after a fault; `restarts` bounds how often in a row, without an episode that
    ends in between. `env`: one that is made already."""

    def __init__(
        self, make: Callable[[], Env], spec: EnvSpec, seed: int, restarts: int = 0, env: Env | None = None
    ) -> None:
        self._make, self.spec, self._first_seed, self._restarts = make, spec, seed, restarts
        self.env = env or make()
        self.faults: list[str] = []

    def reset(self) -> NDArray:
        """First observation of the first episode, from the seed."""
        self._failures = self._in_a_row = self._episode = 0
        self._seed = self._first_seed
        try:
            return self._begin(self._seed)
        except Exception as error:
            raise UserError(f"{self._sentence(error)}.") from error

    def step(self, action: np.int64) -> Row:
        """The outcome of an action, or the start of the next episode."""
        try:
            if self._done:
                return Row(self._begin(None), 0.0, False, False, started=True)
            return self._play(action)
        except Exception as error:
            return self._restart(error)

    def send(self, action: np.int64) -> None:
        """Take this action in `recv`."""
        self._action = action

    def recv(self) -> Row:
        """The outcome of the action sent."""
        return self.step(self._action)

    def _begin(self, seed: int | None) -> NDArray:
        """Start an episode; remember how."""
        self._episode += 1
        self._actions: list[int] = []
        self._own = has_own_state(self.env)
        self._generator = None if seed is not None or self._own else copy.deepcopy(_generator(self.env).state)
        observation, _ = self.env.reset(seed=seed)
        self._checksum, self._done = 0, False
        return self._note(observation, 0.0)

    def _play(self, action: np.int64) -> Row:
        self._actions.append(int(action))
        observation, reward, terminated, truncated, _ = self.env.step(action)
        row = Row(self._note(observation, float(reward)), float(reward), bool(terminated), bool(truncated))
        self._done = row.terminated or row.truncated
        if self._done:
            self._in_a_row = 0
        return row

    def _note(self, observation: Any, reward: float) -> NDArray:
        """The observation in its final form, a copy: an environment may reuse its memory."""
        self._observation = np.array(observation, self.spec.dtype).reshape(self.spec.shape)
        if not self._own:
            if console := getattr(self.env.unwrapped, "ale", None):  # its memory shows more than a frame
                self._checksum = zlib.crc32(console.getRAM().data, self._checksum)
            self._checksum = zlib.crc32(self._observation.data, zlib.crc32(struct.pack("d", reward), self._checksum))
        return self._observation

    def _restart(self, error: Exception) -> Row:
        """Discard the episode and the environment; start anew, from a seed of its own."""
        while True:
            sentence = self._sentence(error)
            self._failures, self._in_a_row = self._failures + 1, self._in_a_row + 1
            if self._in_a_row > self._restarts:
                again = f", {self._in_a_row} times without an episode that ended" if self._restarts else ""
                raise UserError(f"{sentence}{again}: mend the environment, or see --env-restarts.") from error
            self.faults.append(f"{sentence}; its episode is discarded")
            with contextlib.suppress(Exception):
                self.env.close()
            self._seed = int(np.random.SeedSequence([self._first_seed, self._failures]).generate_state(1)[0]) >> 1
            try:
                self.env = self._make()
                return Row(self._begin(self._seed), 0.0, False, False, started=True, failed=True)
            except Exception as next_error:
                error = next_error

    def _sentence(self, error: Exception) -> str:
        """What went wrong, where."""
        what = str(error) if isinstance(error, Unfit) else f"raised {type(error).__name__}: {error}".rstrip(": ")
        return f"{self.spec.name} {what} at step {len(self._actions)} of its episode {self._episode}"

    def mark(self) -> Mark:
        """This moment."""
        counts = (self._failures, self._in_a_row, self._episode)
        own = _own_state(self.env) if self._own else None
        begun = (self._seed, self._generator, self._actions, len(self._actions))
        return Mark(*begun, self._checksum, self._observation, self._done, counts, own)

    def state(self, mark: Mark | None = None) -> State:
        """What `restore` needs, as of `mark` or now."""
        state: State = (mark or self.mark())._asdict()
        length = state.pop("length")
        return state | {
            "actions": np.array([] if state["own"] else state["actions"][:length], np.int32),
            "counts": list(state["counts"]),
        }

    def restore(self, state: State) -> NDArray | None:
        """The observation of `state`, from which the environment goes on; None if it does not play as it did."""
        self._failures, self._in_a_row, self._episode = state["counts"]
        self._seed, self._episode = state["seed"], self._episode - 1
        try:
            same = self._load(state) if state["own"] else self._replay(state)
        except Exception:  # whatever a user's environment does when it is played otherwise than before
            return None
        return self._observation if same else None

    def _load(self, state: State) -> bool:
        self._begin(self._seed)
        self.env.unwrapped.load_state_dict(state["own"]["env"])  # type: ignore[attr-defined]
        for limit, elapsed in zip(_layers(self.env, wrappers.TimeLimit), state["own"]["elapsed"], strict=True):
            limit._elapsed_steps = elapsed
        self._observation, self._done = np.array(state["observation"], self.spec.dtype), bool(state["done"])
        return self._observation.shape == self.spec.shape

    def _replay(self, state: State) -> bool:
        self._begin(self._seed)
        if state["generator"] is not None:
            _generator(self.env).state = state["generator"]
            self._episode -= 1
            self._begin(None)
        for action in state["actions"].tolist():
            if self._done:
                return False
            self._play(np.int64(action))
        self._in_a_row = state["counts"][1]
        return self._checksum == state["checksum"] and self._done == state["done"]

    def lives(self) -> int:
        """Lives left in an Atari game."""
        return self.env.unwrapped.ale.lives()  # type: ignore[attr-defined]

    def labels(self) -> dict[str, float]:
        """The console's memory, or the `state` that classic control problems have."""
        inside = self.env.unwrapped
        if console := getattr(inside, "ale", None):
            return {f"ram {i}": float(byte) for i, byte in enumerate(console.getRAM())}
        state = getattr(inside, "state", None)
        numbers = np.asarray(() if state is None else state)
        kept = numbers.ravel() if numbers.dtype.kind in "biuf" else ()
        return {f"state {i}": float(x) for i, x in enumerate(kept)}

    def render(self) -> Any:
        """A picture, if made for it."""
        return self.env.render()

    def close(self) -> None:
        """Free what the environment holds."""
        self.env.close()


def _generator(env: Env) -> Any:
    return env.unwrapped.np_random.bit_generator


def _layers(env: Env, kind: Any = gymnasium.Wrapper) -> list[Any]:
    """The wrappers of this kind around an environment, outermost first."""
    found = []
    while isinstance(env, gymnasium.Wrapper):
        found += [env] if isinstance(env, kind) else []
        env = env.env
    return found


def has_own_state(env: Env) -> bool:
    """Whether it has `state_dict` and `load_state_dict`, and no wrapper around it has more than a count of steps."""
    inner = env.unwrapped
    own = callable(getattr(inner, "state_dict", None)) and callable(getattr(inner, "load_state_dict", None))
    return own and all(isinstance(layer, (*STATELESS, wrappers.TimeLimit)) for layer in _layers(env))


def _own_state(env: Env) -> State:
    elapsed = [limit._elapsed_steps for limit in _layers(env, wrappers.TimeLimit)]
    return {"env": env.unwrapped.state_dict(), "elapsed": elapsed}  # type: ignore[attr-defined]
