"""What an unknown flag may have meant."""

import difflib

from psdrl.errors import nearest

# What Stable-Baselines3, CleanRL, Dopamine and Dreamer call our settings, by the last part of our names.
ELSEWHERE: dict[str, tuple[str, ...]] = {
    "lr": ("learning-rate",),
    "alpha": ("learning-rate",),
    "optimizer-lr": ("learning-rate",),
    "total-timesteps": ("steps",),
    "total-steps": ("steps",),
    "timesteps": ("steps",),
    "n-timesteps": ("steps",),
    "num-steps": ("steps",),
    "num-iterations": ("steps",),
    "n-envs": ("num-envs",),
    "envs": ("num-envs",),
    "num-actors": ("num-envs",),
    "gamma": ("discount",),
    "discount-factor": ("discount",),
    "batch-size": ("batch",),
    "minibatch-size": ("batch",),
    "sequence-length": ("length",),
    "batch-length": ("length",),
    "seq-len": ("length",),
    "buffer-size": ("capacity",),
    "replay-size": ("capacity",),
    "memory-size": ("capacity",),
    "env-id": ("env", "game"),
    "env-name": ("env", "game"),
    "environment": ("env", "game"),
    "task": ("env", "game"),
    "rom": ("game",),
    "agent": ("algo",),
    "algorithm": ("algo",),
    "model": ("algo",),
    "config": ("preset",),
    "configs": ("preset",),
    "exp-name": ("logdir",),
    "log-dir": ("logdir",),
    "output-dir": ("logdir",),
    "outdir": ("logdir",),
    "save-dir": ("logdir",),
    "tensorboard-log": ("logdir",),
    "cuda": ("device",),
    "gpu": ("device",),
    "cpu": ("device",),
    "jit": ("compile",),
    "torch-compile": ("compile",),
    "amp": ("precision",),
    "dtype": ("precision",),
    "fp16": ("precision",),
    "bf16": ("precision",),
    "eval-freq": ("eval-every",),
    "eval-interval": ("eval-every",),
    "n-eval-episodes": ("eval-episodes", "episodes"),
    "num-eval-episodes": ("eval-episodes",),
    "save-freq": ("checkpoint-every",),
    "checkpoint-freq": ("checkpoint-every",),
    "save-every": ("checkpoint-every",),
    "train-freq": ("update-every", "every"),
    "train-frequency": ("update-every", "every"),
    "target-network-frequency": ("target-every",),
    "target-update-interval": ("target-every",),
    "tau": ("target-rate",),
    "learning-starts": ("random-steps",),
    "exploration-fraction": ("epsilon-steps", "epsilon"),
    "exploration-final-eps": ("epsilon",),
    "eps": ("epsilon",),
    "end-e": ("epsilon",),
    "sticky-actions": ("sticky",),
    "repeat-action-probability": ("sticky",),
    "hidden-size": ("units",),
    "hidden-dim": ("units",),
    "num-layers": ("layers",),
    "n-layers": ("layers",),
    "render": ("video",),
    "record": ("video",),
    "capture-video": ("video",),
    "n-episodes": ("episodes",),
    "num-episodes": ("episodes",),
    "output": ("json",),
    "checkpoint": ("resume",),
    "load": ("resume",),
}


def suggestion(flag: str, known: list[str]) -> str:
    """A hint for an unknown flag: what it is called here, the flags that end as it does, or those that look like it."""
    bare = flag.lstrip("-").replace("_", "-").lower()
    leaf = bare.rpartition(".")[2]
    for names in (ELSEWHERE.get(bare, ()), (leaf,), ELSEWHERE.get(leaf, ())):
        found = [name for name in known if name[2:].rpartition(".")[2] in names]
        if "." in bare:  # the group is there, perhaps misspelt
            found = difflib.get_close_matches("--" + bare, found, n=1, cutoff=0.6) or found
        if found:
            return f"; did you mean {_either(found)}?"
    return nearest("--" + bare, known)


def _either(flags: list[str]) -> str:
    """At most four of them: `--a, --b or --c`."""
    shown = flags[:4]
    return " or ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
