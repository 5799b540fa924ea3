"""The networks of one agent: which kind of each the settings and the environment ask for."""

from collections.abc import Iterator

from torch import nn

from psdrl.agents.psdrl import own
from psdrl.agents.psdrl.autoencoder import Autoencoder
from psdrl.agents.psdrl.encoder import Encoder, Identity
from psdrl.agents.psdrl.flat_model import FlatModel
from psdrl.agents.psdrl.grid import Grid
from psdrl.agents.psdrl.grid_model import GridModel, GridTermination
from psdrl.agents.psdrl.settings import PsdrlConfig
from psdrl.agents.psdrl.termination import Termination
from psdrl.agents.psdrl.value import MinEnsemble
from psdrl.agents.psdrl.world_model import WorldModel
from psdrl.envs.vector import EnvSpec
from psdrl.errors import UserError


def make_encoder(config: PsdrlConfig, spec: EnvSpec) -> Encoder:
    """One's own, or an autoencoder for images; vectors are their own latent state."""
    if config.encoder:
        return own.make_encoder(config, spec)
    if spec.kind == "image":
        return Autoencoder(spec.shape, config.autoencoder, config.standardise, config.loss_reduction)
    return Identity(spec.grid or spec.shape, config.standardise)


class Models(nn.Module):
    """All networks of the agent."""

    def __init__(self, config: PsdrlConfig, spec: EnvSpec) -> None:
        super().__init__()
        self.autoencoder = make_encoder(config, spec)
        latent, shape = self.autoencoder.latent_size, self.autoencoder.latent_shape
        if config.grid and config.world_model:
            raise UserError("--grid chooses a world model, and so does --world-model: leave out one.")
        if config.grid and len(shape) != 3:
            raise UserError(
                f"{spec.name} has no grid of cells, which --grid needs: MinAtar's observations are one, and what an "
                "autoencoder with --autoencoder.latent 0 makes of images."
            )
        self.forward_model: WorldModel
        if config.grid:
            grid = Grid.of(shape, self.autoencoder.channels_last)
            self.forward_model = GridModel(grid, spec.num_actions, config.forward, config.loss_reduction)
            self.termination: Termination = GridTermination(grid, config.termination)
        elif config.world_model:
            self.forward_model = own.make_world_model(config, latent, spec.num_actions)
            self.termination = Termination(latent, config.termination)
        else:
            self.forward_model = FlatModel(latent, spec.num_actions, config.forward, config.loss_reduction)
            self.termination = Termination(latent, config.termination)
        self.value = MinEnsemble(latent + self.forward_model.hidden_size, config.value)
        self.target = MinEnsemble(latent + self.forward_model.hidden_size, config.value).requires_grad_(False)
        self.target.load_state_dict(self.value.state_dict())

    @property
    def acting_value(self) -> MinEnsemble:
        """The value networks that act."""
        return self.value.acting(self.target)

    def counts(self) -> Iterator[tuple[str, int]]:
        """Parameters of each network."""
        for name in ("autoencoder", "forward_model", "termination", "value"):
            yield name, sum(p.numel() for p in getattr(self, name).parameters())
