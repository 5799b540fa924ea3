"""One folder per operation: the oracle, straight from the paper's equation, beside the fast versions."""

import importlib
import pkgutil
from collections.abc import Iterator
from importlib.util import find_spec
from types import ModuleType


def folders(module: str = "") -> Iterator[ModuleType]:
    """Every folder here, imported, so that its operations are registered; or this module of those that have it."""
    for folder in pkgutil.iter_modules(__path__, f"{__name__}."):
        name = f"{folder.name}.{module}" if module else folder.name
        if folder.ispkg and find_spec(name):
            yield importlib.import_module(name)
