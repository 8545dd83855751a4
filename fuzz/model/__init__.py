"""An independent oracle of an arena: it predicts every outcome, follows every effect, and says which
rule the arena broke. `model.py` has the interface, `cached.py` what a prefix cache adds."""

from bandscope.fuzz.model.cached import CachedModel
from bandscope.fuzz.model.expectation import Expectation
from bandscope.fuzz.model.model import Model
from bandscope.fuzz.program import Layout

__all__ = ["CachedModel", "Expectation", "Model", "model_of"]


def model_of(layout: Layout) -> Model:
    """The model of an arena of `layout`, empty at first."""
    return CachedModel(layout) if layout.config.prefix_cache else Model(layout)
