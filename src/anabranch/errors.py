"""Every error Anabranch raises on purpose, in one tree.

AnabranchError                 carries a message, a hint a user can act on, and an exit code
├── PipelineError              the pipeline as written cannot run (found before anything runs)
│   ├── PipelineFileError      the file is missing, unreadable, or holds no pipeline or several
│   └── StepError              a step's function or plan is not usable
├── WorkDirectoryError         the work directory cannot be used
│   ├── InUse                  another run holds it
│   └── IdentityChanged        plan, schema or settings do not fit the state that is there
├── Corrupt                    a record, part or file on disk is torn, altered or of an unknown format
├── Trimmed                    a slot or epoch at or below the floor was asked for
├── SourceError                an input file is missing, changed after it was planned, or malformed
├── SinkError                  an output cannot take the rows
├── Misaligned                 the inputs of a micro-batch are not at the same epoch
├── Diverged                   a re-execution produced other rows than the published epoch
├── StoreError                 a store cannot be used as asked
│   └── StoreUnavailable       it cannot be reached just now; trying again may help
├── UnitFailed                 a unit failed on the same epoch twice with the same error
├── Deposed                    a newer generation holds the lease
└── AgentError                 a node's agent did not answer (AgentGone: there is none at the address)
"""

from __future__ import annotations


class AnabranchError(Exception):
    """The root: a message that names the thing, and a hint that says what to do about it."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class PipelineError(AnabranchError):
    """The pipeline as written cannot run."""

    exit_code = 2


class PipelineFileError(PipelineError):
    """The pipeline file is missing, unreadable, or does not define exactly one pipeline."""


class StepError(PipelineError):
    """A step's function or the plan it returns is not usable."""


class WorkDirectoryError(AnabranchError):
    """The work directory cannot be used as asked."""

    exit_code = 3


class InUse(WorkDirectoryError):
    """Another run holds the work directory."""


class IdentityChanged(WorkDirectoryError):
    """Plan, schema or settings do not fit the state that is already there."""


class Corrupt(AnabranchError):
    """Something on disk is torn, altered, or of a format this version does not know."""

    exit_code = 4


class Trimmed(AnabranchError):
    """A slot or epoch at or below the floor was asked for."""

    exit_code = 4


class SourceError(AnabranchError):
    """An input is missing, changed after it was planned, or malformed."""

    exit_code = 5


class SinkError(AnabranchError):
    """An output cannot take the rows."""

    exit_code = 5


class Misaligned(AnabranchError):
    """The inputs of a micro-batch are not at the same epoch."""


class Diverged(AnabranchError):
    """A re-execution produced other rows than the epoch that was published."""

    exit_code = 6

    def __init__(self, message: str, *, unit: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.unit = unit


class StoreError(AnabranchError):
    """A store cannot be used as asked: unknown, not permitted, full, or held by another writer."""

    exit_code = 7


class StoreUnavailable(StoreError):
    """A store cannot be reached just now; trying again may help."""


class UnitFailed(AnabranchError):
    """A unit failed on the same epoch twice with the same error, and waits for someone to act."""

    exit_code = 6


class Deposed(AnabranchError):
    """A newer generation holds the lease; this holder steps down."""


class Superseded(AnabranchError):
    """Another run published other rows for an epoch: the state of this one is no longer the published history."""


class AgentError(AnabranchError):
    """A node's agent did not answer."""


class AgentGone(AgentError):
    """There is no agent of this work directory at the address."""
