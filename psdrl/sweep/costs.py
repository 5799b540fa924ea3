"""What a sweep will cost: the cost model's seconds of every case, before any of it is run."""

import json
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from psdrl.cost import forecast as cost
from psdrl.errors import UserError
from psdrl.run.records import flat
from psdrl.sweep.plan import Case

UNKNOWN = 0.01  # seconds per step of an agent whose work is not described, if all are such
PLACE = ("game", "env", "seed", "logdir")
NUMBERS = ("prior", "noise", "discount", "learning_rate", "prior_scale", "epsilon")  # they change no work


class Prediction(NamedTuple):
    """Seconds of each case by its name, alone on one device, and what they rest on."""

    seconds: dict[str, float]
    device: str
    measured: bool  # rates of this machine, measured now; else from a data sheet
    unknown: list[str]  # agents whose work is not described

    def __str__(self) -> str:
        return f"rates of {self.device} measured now" if self.measured else f"predicted, data sheet of {self.device}"


def predict(wanted: Iterable[Case], device: str) -> Prediction:
    """The seconds of all cases; `device`: here, a100 or h100. Cases that differ by the game's name only are one."""
    cases: list[Case] = []
    known: dict[str, float | None] = {}
    seconds: dict[str, float | None] = {}
    for case in wanted:
        cases.append(case)
        key = _work(case)
        if key not in known:
            known[key] = _seconds(case, device)
        seconds[case.name] = known[key]
    by_step = [s / case.config.steps for case in cases if (s := seconds[case.name]) is not None]
    usual = sum(by_step) / len(by_step) if by_step else UNKNOWN
    unknown = sorted({case.algo for case in cases if seconds[case.name] is None})
    whole = {case.name: usual * case.config.steps if (s := seconds[case.name]) is None else s for case in cases}
    return Prediction(whole, "this CPU" if device == "here" else device, device == "here", unknown)


def _work(case: Case) -> str:
    """What the work of a case depends on."""
    whole = flat(case.config.to_dict()).items()
    settings = {name: v for name, v in whole if name not in PLACE and name.rpartition(".")[2] not in NUMBERS}
    spec = case.spec
    return json.dumps([settings, spec.kind, list(spec.shape), spec.num_actions, spec.grid], sort_keys=True)


def _seconds(case: Case, device: str) -> float | None:
    try:
        work = cost.workload(case.config, case.spec)
    except UserError:
        return None
    chosen = cost.device_for(device, work, case.config.precision, case.config.cuda_graphs)
    return 3600 * cost.forecast(case.config, case.spec, chosen, work).hours


def show(console: Console, cases: list[Case], prediction: Prediction, gpus: float) -> None:
    """Hours by agent, and in all."""
    unit = "GPU hours" if gpus else "core hours"
    share = gpus or 1.0
    groups: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        groups[case.algo].append(case)
    table = Table(title=f"Forecast ({prediction})", title_justify="left", box=None, pad_edge=False)
    for column in ("agent", "runs", "steps each", "hours per run", unit):
        table.add_column(column, justify="left" if column == "agent" else "right")
    total = 0.0
    for algo, several in groups.items():
        hours = sum(prediction.seconds[case.name] for case in several) / 3600
        total += share * hours
        steps = " to ".join(f"{n:,}" for n in sorted({c.config.steps for c in several})[:: max(1, _last(several))])
        table.add_row(algo, str(len(several)), steps, f"{hours / len(several):.3g}", f"{share * hours:,.4g}")
    table.add_row("total", str(len(cases)), "", "", f"{total:,.4g}")
    console.print(table, highlight=False)
    if prediction.unknown:
        console.print(f"No cost model of {', '.join(prediction.unknown)}: taken to cost what the others do, by step.")


def _last(cases: list[Case]) -> int:
    """The distance between the smallest and the largest number of steps, in a sorted list of them."""
    return len({case.config.steps for case in cases}) - 1


def hours(prediction: Prediction, gpus: float) -> float:
    """GPU hours, or core hours without GPUs."""
    return (gpus or 1.0) * sum(prediction.seconds.values()) / 3600
