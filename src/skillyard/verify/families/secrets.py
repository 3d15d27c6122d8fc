"""Attacks on secrets of skills, by code that only mounts a skill and by the skill itself."""

from __future__ import annotations

import base64

from skillyard.testing.attacks.attack import CONTAINED, Family, Judgement, Need, broken, escaped, judged
from skillyard.testing.attacks.prelude import program
from skillyard.verify.home import SECRET, SKILL, secret_value
from skillyard.verify.site import Site

SECRETS = Family("secrets", invariants=(6,))


async def _mounting(site: Site) -> Judgement:
    """Looks for the value by its tail: the whole of it in ``args`` would be found there."""
    value = secret_value(site)
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
    must_hold("its memory does not hold the value", not in_memory(b"verify-secret-0[0-9a-f]*" + tail.encode()))
    works("the skill is mounted", lambda: os.path.isdir("/skills/{SKILL}"))
    """
    params = {"code": program(body, site.levels), "args": {"tail": value[-8:]}, "mount_skills": [SKILL]}
    return judged(await site.run_code(params))


SECRETS.steps(
    "mounting", "Read the secret that a mounted skill declares, from variables, files and memory.", _mounting,
    needs=[Need.IN_PROCESS],
)  # fmt: skip


async def _leaving(site: Site) -> Judgement:
    """Lets a skill say its secret in every way; no exact or base64 form may come back."""
    value = secret_value(site)
    forms = [value, *(base64.b64encode(b"x" * n + value.encode()).decode()[4:-4] for n in range(3))]
    for how in ("all", "raise", "exit"):
        run = await site.call_run("execute_skill", {"name": SKILL, "args": {"how": how}})
        if how == "all" and (not run.ok or not run.output.get("had")):
            return broken(f"the skill had no secret: {run.why}")
        said = str(dict(run.raw))
        if run.run.logs_blob:
            said += str(await site.caller.call("read_blob", {"blob_id": run.run.logs_blob, "mode": "full"}))
        if any(form in said for form in forms):
            return escaped(f"the value came back ({how})")
    return CONTAINED


SECRETS.steps(
    "leaving", "Let a skill say its secret in its output, log, error and exit, plainly and in base64.", _leaving,
    needs=[Need.IN_PROCESS],
)  # fmt: skip


async def _afterwards(site: Site) -> Judgement:
    """Looks everywhere in the run after the one that had the secret."""
    value = secret_value(site)
    (await site.call_run("execute_skill", {"name": SKILL, "args": {"how": "leave"}})).given()
    body = """
    texts = [repr(dict(os.environ))]
    for place in ("/tmp", "/workspace", "/dev/shm"):
        for top, _, files in os.walk(place):
            texts += [open(f"{top}/{name}", errors="replace").read() for name in files]
    must_hold("nothing is left of the value", not any(args["tail"] in text for text in texts))
    must_hold("its memory does not hold the value", not in_memory(b"verify-secret-0[0-9a-f]*" + args["tail"].encode()))
    works("it can look", lambda: len(texts) >= 1)
    """
    return judged(await site.attack(body, {"tail": value[-8:]}))


SECRETS.steps(
    "afterwards", "Find the secret of the run before in files, variables and memory.", _afterwards,
    needs=[Need.IN_PROCESS], invariants=(3, 6, 8),
)  # fmt: skip
