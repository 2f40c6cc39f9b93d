"""Work counter: the number of Python bytecodes that a call executes, which does not depend on the load of a machine.

Work within C functions is not counted, nor is that of threads that ran before.
"""

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


def count_work(call: Callable[[], object]) -> int:
    """Return the number of bytecodes that a call executes, in this thread and in the threads that it starts."""
    executed = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal executed
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            executed += 1
        return trace

    previous = sys.gettrace()
    threading.settrace(trace)
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(previous)
        threading.settrace(previous)
    return executed
