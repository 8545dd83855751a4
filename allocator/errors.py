"""Every error the project raises on purpose.

Each message is one sentence that says what was asked, what there was, and what to do. The command
line prints it without a traceback and leaves with `exit_status`.
"""


class BandscopeError(Exception):
    """Base of all errors raised on purpose; `exit_status` is what the command line returns."""

    exit_status = 2


class ConfigError(BandscopeError):
    """A model configuration is missing, unreadable or malformed."""


class UnsupportedModelError(BandscopeError):
    """The model is well formed, but an arena cannot serve it; the message names the layer and why."""


class SizingError(BandscopeError):
    """The asked sizes cannot make an arena; the message lists every term."""


class WorkloadError(BandscopeError):
    """A request trace is missing, unreadable or malformed."""


class DeviceError(BandscopeError):
    """The asked device is missing or cannot hold the arena."""


class MisuseError(BandscopeError):
    """An illegal call: unknown request, double release, stale name. The arena is unchanged."""


class InvariantError(BandscopeError):
    """A state that must never exist; carries the violations found."""

    exit_status = 1


class TraceError(BandscopeError):
    """A trace cannot be written or read; the message says which file and what to do."""
