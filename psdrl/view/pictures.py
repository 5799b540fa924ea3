"""Observations, errors and disagreement as pictures (height, width, 3) of bytes."""

import math
from collections.abc import Callable

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from psdrl.envs.deepsea import deepsea_size
from psdrl.envs.vector import EnvSpec

Picture = NDArray[np.uint8]  # (height, width, 3)
Numbers = NDArray[np.float64]
SIDE = 160  # pixels, about, of a picture in a film
TITLE = 32  # pixels, of two lines of words above it
MOST_STD = 0.5  # of numbers in [0, 1]
# Colours of a grid's channels: Okabe and Ito's, then lighter and darker ones of them.
CHANNELS = np.array(
    [(230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178), (213, 94, 0), (204, 121, 167)]
)


class Painter:
    """Draws the observations of an environment, and numbers of the same shape."""

    def __init__(self, planes: Callable[[Numbers], Numbers], colours: NDArray | None) -> None:
        """`planes`: numbers of an observation as (height, width, channels), on a scale from 0 to 1."""
        self._planes, self._colours = planes, colours

    def picture(self, observation: Numbers) -> Picture:
        """What it shows; numbers below 0 are black, numbers above 1 as 1."""
        planes = self._planes(observation).clip(0, 1)
        if self._colours is not None:
            planes = (planes[..., None] * self._colours[: planes.shape[2]] / 255).max(2)
        return as_bytes(planes)

    def error(self, truth: Numbers, other: Numbers) -> Picture:
        """The largest absolute difference over channels: black 0, white 1."""
        off = np.abs(self._planes(other) - self._planes(truth)).max(2).clip(0, 1)
        return as_bytes(mpl.colormaps["magma"](off)[..., :3])

    def spread(self, deviation: Numbers) -> Picture:
        """The largest standard deviation over channels: black 0, white 0.5, the largest of numbers in [0, 1]."""
        off = (self._planes(deviation).max(2) / MOST_STD).clip(0, 1)
        return as_bytes(mpl.colormaps["magma"](off)[..., :3])


def painter(spec: EnvSpec, newest: int = 0) -> Painter | None:
    """How the observations of this environment are drawn; None: they are numbers without a place.

    newest: channels of a grid that belong to its newest frame, which come first; 0: all of them."""
    if spec.kind == "image":
        colour = spec.shape[0] == 3
        return Painter(lambda x: np.moveaxis(x, 0, 2) if colour else x[-1][..., None], None)
    if spec.grid is not None:
        shown = newest or spec.grid[2]
        repeated = np.concatenate([CHANNELS, CHANNELS // 2 + 60] * math.ceil(shown / 14))
        shape = spec.grid
        return Painter(lambda x: x.reshape(shape)[..., :shown], repeated)
    if size := deepsea_size(spec.name):
        return Painter(lambda x: x.reshape(size, size, 1), None)
    return None


def as_bytes(planes: NDArray) -> Picture:
    """(height, width, 1 or 3) in [0, 1] as bytes."""
    return np.round(255 * np.broadcast_to(planes, (*planes.shape[:2], 3))).astype(np.uint8)


def enlarged(picture: Picture, side: int = SIDE) -> Picture:
    """Whole pixels, repeated, to about this height."""
    times = max(1, round(side / picture.shape[0]))
    return picture.repeat(times, 0).repeat(times, 1)


def titled(picture: Picture, words: str) -> Picture:
    """With one or two short lines of words above it, on white."""
    picture = enlarged(picture)
    sheet = Image.new("RGB", (max(picture.shape[1], SIDE), TITLE + picture.shape[0]), "white")
    sheet.paste(Image.fromarray(picture), ((sheet.width - picture.shape[1]) // 2, TITLE))
    ImageDraw.Draw(sheet).text((2, 2), words, fill="black", font=ImageFont.load_default(size=12), spacing=2)
    return np.asarray(sheet)


def beside(pictures: list[Picture], gap: int = 6) -> Picture:
    """Side by side on white; height and width even, as video needs them."""
    tall = max(picture.shape[0] for picture in pictures)
    padded = [np.pad(p, ((0, tall - p.shape[0]), (0, gap), (0, 0)), constant_values=255) for p in pictures]
    row = np.concatenate(padded, 1)
    return np.pad(row, ((0, row.shape[0] % 2), (0, row.shape[1] % 2), (0, 0)), constant_values=255)
