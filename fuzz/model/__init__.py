"""An independent oracle of an arena: it predicts every outcome, follows every effect, and says which
rule the arena broke. `model.py` has the interface."""

from bandscope.fuzz.model.model import Expectation, Model

__all__ = ["Expectation", "Model"]
