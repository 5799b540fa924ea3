"""Networks of one's own, by import path: `--encoder mypackage.module:MyEncoder`, `--world-model mypackage:MyModel`."""

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

import torch

from psdrl.agents.psdrl.encoder import Encoder
from psdrl.agents.psdrl.world_model import WorldModel
from psdrl.envs.vector import EnvSpec
from psdrl.errors import UserError

if TYPE_CHECKING:
    from psdrl.agents.psdrl.settings import PsdrlConfig

ROWS = 2  # of the batch that a network is tried on


def make_encoder(config: "PsdrlConfig", spec: EnvSpec) -> Encoder:
    """`Class(spec, config)`, tried on a batch of zeros."""
    flag = f"--encoder {config.encoder}"
    encoder = _made(flag, _class(flag, config.encoder, Encoder), spec, config)
    observations = torch.zeros(ROWS, *spec.shape, dtype=getattr(torch, spec.dtype))
    with torch.no_grad():
        latents = _tried(flag, "latents", lambda: encoder.latents(observations))
        _shaped(flag, "latents", latents, (ROWS, encoder.latent_size))
        if encoder.trained:
            _shaped(flag, "loss", _tried(flag, "loss", lambda: encoder.loss(observations)), ())
    return encoder


def make_world_model(config: "PsdrlConfig", latent: int, num_actions: int) -> WorldModel:
    """`Class(latent, num_actions, config.forward, reduction)`, tried on a batch of zeros."""
    flag = f"--world-model {config.world_model}"
    kind = _class(flag, config.world_model, WorldModel)
    model = _made(flag, kind, latent, num_actions, config.forward, config.loss_reduction)
    if not isinstance(getattr(model, "output", None), torch.nn.Linear):
        raise UserError(f"{flag} has no output layer: set self.output = nn.Linear(features, latent + 1).")
    _shaped(flag, "output.weight", model.output.weight, (latent + 1, model.output.in_features))
    z, actions, h = (
        torch.zeros(ROWS, latent),
        torch.zeros(ROWS, dtype=torch.int64),
        torch.zeros(ROWS, config.forward.hidden),
    )
    with torch.no_grad():
        predicted, hidden = _tried(flag, "forward", lambda: model(z, actions, h))
        _shaped(flag, "forward", predicted, (ROWS, latent + 1))
        _shaped(flag, "forward's hidden state", hidden, (ROWS, config.forward.hidden))
        world = _tried(flag, "prepare", lambda: model.prepare(model.sampled(None)))
        outcome, hidden = _tried(flag, "predict", lambda: world.predict(z, h))
        _shaped(flag, "predict", outcome, (ROWS * num_actions, latent + 1))
        _shaped(flag, "predict's hidden state", hidden, (ROWS * num_actions, config.forward.hidden))
    return model


def _class(flag: str, path: str | None, base: type) -> Any:
    module, _, name = (path or "").partition(":")
    if not module or not name:
        raise UserError(f"{flag} must be MODULE:CLASS, such as mypackage.networks:My{base.__name__}.")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` has it; console scripts do not
    try:
        kind = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise UserError(f"{flag} cannot be imported ({error}): is it installed, or in the working directory?") from None
    except AttributeError:
        raise UserError(f"{flag}: the module {module} has no {name}.") from None
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise UserError(f"{flag} is no {base.__name__}: inherit {base.__module__}.{base.__name__}.")
    missing = sorted(getattr(kind, "__abstractmethods__", ()))
    if missing:
        raise UserError(f"{flag} does not define {', '.join(missing)}, which every {base.__name__} must.")
    return kind


def _made(flag: str, kind: Any, *arguments: Any) -> Any:
    try:
        return kind(*arguments)
    except TypeError as error:
        raise UserError(f"{flag} cannot be made: {error}; docs/library.md says with which arguments.") from None


def _tried(flag: str, name: str, call: Any) -> Any:
    try:
        return call()
    except (RuntimeError, TypeError, ValueError, AttributeError, NotImplementedError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{flag}: {name} fails on a batch of {ROWS} zeros: {reason}") from error


def _shaped(flag: str, name: str, tensor: Any, shape: tuple[int, ...]) -> None:
    found = tuple(tensor.shape) if isinstance(tensor, torch.Tensor) else type(tensor).__name__
    if found != shape:
        raise UserError(f"{flag}: {name} gives {found} for a batch of {ROWS}, but must give {shape}.")
