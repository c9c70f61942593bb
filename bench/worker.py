"""A process that does what the driver asks: `python worker.py`, in any of the environments.

A request is a line of JSON on standard input, `{"call": "module.function", "arguments": {...}}`.
The function comes from a module of this folder and gets a dict that lives as long as the process,
and the arguments. The answer is a line on standard output, `{"answer": ...}` or `{"error": text}`.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import traceback


def main() -> None:
    # What a library prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # A collection in the middle of a round would be charged to one package.
    gc.disable()
    state: dict[str, object] = {}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            module, function = request["call"].split(".")
            call = getattr(importlib.import_module(module), function)
            reply = {"answer": call(state, **request["arguments"])}
        except Exception:
            reply = {"error": traceback.format_exc()}
        answers.write(json.dumps(reply) + "\n")
        answers.flush()
        gc.collect()


if __name__ == "__main__":
    main()
