"""Bandscope: a CUDA arena allocator for hybrid language models, and the instruments to watch it.

One device buffer, the *arena*, holds every kind of per-request memory a model keeps. Each kind is
a *band* of that buffer; bands grow, shrink and move as requests come and go. `docs/engine.md`
shows a whole engine loop over the public names below.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public names and the modules that own them. They load on first use, so that `bandscope --help`
# and the trace tools never pay for importing torch.
_PUBLIC = {
    "Arena": "bandscope.allocator.arena",
    "ArenaConfig": "bandscope.allocator.arena",
    "BandscopeError": "bandscope.allocator.errors",
    "StoragePlan": "bandscope.allocator.plan",
    "declare_model": "bandscope.allocator.families",
    "plan_storage": "bandscope.allocator.plan",
}

if TYPE_CHECKING:
    from bandscope.allocator.arena import Arena as Arena
    from bandscope.allocator.arena import ArenaConfig as ArenaConfig
    from bandscope.allocator.errors import BandscopeError as BandscopeError
    from bandscope.allocator.families import declare_model as declare_model
    from bandscope.allocator.plan import StoragePlan as StoragePlan
    from bandscope.allocator.plan import plan_storage as plan_storage

__all__ = ["__version__", *sorted(_PUBLIC)]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'bandscope' has no attribute {name!r}")
