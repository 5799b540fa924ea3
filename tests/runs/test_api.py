"""From Python: train, load, act, save; gymnasium objects as environments."""

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import psdrl
from psdrl import cli
from psdrl.envs import make_env
from psdrl.errors import UserError
from tests.conftest import Run

SMALL: dict[str, Any] = {"preset": "debug", "device": "cpu", "steps": 260, "eval_every": 0}


class Corridor(gymnasium.Env):
    """Walk right for nine steps; the reward is the action. Knows whether it was closed."""

    observation_space = spaces.Box(0, 1, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.closed, self.seeds, self.t = False, [], 0  # type: ignore[var-annotated]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.t = 0
        return self._observation(), {}

    def _observation(self) -> np.ndarray:
        return np.array([self.t / 9, 1, 0], np.float32)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.t += 1
        return self._observation(), float(action), self.t == 9, False, {}

    def close(self) -> None:
        self.closed = True


@pytest.fixture(scope="module")
def trained() -> psdrl.Agent:
    return psdrl.train("deepsea-4", **SMALL)


def hidden(policy: Any) -> Any:
    """The policy's own hidden states."""
    return policy._actor.hidden


def test_train_by_name(trained: psdrl.Agent) -> None:
    assert (trained.step, trained.updates) == (260, 1)
    assert trained.config.env == "deepsea-4"
    assert psdrl.configure(game="Pong", device="cpu").game == "Pong"
    assert len(trained.evaluate(3)) == 3


def test_act_is_what_evaluation_plays(trained: psdrl.Agent) -> None:
    """A policy and the agent's own player of the same stream choose the same actions, episode after episode."""
    env = make_env(trained.config, num_envs=1, stream=5)
    policy = trained.policy(epsilon=0.5, seed=3)
    other = trained.core.player(20_003, None, 1, 0.5)
    observation = env.reset()
    chosen = []
    for _ in range(60):
        action = policy(observation[0])
        assert isinstance(action, int)
        assert action == other.act(observation)[0]
        chosen.append(action)
        step = env.step(np.array([action]))
        observation = step.observation
        if step.terminated[0] or step.truncated[0]:
            observation = env.step(np.zeros(1, np.int64)).observation
            policy.reset()
            other.start(np.ones(1, bool))
    assert len(set(chosen)) == 2, "one action only: the comparison shows nothing"


def test_policies_have_hidden_states_of_their_own(trained: psdrl.Agent) -> None:
    one, two, observation = trained.policy(epsilon=0.0), trained.policy(epsilon=0.0), np.eye(16, dtype=np.uint8)[0]
    training = trained.core.actor.hidden.clone()
    one(observation)
    assert hidden(one).abs().max() > 0
    assert hidden(two).abs().max() == 0
    assert trained.core.actor.hidden.equal(training)
    one.reset()
    assert hidden(one).abs().max() == 0


def test_a_batch_resets_where_episodes_begin(trained: psdrl.Agent) -> None:
    policy = trained.policy(num_envs=3)
    actions = policy(np.eye(16, dtype=np.uint8)[:3])
    assert actions.shape == (3,)
    policy.reset([False, True, False])
    assert [bool(h.any()) for h in hidden(policy)] == [True, False, True]


@pytest.mark.parametrize("algo", ["psdrl", "bootstrap", "successor", "dreamer"])
def test_epsilon_one_is_random(algo: str) -> None:
    agent = psdrl.Agent(
        psdrl.configure(env="deepsea-4", algo=algo, device="cpu"), make_env(psdrl.configure(env="deepsea-4")).spec
    )
    for name in agent.core.POLICIES:
        calm, random = (agent.policy(num_envs=400, policy=name, epsilon=e) for e in (0.0, 1.0))
        observations = np.tile(np.eye(16, dtype=np.uint8)[0], (400, 1))
        assert 150 < random(observations).sum() < 250, name
        first = calm(observations)
        if name in ("vote", "greedy"):
            assert len(set(first)) == 1, "all alike, as nothing is random"


def test_the_agents_own_act(trained: psdrl.Agent) -> None:
    observation = np.eye(16, dtype=np.uint8)[0]
    assert trained.act(observation, start=True) in (0, 1)
    first = hidden(trained._act).clone()
    trained.act(observation)
    assert not hidden(trained._act).equal(first)


@pytest.mark.parametrize(
    ("observation", "problem"),
    [
        (np.zeros(15, np.uint8), r"uint8 \(15,\), but this agent sees uint8 \(16,\)"),
        (np.full(16, 0.5), "float64"),
        (np.full(16, "a"), "<U1"),
    ],
)
def test_an_observation_that_does_not_fit(trained: psdrl.Agent, observation: Any, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        trained.act(observation)


def test_wrong_arguments_of_a_policy(trained: psdrl.Agent) -> None:
    with pytest.raises(UserError, match="policy 'best' is none of psdrl's: sample"):
        trained.policy(policy="best")
    with pytest.raises(UserError, match="epsilon is 2 but must lie between 0 and 1"):
        trained.policy(epsilon=2)


@pytest.mark.parametrize("kind", [str, Path])
def test_save_and_load(trained: psdrl.Agent, kind: Any, tmp_path: Path, cli_run: Run) -> None:
    """The same policy, from Python and from the command line."""
    path = trained.save(kind(tmp_path / "saved"))
    other = psdrl.load(kind(path), device="cpu")
    assert (other.step, other.updates, other.spec) == (trained.step, trained.updates, trained.spec)
    observations = np.eye(16, dtype=np.uint8)
    one, two = trained.policy(num_envs=16), other.policy(num_envs=16)
    assert [one(observations).tolist() for _ in range(5)] == [two(observations).tolist() for _ in range(5)]
    assert other.evaluate(4) == trained.evaluate(4)
    assert cli_run("evaluate", path, "--episodes", 2, "--device", "cpu").code == 0


def test_save_spares_what_is_not_its_own(trained: psdrl.Agent, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(UserError, match="holds something else: save into an empty or a new directory"):
        trained.save(tmp_path)


def test_a_loaded_agent_trains_on(tmp_path: Path) -> None:
    psdrl.train("deepsea-4", logdir=tmp_path / "run", **SMALL)
    agent = psdrl.load(tmp_path / "run", device="cpu")
    env = make_env(agent.config)
    with pytest.raises(UserError, match="loaded without its replay buffer"):
        agent.train(env)
    agent = psdrl.load(tmp_path / "run", device="cpu", replay=True)
    transitions = agent.core.replay.transitions
    agent.train(env, steps=520)
    env.close()
    assert agent.step == 520
    assert agent.updates == 2
    assert agent.core.replay.transitions > transitions > 200
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss/value" in line] == [250, 500]
    assert psdrl.load(tmp_path / "run").step == 520


def test_the_same_logdir_continues(tmp_path: Path) -> None:
    first = psdrl.train("deepsea-4", logdir=tmp_path, **SMALL)
    again = psdrl.train("deepsea-4", logdir=tmp_path, **(SMALL | {"steps": 300}))
    assert (first.step, again.step) == (260, 300)
    assert again.updates == 1


def test_one_environment_object() -> None:
    env = Corridor()
    agent = psdrl.train(env, **SMALL)
    assert agent.step == 260
    assert not env.closed, "it belongs to the user"
    assert agent.spec.shape == (3,)
    assert all(0 <= score <= 9 for score in agent.evaluate(2, env=env))
    assert not env.closed
    with pytest.raises(UserError, match="play it from Python"):
        agent.evaluate(1)


def test_an_object_is_not_evaluated_and_that_is_said() -> None:
    with pytest.warns(
        UserWarning, match="not evaluated during training, because an object cannot be made a second time"
    ):
        psdrl.train(Corridor(), **(SMALL | {"eval_every": 100}))


@pytest.mark.filterwarnings("error::UserWarning")
def test_a_function_makes_environments_for_training_and_evaluation() -> None:
    made: list[Corridor] = []

    def make() -> Corridor:
        made.append(Corridor())
        return made[-1]

    scores: list[list[float]] = []

    class Scores(psdrl.Callback):
        def on_evaluation(self, run: Any, returns: list[float]) -> None:
            scores.append(returns)

    agent = psdrl.train(make, Scores(), num_envs=2, **(SMALL | {"eval_every": 100, "eval_episodes": 2}))
    assert agent.config.num_envs == 2
    assert len(scores) == 2
    assert all(len(returns) == 2 for returns in scores)
    assert all(env.closed for env in made), "they were made here"
    used = [env.seeds[0] for env in made if env.seeds]
    assert len(set(used)) == len(used) == 4, f"two train and two evaluate, each with a seed of its own: {used}"


@pytest.mark.filterwarnings("error::UserWarning")
def test_a_registered_environment_with_wrappers_is_made_again() -> None:
    env = gymnasium.wrappers.TimeLimit(gymnasium.make("CartPole-v1"), 7)
    agent = psdrl.train(env, **(SMALL | {"eval_every": 100}))
    assert max(agent.evaluate(3)) <= 7, "evaluation has the user's wrapper"
    env.close()


def test_a_vector_of_environments() -> None:
    envs = gymnasium.vector.SyncVectorEnv([Corridor] * 3)
    agent = psdrl.train(envs, **SMALL)
    assert agent.config.num_envs == 3
    assert 260 <= agent.step < 263
    envs.close()


def test_images_get_the_preset_for_images() -> None:
    class Picture(Corridor):
        observation_space = spaces.Box(0, 255, (64, 64, 3), np.uint8)  # type: ignore[arg-type]

        def _observation(self) -> np.ndarray:
            return np.full((64, 64, 3), 20 * self.t, np.uint8)

    agent = psdrl.train(Picture(), device="cpu", steps=5)
    assert agent.config.preset == "cpu"
    assert agent.spec.kind == "image"
    assert psdrl.train(Corridor(), device="cpu", steps=5).config.preset == "control"


def test_another_environment_than_the_agents_is_refused(trained: psdrl.Agent) -> None:
    with pytest.raises(UserError, match="This agent was made for"):
        trained.train(Corridor())


def test_a_run_of_an_object_is_loaded_but_not_played_by_name(tmp_path: Path, cli_run: Run) -> None:
    psdrl.train(Corridor, logdir=tmp_path / "run", **SMALL)
    agent = psdrl.load(tmp_path / "run", device="cpu")
    assert agent.policy()(np.zeros(3)) in (0, 1)
    assert len(agent.evaluate(2, env=Corridor)) == 2
    outcome = cli_run("evaluate", tmp_path / "run", "--device", "cpu")
    assert outcome.code == 2
    assert "python:Corridor was an object in Python" in outcome.err


def test_progress_and_callbacks_from_python(capsys: pytest.CaptureFixture[str]) -> None:
    psdrl.train("deepsea-4", progress=True, **SMALL)
    assert "sequence length L = 4 from step 250 on" in capsys.readouterr().out


def test_a_run_written_from_python_is_the_run_of_the_command_line(tmp_path: Path) -> None:
    psdrl.train("deepsea-4", logdir=tmp_path / "python", **SMALL)
    flags = ["--env", "deepsea-4", "--preset", "debug", "--device", "cpu", "--steps", "260", "--eval-every", "0"]
    assert cli.train([*flags, "--logdir", str(tmp_path / "flags")]) == 0

    def lines(name: str) -> list[dict[str, float]]:
        read = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        return [{key: value for key, value in line.items() if not key.startswith("time/")} for line in read]

    assert lines("python") == lines("flags")
    assert len(lines("python")) > 60


def test_a_users_callback_continues_too(tmp_path: Path) -> None:
    class Count(psdrl.Callback):
        def __init__(self) -> None:
            self.episodes = self.at_start = 0

        def on_start(self, run: Any) -> None:
            self.at_start = self.episodes

        def on_episode(self, run: Any, episode: Any) -> None:
            self.episodes += 1

        def state(self) -> dict[str, Any]:
            return {"episodes": self.episodes}

        def resume(self, state: dict[str, Any]) -> None:
            self.episodes = state["episodes"]

    first, second = Count(), Count()
    psdrl.train("deepsea-4", first, logdir=tmp_path, **SMALL)
    psdrl.train("deepsea-4", second, logdir=tmp_path, **(SMALL | {"steps": 300}))
    assert first.episodes == second.at_start == 65
    assert second.episodes > 70
