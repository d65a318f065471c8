"""What a launching process sends to those that it launches: a function and its arguments."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

from poplin.errors import LaunchError

_TENSOR_SHARING = "torch.multiprocessing"
#: How deep to look for what can't be pickled.
_DEPTH = 6

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class Payload:
    """A function and its arguments on their way to a worker.

    They are pickled when the worker is started, so that locks and queues of multiprocessing can go along. Tensors are
    copied: each rank has its own, as it would have had it run the script. (Torch's own pickling for processes shares
    their memory, and ranks would train on each other's parameters.)
    """

    def __init__(self, call: Call) -> None:
        self._call = call

    def __getstate__(self) -> bytes:
        return _dumps(self._call)

    def __setstate__(self, state: bytes) -> None:
        self._bytes = state

    def load(self) -> Call:
        """In the worker: the function and its arguments."""
        call: Call = pickle.loads(self._bytes)
        del self._bytes
        return call


def _dumps(value: Any) -> bytes:
    buffer = io.BytesIO()
    pickler = ForkingPickler(buffer, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = {
        cls: reducer
        for cls, reducer in pickler.dispatch_table.items()
        if not getattr(reducer, "__module__", "").startswith(_TENSOR_SHARING)
    }
    pickler.dump(value)
    return buffer.getvalue()


def unpicklable(call: Call, error: BaseException) -> LaunchError:
    """The error for a function or an argument that can't be sent, naming it."""
    function, args, kwargs = call
    for label, value in _parts(function, args, kwargs):
        if (reason := _refusal(value)) is not None:
            path, culprit, reason = _narrow(label, value, reason)
            return LaunchError(
                f"{path} can't be sent to the worker processes: {reason}. What a spawned process gets is pickled, so "
                f"{_advice(culprit)}. Or use a launcher that needs no pickling: 'fork', or 'subprocess', where every "
                "process runs the script."
            )
    return LaunchError(f"What was given to launch() can't be sent to the worker processes: {_one_line(error)}.")


def _parts(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    # Fabric hands in a function of its own, with (fabric, the user's function, its args, its kwargs).
    if len(args) == 4 and isinstance(args[2], tuple) and isinstance(args[3], dict) and not kwargs:
        fabric, user_function, user_args, user_kwargs = args
        yield from _parts(user_function, user_args, user_kwargs)
        yield "the Fabric", fabric
        return
    yield f"the function {getattr(function, '__qualname__', function)!s}", function
    for index, value in enumerate(args):
        yield f"argument {index + 1} of launch()'s function", value
    for name, value in kwargs.items():
        yield f"the argument {name}=", value


def _refusal(value: Any) -> str | None:
    try:
        _dumps(value)
    except RuntimeError as error:
        # multiprocessing's own objects pickle only while a process is being started
        return None if "inheritance" in str(error) or "spawning" in str(error) else _one_line(error)
    except Exception as error:
        return _one_line(error)
    return None


def _narrow(label: str, value: Any, reason: str, depth: int = _DEPTH) -> tuple[str, Any, str]:
    """The innermost part of ``value`` that can't be pickled."""
    if depth:
        for name, part in _inside(value):
            if part is not value and (inner := _refusal(part)) is not None:
                return _narrow(label + name, part, inner, depth - 1)
    return label, value, reason


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield f"[{key!r}]", part
    elif isinstance(value, (list, tuple)):
        for index, part in enumerate(value):
            yield f"[{index}]", part
    elif not isinstance(value, type):
        for name, part in getattr(value, "__dict__", {}).items():
            yield f".{name}", part


def _advice(value: Any) -> str:
    name = getattr(value, "__qualname__", "")
    if "<lambda>" in name or "<locals>" in name:
        return f"move {name} to the top level of a module"
    return "leave it out, make it inside the function, or give its class __reduce__ or __getstate__"


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
