"""Randomness: forks of one interpreter draw numbers that tell nothing of each other's."""

from __future__ import annotations

from skillyard.verify.attack import CONTAINED, Judgement, Need, broken, escaped, not_applicable
from skillyard.verify.home import WARM, WARM_MODULES
from skillyard.verify.judge import told
from skillyard.verify.make import Family
from skillyard.verify.yard import TIMEOUT_MS, Yard

FAMILY = Family("randomness", invariants=(3, 8))
_TURNS = 4

_CODE = """
import sys
HERE = sorted(sys.modules)
import gc, json, os, random, secrets, ssl, tempfile, uuid

def draw():
    return {"random": random.random(), "bits": random.getrandbits(64), "secrets": secrets.token_hex(8),
            "uuid": str(uuid.uuid4()), "urandom": os.urandom(8).hex(), "temp": os.path.basename(tempfile.mktemp()),
            "system": random.SystemRandom().random(), "mac": str(uuid.uuid1()), "ssl": ssl.RAND_bytes(8).hex()}

def kept():
    return [thing.getrandbits(64) for thing in gc.get_objects()
            if type(thing) is random.Random and thing is not random._inst]

def child(deep):
    come, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        told = child(False) if deep else draw()
        os.write(go, json.dumps(told).encode())
        os._exit(0)
    os.close(go)
    told = json.loads(b"".join(iter(lambda: os.read(come, 65536), b"")))
    os.close(come)
    os.waitpid(pid, 0)
    return told

def main(args):
    mine = [] if args["children"] else [draw()]
    if args["children"]:
        mine = [child(False), child(True), draw()]
    return {"here": HERE, "drawn": mine, "kept": kept()}
"""


async def _drawn_alike(yard: Yard, environment: str, *, children: bool) -> Judgement:
    drawn: dict[str, list[object]] = {}
    for _ in range(_TURNS):
        params = {"language": "python", "code": _CODE, "args": {"children": children}}
        run = await yard.call_run(
            "run_code", {**params, "environment": environment, "limits": {"timeout_ms": TIMEOUT_MS}}
        )
        if not run.ok:
            return broken(told(run))
        if environment == WARM and not set(WARM_MODULES) <= set(run.output["here"]):
            return broken("nothing was imported ahead")
        for row in run.output["drawn"]:
            for name, value in row.items():
                drawn.setdefault(name, []).append(value)
        drawn.setdefault("generators that modules keep", []).extend(run.output["kept"])
    same = [name for name, values in drawn.items() if len(set(values)) < len(values)]
    return escaped(f"runs draw the same {', '.join(same)}") if same else CONTAINED


async def _of_runs(yard: Yard) -> Judgement:
    return await _drawn_alike(yard, "base", children=False)


async def _of_children(yard: Yard) -> Judgement:
    return await _drawn_alike(yard, "base", children=True)


async def _after_imports(yard: Yard) -> Judgement:
    """Draws in an environment whose interpreter has drawn before."""
    assert yard.runtime is not None
    if not yard.runtime.app.config.native.preloads:
        return not_applicable("native.preload_mb is 0: nothing is imported ahead")
    first = {"language": "python", "code": "def main(args): pass", "environment": WARM}
    run = await yard.call_run("run_code", first)
    if not run.ok:
        return broken(told(run))
    await yard.runtime.app.ahead.settled()
    found = await _drawn_alike(yard, WARM, children=False)
    return found if found is not CONTAINED else await _drawn_alike(yard, WARM, children=True)


FAMILY.steps("runs", "Foretell the random numbers of a later run from its own.", _of_runs)
FAMILY.steps("children", "Foretell what processes of a later run draw from what its own draw.", _of_children)
FAMILY.steps(
    "ahead",
    "Foretell what a later run draws, or its keys, after its modules drew before both.",
    _after_imports,
    needs=(Need.IN_PROCESS,),
)
