"""Names of parameters, which an optimiser does not know: modules are noted when they are asked for their parameters."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any
from weakref import ref

import torch

WRAPPERS = re.compile(r"(^|\.)(module|_orig_mod|_forward_module|_fsdp_wrapped_module)(?=\.)")
"""What wrappers put before a parameter's own name."""


class Names:
    """The modules of a script, and the names of their parameters."""

    def __init__(self) -> None:
        self._modules: list[ref[torch.nn.Module]] = []
        self._known: dict[int, str] = {}

    def note(self, module: torch.nn.Module) -> None:
        """Remember a module."""
        if not any(known() is module for known in self._modules):
            self._modules.append(ref(module))

    def modules(self) -> list[torch.nn.Module]:
        """Return the modules that are still there."""
        return [module for known in self._modules if (module := known()) is not None]

    def of(self, parameters: Iterable[torch.Tensor], asked: Any) -> dict[str, torch.Tensor]:
        """Return the parameters by their names, those of the module that holds most of them."""
        given = list(parameters)
        if any(id(parameter) not in self._known for parameter in given):
            named = [dict(asked(module)) for module in self.modules()]
            for names in sorted(named, key=len):  # the largest comes last, and says
                self._known |= {id(parameter): WRAPPERS.sub("", f".{name}")[1:] for name, parameter in names.items()}
        found: dict[str, torch.Tensor] = {}
        for number, parameter in enumerate(given):
            name = self._known.get(id(parameter), f"parameter {number}")
            found[name if name not in found else f"{name} ({number})"] = parameter
        return found

    def that_mix(self) -> list[str]:
        """Return the kinds of layers in training that compute statistics of their own rank's rows."""
        mixing = torch.nn.modules.batchnorm._BatchNorm  # private, but the only base of all batch normalisations
        return sorted(
            {
                type(layer).__name__
                for module in self.modules()
                for layer in module.modules()
                if isinstance(layer, mixing) and not isinstance(layer, torch.nn.SyncBatchNorm) and layer.training
            }
        )
