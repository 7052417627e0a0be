"""Names of parameters, which an optimizer does not know: modules are noted when they are asked for their parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any
from weakref import ref

import torch

WRAPPERS = re.compile(r"(^|\.)(module|_orig_mod|_forward_module|_fsdp_wrapped_module)(?=\.)")
"""Prefixes that wrappers put before a parameter's own name."""


_nothing: tuple[Callable[[], Any], str] = (lambda: None, "")


class Names:
    """The modules of a script, and the names of their parameters."""

    def __init__(self) -> None:
        self._modules: list[ref[torch.nn.Module]] = []
        self._known: dict[int, tuple[Callable[[], Any], str]] = {}

    def note(self, module: torch.nn.Module) -> None:
        """Remember a module."""
        if not any(known() is module for known in self._modules):
            self._modules.append(ref(module))

    def modules(self) -> list[torch.nn.Module]:
        """Return the modules that are still there."""
        return [module for known in self._modules if (module := known()) is not None]

    def of(self, parameters: Iterable[torch.Tensor], named_parameters: Any) -> dict[str, torch.Tensor]:
        """Return the parameters by their names, those of the module that holds most of them; no two have the same."""
        all_parameters = list(parameters)
        if any(self._known.get(id(parameter), _nothing)[0]() is not parameter for parameter in all_parameters):
            named = sorted((dict(named_parameters(module)) for module in self.modules()), key=len, reverse=True)
            name_of = {id(parameter): name for names in reversed(named) for name, parameter in names.items()}
            for number, parameter in enumerate(all_parameters):
                self._name(parameter, WRAPPERS.sub("", f".{name_of.get(id(parameter), f'parameter {number}')}")[1:])
        return {self._known[id(parameter)][1]: parameter for parameter in all_parameters}

    def _name(self, parameter: torch.Tensor, name: str) -> None:
        """Register a parameter under this name, numbered if another has it."""
        if self._known.get(id(parameter), _nothing)[0]() is parameter:
            return
        used = {known for other, known in self._known.values() if other() is not None}
        numbered = [name, *(f"{name} ({number})" for number in range(2, len(used) + 3))]
        self._known[id(parameter)] = ref(parameter), next(one for one in numbered if one not in used)

    def that_mix(self) -> list[str]:
        """Return the kinds of layers in training that compute statistics of their own rank's rows."""
        mixing = torch.nn.modules.batchnorm._BatchNorm  # private, but the only base of all batch normalizations
        return sorted(
            {
                type(layer).__name__
                for module in self.modules()
                for layer in module.modules()
                if isinstance(layer, mixing) and not isinstance(layer, torch.nn.SyncBatchNorm) and layer.training
            }
        )

    def that_hook(self) -> list[str]:
        """Return the parameters on which the script has hooks of its own."""
        found = [
            WRAPPERS.sub("", f".{name}")[1:]
            for module in self.modules()
            for name, parameter in module.named_parameters()
            if parameter._backward_hooks  # torch's own, where register_hook() puts a hook
        ]
        return sorted(set(found))

    def not_trained(self, trained: set[int], values: Callable[[torch.Tensor], Any]) -> dict[str, list[float]]:
        """Return numbers that describe the parameters that no optimizer has, by the kind of their module."""
        found: dict[str, list[float]] = {}
        for module in self.modules():
            others = [one for one in module.parameters() if id(one) not in trained and not hasattr(one, "full_tensor")]
            if others:
                kind = type(module).__name__
                number = sum(name.startswith(f"{kind} ") for name in found)
                found[f"{kind} {number}"] = [float(values(one).astype("float64").sum()) for one in others]
        return found
