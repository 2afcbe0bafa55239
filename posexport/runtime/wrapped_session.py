"""What is asked of a session of ONNX Runtime beside its answers, passed on: for classes that run it otherwise."""

from typing import Any


class WrappedSession:
    """Tells inputs, outputs and providers of ``session``; how it runs is the subclass's."""

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
