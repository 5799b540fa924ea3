"""Early stopping: Ray Tune's ASHA (asynchronous successive halving) decides which settings are not worth their steps.

Scores of games cannot be compared, so each environment has an ASHA of its own. What is compared at a rung is the mean
of all evaluations up to there, the paper's measure. Decisions depend on which run arrives at a rung first, so a sweep
with ASHA, unlike one without, may end other runs when it is disturbed; those that are not ended are the same to the
bit."""

import importlib.util
from types import SimpleNamespace
from typing import Any

from psdrl.errors import UserError
from psdrl.sweep.plan import Case
from psdrl.sweep.schedule import Task


class Asha:
    """Asked after each evaluation of a run: is it to go on?"""

    def __init__(self, cases: list[Case], grace: int, factor: float) -> None:
        """grace: steps before the first decision; of the runs at a rung one in `factor` goes on."""
        self._check(cases, grace, factor)
        from ray.tune.schedulers import ASHAScheduler, TrialScheduler

        self._stop = TrialScheduler.STOP
        self._brackets: dict[str, Any] = {}
        self._cases = {case.name: case for case in cases}
        self._told: dict[str, int] = {}  # evaluations that ASHA knows of
        for case in cases:
            steps = case.config.steps
            first = grace or max(case.config.eval_every, steps // 27)
            options: dict[str, Any] = {"max_t": steps, "grace_period": first, "reduction_factor": factor}
            if case.env not in self._brackets:
                self._brackets[case.env] = ASHAScheduler("step", "mean", "max", stop_last_trials=False, **options)
            self._brackets[case.env].on_trial_add(None, SimpleNamespace(trial_id=case.name))

    @staticmethod
    def _check(cases: list[Case], grace: int, factor: float) -> None:
        if importlib.util.find_spec("ray") is None or importlib.util.find_spec("tensorboardX") is None:
            raise UserError('--asha is Ray Tune\'s: pip install "psdrl[sweep]".')
        if factor <= 1:
            raise UserError(f"--asha-factor is {factor} but must be greater than 1.")
        settings: dict[str, set[str]] = {}
        for case in cases:
            settings.setdefault(case.env, set()).add(case.setting)
        for case in cases:
            if len(settings[case.env]) < 2:
                raise UserError(f"--asha compares settings, and {case.env} has only one: add --grid or --algos.")
            if not case.config.eval_every:
                raise UserError("--asha compares evaluations: set --eval-every.")
            if grace > case.config.steps:
                raise UserError(f"--asha-grace is {grace}, but runs have {case.config.steps} steps: use fewer.")

    def goes_on(self, task: Task) -> bool:
        """Tell ASHA of the evaluations that it does not know yet; False: the run is to end."""
        name = task.job.name
        known = self._told.get(name, 0)
        self._told[name] = len(task.evaluations)
        for count in range(known + 1, len(task.evaluations) + 1):
            step = task.evaluations[count - 1][0]
            mean = sum(value for _, value in task.evaluations[:count]) / count
            trial, result = SimpleNamespace(trial_id=name), {"step": step, "mean": mean}
            if self._brackets[self._cases[name].env].on_trial_result(None, trial, result) == self._stop:
                return step >= task.steps
        return True
