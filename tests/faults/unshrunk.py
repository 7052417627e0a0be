"""A plugin of pytest: examples that Hypothesis finds are not made smaller, which takes minutes where a law fails."""

from hypothesis import Phase, settings

settings.register_profile("unshrunk", phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.target))
settings.load_profile("unshrunk")
