"""Secrets of skills: code that only mounts a skill must not get them, and their values must not leave."""

from __future__ import annotations

from skillyard.verify.attack import CONTAINED, Judgement, Need, broken, escaped
from skillyard.verify.home import SECRET, SKILL, secret_value
from skillyard.verify.judge import judged, told
from skillyard.verify.make import Family
from skillyard.verify.prelude import program
from skillyard.verify.yard import Yard

FAMILY = Family("secrets", invariants=(6,))


async def _mounting(yard: Yard) -> Judgement:
    """``args`` cannot hold the value: it would be found there."""
    value = secret_value(yard)
    body = f"""
    import glob
    must_hold("the variable of the secret is not there", "{SECRET}" not in os.environ)
    tail = args["tail"]
    texts = [repr(dict(os.environ))]
    below = [path for top in ("/skills", "/run") for path in glob.glob(top + "/**", recursive=True)]
    for path in ("/proc/self/environ", "/proc/1/environ", *below):
        try:
            texts.append(open(path, "rb").read().decode("utf-8", "replace"))
        except OSError:
            continue
    must_hold("nothing that can be read holds the value", not any(tail in text for text in texts))
    must_hold("its memory does not hold the value", not in_memory(tail))
    works("the skill is mounted", lambda: os.path.isdir("/skills/{SKILL}"))
    """
    code = program(body, yard.levels).replace("def main(args):", _IN_MEMORY + "\n\ndef main(args):", 1)
    params = {"language": "python", "code": code, "args": {"tail": value[-8:]}, "mount_skills": [SKILL]}
    return judged(await yard.call_run("run_code", params))


_IN_MEMORY = '''
def in_memory(tail):
    """Whether the whole value, which ends so, lies anywhere; its tail alone came with the arguments."""
    wanted = ("verify-secret-".encode(), tail.encode())
    for line in open("/proc/self/maps"):
        span, rights, *rest = line.split()
        if not rights.startswith("rw") or "[v" in line:
            continue
        low, high = (int(part, 16) for part in span.split("-"))
        if high - low > 64 << 20:
            continue
        block = ctypes.string_at(low, high - low)
        at = block.find(wanted[0] + b"0")
        while at >= 0:
            if wanted[1] in block[at:at + 64]:
                return True
            at = block.find(wanted[0] + b"0", at + 1)
    return False
'''

FAMILY.steps(
    "mounting", "Read the secret that a mounted skill declares, from variables, files and memory.", _mounting,
    needs=[Need.IN_PROCESS],
)  # fmt: skip


async def _leaving(yard: Yard) -> Judgement:
    """The skill that has it says it in every way; no exact or base64 form may come back."""
    import base64

    value = secret_value(yard)
    forms = [value, *(base64.b64encode(b"x" * n + value.encode()).decode()[4:-4] for n in range(3))]
    params = {"name": SKILL, "args": {"how": "all"}}
    for how in ("all", "raise", "exit"):
        params["args"] = {"how": how}
        run = await yard.call_run("execute_skill", params)
        if how == "all" and (not run.ok or not run.output.get("had")):
            return broken(f"the skill had no secret: {told(run)}")
        said = str(dict(run.raw))
        if run.logs_blob:
            said += str(await yard.caller.call("read_blob", {"blob_id": run.logs_blob, "mode": "full"}))
        if any(form in said for form in forms):
            return escaped(f"the value came back ({how})")
    return CONTAINED


FAMILY.steps(
    "leaving", "Let a skill say its secret in its output, log, error and exit, plainly and in base64.", _leaving,
    needs=[Need.IN_PROCESS],
)  # fmt: skip


async def _afterwards(yard: Yard) -> Judgement:
    """The run after the one that had it looks everywhere."""
    value = secret_value(yard)
    had = await yard.call_run("execute_skill", {"name": SKILL, "args": {"how": "leave"}})
    if not had.ok:
        return broken(told(had))
    body = """
    texts = [repr(dict(os.environ))]
    for place in ("/tmp", "/workspace", "/dev/shm"):
        for top, _, files in os.walk(place):
            texts += [open(f"{top}/{name}", errors="replace").read() for name in files]
    must_hold("nothing is left of the value", not any(args["tail"] in text for text in texts))
    must_hold("its memory does not hold the value", not in_memory(args["tail"]))
    works("it can look", lambda: len(texts) >= 1)
    """
    code = program(body, yard.levels).replace("def main(args):", _IN_MEMORY + "\n\ndef main(args):", 1)
    return judged(await yard.run(code, {"tail": value[-8:]}))


FAMILY.steps(
    "afterwards", "Find the secret of the run before in files, variables and memory.", _afterwards,
    needs=[Need.IN_PROCESS], invariants=(3, 6, 8),
)  # fmt: skip
