"""Does runs as ordered on standard input. Any installation's Python executes this source.

Its arguments are a data directory and the number of sandboxes to hold ready. Each order is a line of JSON with
``runs``, ``callers`` and ``pause_s``; the answer is a line with the seconds of each run.
"""

import asyncio
import json
import sys
import time

from skillyard.config.settings import load_settings
from skillyard.runtime import Runtime

CODE = 'def main(args): return {"sum": sum(args["xs"])}'
ARGS = {"xs": [3, 1, 4, 1, 5, 9, 2, 6]}


async def once(runtime: Runtime) -> float:
    """Returns the seconds of a run whose result is right. Raises ValueError."""
    began = time.perf_counter()
    output = (await runtime.run_code(CODE, ARGS)).raise_for_status().output
    took = time.perf_counter() - began
    if output != {"sum": sum(ARGS["xs"])}:
        raise ValueError(f"a wrong result: {output!r}")
    return took


async def serve(home: str, ready: int) -> None:
    async with Runtime(settings=load_settings(data_dir=home, native={"ready": ready})) as runtime:
        while line := await asyncio.to_thread(sys.stdin.readline):
            order = json.loads(line)
            left = iter(range(order["runs"]))
            times: list[float] = []

            async def call(order: dict[str, float] = order, left: object = left, times: list[float] = times) -> None:
                for _ in left:  # type: ignore[attr-defined]
                    if order["pause_s"]:
                        await asyncio.sleep(order["pause_s"])
                    times.append(await once(runtime))

            began = time.perf_counter()
            await asyncio.gather(*(call() for _ in range(order["callers"])))
            answer = {"times": times, "took": time.perf_counter() - began}
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
