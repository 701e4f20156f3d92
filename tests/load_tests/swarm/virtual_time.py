"""An event loop whose clock jumps: waiting takes no time, and what happens when is exact."""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

Result = TypeVar("Result")


class JumpingLoop(asyncio.SelectorEventLoop):
    """Where a loop would wait for its next timer, this one makes it that time. No input and output of its own."""

    def __init__(self) -> None:
        self.now_s = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self.now_s


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self, loop: JumpingLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise AssertionError("everybody waits for somebody else")
        self._loop.now_s += max(0.0, timeout)
        return super().select(0)


def run_virtually(make: Callable[[JumpingLoop], Coroutine[Any, Any, Result]]) -> Result:
    """What `make` returns, on a loop of its own."""
    loop = JumpingLoop()
    try:
        return loop.run_until_complete(make(loop))
    finally:
        loop.close()
