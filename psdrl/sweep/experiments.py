"""The paper's experiments, and ours, by name: which runs they consist of, at full size and small."""

from dataclasses import dataclass
from typing import Any, Literal

from psdrl.agents.registry import AGENTS
from psdrl.envs.atari import GAMES
from psdrl.errors import UserError, nearest
from psdrl.sweep import grid
from psdrl.sweep.plan import SIX, Block, Case

Scale = Literal["paper", "small"]
PAPER = ("--preset", "paper", "--steps", "1000000", "--eval-every", "10000", "--eval-episodes", "1")
SMALL = ("--preset", "cpu", "--steps", "30000", "--eval-every", "3000", "--eval-episodes", "1")
SEVEN = (*SIX, "Pong")  # of the paper's table of run times
BASELINES = ("bootstrap", "successor", "dreamer")
# The appendix's search sets. What it calls a likelihood prior is B+P's factor on the prior network and SU's beta.
GRIDS = {
    "psdrl": (
        "posterior.prior-latent=1e1,1e3,1e5",
        "posterior.prior-reward=1e1,1e3,1e5",
        "value.discount=0.99,0.999",
        "replay.batch=125,250",
    ),
    "bootstrap": ("network.prior-scale=1,3,10", "learning.every=2,4", "learning.batch=32,64"),
    "successor": ("posterior.beta=1e-1,1e-3,1e-5", "learning.every=2,4", "learning.batch=32,64"),
    "dreamer": ("learning.every=4,8,12",),
}
# Around the values of the preset cpu, a factor of 100 apart as in the paper's.
SMALL_GRIDS = {
    "psdrl": ("posterior.prior-latent=1e-4,1e-2,1", "value.discount=0.98,0.99"),
    "bootstrap": ("network.prior-scale=1,3,10",),
    "successor": ("posterior.beta=1e-1,1e-3,1e-5",),
    "dreamer": ("learning.every=4,8,12",),
}


@dataclass(frozen=True)
class Experiment:
    """An experiment at one size."""

    name: str
    what: str  # a sentence for the page
    blocks: tuple[Block, ...]
    notes: tuple[str, ...] = ()  # what a reader must know: what is missing or chosen by us
    alone: bool = False  # runs must not share a GPU: their time is the result
    large: bool = False  # at this size it needs GPUs


def experiment(name: str, scale: Scale) -> Experiment:
    """The experiment of this name."""
    if name not in NAMES:
        raise UserError(f"There is no experiment {name!r}{nearest(name, NAMES) or f': use one of {_listed()}.'}")
    return NAMES[name](scale)


def small_note(name: str, cases: list[Case]) -> str:
    """What a page of a small version says first."""
    envs, seeds = {case.env for case in cases}, {case.seed for case in cases}
    steps = sorted({case.config.steps for case in cases})
    many = f"{steps[0]:,} steps" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,} steps"
    presets = " and ".join(sorted({case.config.preset for case in cases}))
    return (
        f"SMALL VERSION of {name}: {_several(envs, 'environment')}, {_several(seeds, 'seed')}, {many}, preset "
        f"{presets}. It shows that the experiment works; its numbers are not the paper's, nor to be compared with them."
    )


def _several(things: set[Any], name: str) -> str:
    return f"{len(things)} {name}{'s' if len(things) > 1 else ''}"


def _listed() -> str:
    return ", ".join(NAMES)


def present(algos: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The agents that there are, and a sentence for those that there are not."""
    there = tuple(algo for algo in algos if algo in AGENTS)
    missing = [algo for algo in algos if algo not in AGENTS]
    note = f"Missing: {' and '.join(missing)}, which this version does not have."
    return there, (note,) if missing else ()


def _table_1(scale: Scale) -> Experiment:
    algos, notes = present(("psdrl", *BASELINES))
    if scale == "paper":
        block = Block(GAMES, algos, (0, 1, 2), (), PAPER)
    else:
        block = Block(SIX, algos, (0,), (), SMALL)
    what = "Table 1: PSDRL and its baselines on Atari."
    return Experiment("table-1", what, (block,), notes, large=scale == "paper")


def _ablation(name: str, what: str, algos: tuple[str, ...], scale: Scale) -> Experiment:
    seeds, flags = ((0, 1, 2), PAPER) if scale == "paper" else ((0,), SMALL)
    note = "The paper's text does not name the games of this figure: these are the six that it was tuned on."
    return Experiment(name, what, (Block(SIX, algos, seeds, (), flags),), (note,), large=scale == "paper")


def _posterior(scale: Scale) -> Experiment:
    what = "Ablation: posterior sampling against two epsilon-greedy schemes."
    return _ablation("figure-ablation-posterior", what, ("psdrl", "egreedy-exploit", "egreedy-explore"), scale)


def _value(scale: Scale) -> Experiment:
    what = "Ablation: a continual value network against a new one in every update."
    return _ablation("figure-ablation-value", what, ("psdrl", "fresh-value"), scale)


def _runtime(scale: Scale) -> Experiment:
    algos, notes = present(("psdrl", *BASELINES))
    seeds, flags = ((0, 1, 2), PAPER) if scale == "paper" else ((0,), SMALL)
    envs = SEVEN if scale == "paper" else SIX
    what = "Run times of 1,000,000 steps, in the appendix's table on an A100."
    block = Block(envs, algos, seeds, (), flags)
    return Experiment("table-runtime", what, (block,), notes, alone=True, large=scale == "paper")


def _grid_search(scale: Scale) -> Experiment:
    algos, notes = present(("psdrl", *BASELINES))
    sets = GRIDS if scale == "paper" else SMALL_GRIDS
    flags = PAPER if scale == "paper" else (*SMALL[:3], "10000", "--eval-every", "1000")
    blocks = tuple(Block(SIX, (algo,), (0,), tuple(grid.parse(sets[algo])), flags) for algo in algos if algo in sets)
    without = [algo for algo in algos if algo not in sets]
    notes += (f"No search set of {' and '.join(without)} is known here.",) if without else ()
    notes += ("The paper does not say how many seeds its grid search had: one here. The table is settings.csv.",)
    what = "The appendix's grid search over the six tuning games, by mean evaluation return."
    return Experiment("grid-search", what, blocks, notes, large=scale == "paper")


def _deepsea(scale: Scale) -> Experiment:
    sizes, seeds = ((10, 14, 20, 30), (0, 1, 2, 3, 4)) if scale == "paper" else ((5, 8, 10), (0,))
    envs = tuple(f"deepsea-{size}" for size in sizes)
    algos, notes = present(("psdrl", "egreedy-exploit", "egreedy-explore", *BASELINES))
    what = "DeepSea, which the paper does not have: one rewarded path of N steps in 2^N."
    return Experiment("deepsea", what, (Block(envs, algos, seeds, (), ("--device", "cpu")),), notes)


NAMES = {
    "table-1": _table_1,
    "figure-ablation-posterior": _posterior,
    "figure-ablation-value": _value,
    "table-runtime": _runtime,
    "grid-search": _grid_search,
    "deepsea": _deepsea,
}
