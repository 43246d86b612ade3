"""A call of a session in a thread, so that an event loop goes on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import TypeVar

T = TypeVar("T")


async def in_thread(call: Callable[[], T]) -> T:
    """The call's result. A task that is cancelled meanwhile waits for it: nobody else may enter the session before."""
    future = asyncio.get_running_loop().run_in_executor(None, partial(copy_context().run, call))
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        with suppress(Exception):  # whoever is cancelled does not ask for the result
            await future
        raise
