"""Gradient steps of autoencoders by csrc/: against autograd and torch.optim.Adam, in float64 and in float32."""

import pytest
import torch

from psdrl.kernels import choice
from psdrl.kernels.autoencoder_steps import Pictures, autoencoder_steps_, possible, reference, serves
from psdrl.kernels.extension import missing
from tests.adams import Twin, check, same_for_any_threads

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))
# steps, frames, planes, side, channels, kernels and strides of the encoder's layers
CASES = {
    "cpu": (2, 40, 1, 64, (16, 6), (4, 4), (4, 2)),
    "three planes, three layers": (2, 3, 3, 60, (5, 7, 3), (2, 4, 4), (2, 2, 2)),
    "tiles alone": (2, 17, 2, 8, (3,), (4,), (4,)),
    "wide kernel": (1, 9, 1, 18, (4, 2), (2, 5), (2, 2)),
    "stride 3": (1, 5, 1, 20, (2, 3), (2, 4), (2, 3)),
}


def problem(case):
    count, batch, planes, side, channels, kernels, strides = case
    torch.manual_seed(0)
    shapes = list(zip((planes, *channels), channels, kernels, strides, strict=False))
    forth = [torch.nn.Conv2d(i, o, k, s) for i, o, k, s in shapes]
    back = [torch.nn.ConvTranspose2d(o, i, k, s) for i, o, k, s in reversed(shapes)]
    parameters = [p.detach() for layer in (*forth, *back) for p in layer.parameters()]
    parameters = [p.to(memory_format=torch.channels_last) if p.dim() == 4 else p for p in parameters]
    frames = torch.randint(256, (count, batch, planes, side, side), dtype=torch.uint8)
    mean, contrast = torch.rand(planes, side, side), torch.tensor(1.7)

    def net(twin: Twin) -> Pictures:
        like = twin.parameters[0]
        return Pictures(twin.parameters, list(strides), mean.to(like), contrast.to(like), len(channels) == 3)

    return parameters, frames, net


def steps(by, frames, net):
    return lambda twin: by(frames, twin.optimiser, net(twin))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_steps_are_the_oracles(case):
    parameters, frames, net = problem(case)
    check(parameters, steps(autoencoder_steps_, frames, net), steps(reference.autoencoder_steps_, frames, net))


def test_threads_do_not_change_numbers():
    parameters, frames, net = problem(CASES["cpu"])
    same_for_any_threads(parameters, steps(autoencoder_steps_, frames, net))


def test_what_it_does_not_serve():
    parameters, frames, net = problem(CASES["tiles alone"])
    twin, exact = Twin(parameters), Twin(parameters, torch.float64)
    assert possible(frames, twin.optimiser, net(twin))
    assert not possible(frames.float(), twin.optimiser, net(twin))
    assert not possible(frames, exact.optimiser, net(exact))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"frames": torch.zeros(1, 4, 1, 64, 64)}, "uint8"),
        ({"frames": torch.zeros(1, 4, 1, 62, 62, dtype=torch.uint8)}, "a number for each pixel"),
        ({"strides": [2, 2]}, "must tile the frame"),
        ({"strides": [4]}, "of each layer of the encoder"),
        ({"strides": [4, 5]}, "does not fit its picture"),
    ],
)
def test_wrong_arguments_are_explained(change, message):
    parameters, frames, net = problem(CASES["cpu"])
    twin = Twin(parameters)
    given = net(twin)._replace(strides=change.get("strides", [4, 2]))
    with pytest.raises(RuntimeError, match=message):
        autoencoder_steps_(change.get("frames", frames), twin.optimiser, given)


def test_a_loser_does_not_serve(monkeypatch):
    parameters, frames, net = problem(CASES["cpu"])
    twin = Twin(parameters)
    before = [x.clone() for x in twin.numbers()]
    for winner in ("csrc", "aten"):

        def chosen(operation, x, y, candidates, winner=winner):
            for call in candidates().values():
                call()
            return winner

        monkeypatch.setattr(choice, "choose", chosen)
        assert serves(frames, net(twin), lambda: None) is (winner == "csrc")
    assert all(map(torch.equal, twin.numbers(), before)), "measuring changes nothing"
