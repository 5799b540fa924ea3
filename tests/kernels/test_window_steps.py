"""Windows of truncated backpropagation by csrc/: against autograd and torch.optim.Adam, in float64 and in float32."""

import pytest
import torch

from psdrl.kernels import choice
from psdrl.kernels.extension import missing
from psdrl.kernels.window_steps import WindowNet, possible, reference, serves, window_steps_
from tests.adams import Twin, check, same_for_any_threads

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))
# L, B, window, Z, A, H, units of the feature layers, recurrent, tanh, inputs too: the presets' kinds, odd sizes
CASES = {
    "cpu": (9, 64, 4, 50, 6, 24, (40, 32), True, True, True),
    "paper": (5, 7, 4, 13, 3, 9, (11, 12, 10, 14), True, False, False),
    "deepsea": (1, 33, 4, 20, 2, 1, (30, 17), False, True, False),
    "control": (3, 64, 1, 4, 2, 1, (24, 24), True, True, True),
    "one layer, one row": (2, 1, 3, 1, 1, 1, (1,), True, True, True),
    "linear features of inputs": (4, 5, 2, 6, 4, 3, (8,), False, False, True),
}


def problem(case, dtype=torch.float32):
    length, batch, window, latent, actions, hidden, units, recurrent, bends, with_inputs = case
    torch.manual_seed(0)
    widths = (hidden + latent + actions, *units)
    output = units[-1] + (widths[0] if with_inputs else 0)
    gru = torch.nn.GRUCell(latent + actions, hidden)
    linear = [torch.nn.Linear(i, o) for i, o in zip(widths, units, strict=False)] + [
        torch.nn.Linear(output, latent + 1)
    ]
    parameters = [p for layer in linear for p in (layer.weight, layer.bias)]
    parameters = [*(list(gru.parameters()) if recurrent else []), *parameters]
    data = (
        torch.randn(length + 1, batch, latent),
        torch.randint(actions, (length, batch)),
        torch.randn(length, batch),
    )

    def net(twin: Twin) -> WindowNet:
        first = 4 if recurrent else 0
        given = twin.parameters[:first], twin.parameters[first:]
        return WindowNet(
            *given, hidden, bends, with_inputs, torch.tensor(3.5).to(twin.parameters[0]), mean=len(units) == 4
        )

    return parameters, data, net, window


def steps(by, data, net, window, weights=None):
    def run(twin: Twin):
        z, actions, rewards = data
        like = twin.parameters[0]
        w = None if weights is None else weights.to(like)
        return by.window_steps_(z.to(like), actions, rewards.to(like), twin.optimiser, net(twin), window, weights=w)

    return run


class Native:
    window_steps_ = staticmethod(window_steps_)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_steps_are_the_oracles(case, weighted):
    parameters, data, net, window = problem(case)
    weights = torch.rand(data[1].shape) if weighted else None
    both = (steps(by, data, net, window, weights) for by in (Native, reference))
    check(parameters, *both)


def test_threads_do_not_change_numbers():
    parameters, data, net, window = problem((8, 64, 4, 150, 6, 64, (128, 128), True, True, True))
    same_for_any_threads(parameters, steps(Native, data, net, window))


def test_what_it_does_not_serve():
    parameters, data, *_ = problem(CASES["control"])
    twin = Twin(parameters)
    assert possible(data[0], twin.optimiser)
    assert not possible(data[0].double(), twin.optimiser)
    assert not possible(data[0], torch.optim.SGD(twin.parameters, 1e-2))
    with torch.autocast("cpu", torch.bfloat16):
        assert not possible(data[0], twin.optimiser)
    twin.parameters[0].register_hook(lambda gradient: gradient)
    assert not possible(data[0], twin.optimiser), "a hook waits for the gradient"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"latents": torch.zeros(4, 64, 4).double()}, "float32"),
        ({"latents": torch.zeros(3, 64, 4)}, "L \\+ 1, B, Z"),
        ({"latents": torch.zeros(4, 64, 5)}, "do not fit"),
        ({"actions": torch.full((3, 64), 2)}, r"actions must be in \[0, 2\)"),
        ({"window": 0}, "window"),
    ],
)
def test_wrong_arguments_are_explained(change, message):
    parameters, data, net, window = problem(CASES["control"])
    twin = Twin(parameters)
    given = {"latents": data[0], "actions": data[1], "rewards": data[2], "window": window} | change
    with pytest.raises(RuntimeError, match=message):
        window_steps_(given["latents"], given["actions"], given["rewards"], twin.optimiser, net(twin), given["window"])


def test_a_loser_does_not_serve(monkeypatch):
    parameters, data, net, window = problem(CASES["cpu"])
    twin = Twin(parameters)
    before = [x.clone() for x in twin.numbers()]
    for winner in ("csrc", "aten"):

        def chosen(operation, x, y, candidates, winner=winner):
            for call in candidates().values():
                call()
            return winner

        monkeypatch.setattr(choice, "choose", chosen)
        assert serves(data[0], net(twin), window, lambda: None) is (winner == "csrc")
    assert all(map(torch.equal, twin.numbers(), before)), "measuring changes nothing"
