"""What ``python -m test`` found: one verdict a test."""

from __future__ import annotations

import re
from dataclasses import dataclass
from xml.etree import ElementTree

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
_TO_ITS_END = "== Tests result: "
_SUBTEST = re.compile(r"( \(.*\)| \[.*\])$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Results:
    """``verdicts`` by test id, such as ``test.test_json.test_fail.TestPyFail.test_failures``; ``whole`` says whether
    the module came to its end; ``texts`` has what failing tests said, and why others were skipped."""

    verdicts: dict[str, str]
    texts: dict[str, str]
    whole: bool
    said: str

    def of(self, verdict: str) -> set[str]:
        return {test for test, found in self.verdicts.items() if found == verdict}


def parse(xml: bytes, said: str) -> Results:
    """``xml`` is the JUnit report, empty where no test ran; ``said`` is what the module printed."""
    verdicts: dict[str, str] = {}
    texts: dict[str, str] = {}
    cases = ElementTree.fromstring(xml).iter("testcase") if xml.strip() else ()
    for case in cases:
        name = _SUBTEST.sub("", case.get("name", ""))
        verdict, text = _verdict(case)
        if verdicts.get(name) != FAILED:  # a subtest that failed fails its test
            verdicts[name] = verdict
            texts[name] = text
    return Results(verdicts, texts, _TO_ITS_END in said, said)


def _verdict(case: ElementTree.Element) -> tuple[str, str]:
    for kind in ("error", "failure"):
        found = case.find(kind)
        if found is not None:
            return FAILED, (found.text or "")[-2000:]
    skipped = case.find("skipped")
    if skipped is not None:
        return SKIPPED, skipped.text or skipped.get("message") or ""
    return PASSED, ""
