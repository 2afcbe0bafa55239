"""Base class of objects that replace ``InferenceSession.run`` and delegate everything else."""

from typing import Any


class WrappedSession:
    """Delegates inputs, outputs and providers to ``session``; subclasses define ``run``."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def get_inputs(self) -> Any:
        return self._session.get_inputs()

    def get_overridable_initializers(self) -> Any:
        return self._session.get_overridable_initializers()

    def get_outputs(self) -> Any:
        return self._session.get_outputs()

    def get_providers(self) -> Any:
        return self._session.get_providers()
