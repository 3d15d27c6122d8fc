"""Every attack of the corpus is refused by its own rule, by name, and leaves nothing."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from skillyard.domain.archive.names import is_visible
from skillyard.domain.rules.bundle import ARCHIVES
from skillyard.stores.skills.archives import read_archive
from tests.unit.stores.archives.corpus import ATTACKS, Attack
from tests.unit.stores.archives.corpus_names import NAMES

SHOWN = {"archive-traversal", "archive-absolute", "archive-collision", "archive-duplicate", "archive-link"}


@pytest.mark.parametrize("attack", [a for a in ATTACKS if not a.name.startswith("bomb")], ids=lambda a: a.name)
def test_an_attack_is_refused_by_its_rule(attack: Attack) -> None:
    unpacked, findings = read_archive(io.BytesIO(attack.make()))
    assert unpacked is None
    assert [(finding.level, finding.rule) for finding in findings] == [("error", attack.rule)]
    finding = findings[0]
    assert finding.mend
    assert str(finding).isprintable() or "\n" in str(finding)
    assert len(finding.file) <= 200
    assert is_visible(finding.file)
    assert finding.file != "." or attack.rule not in SHOWN


def test_every_rule_has_an_attack() -> None:
    assert {attack.rule for attack in ATTACKS} == {rule.id for rule in ARCHIVES if rule.strict == "error"}
    assert max(Counter(attack.name for attack in ATTACKS).values()) == 1
    assert len(NAMES) > 40


def test_the_whole_corpus_in_bounded_memory_writing_nothing(tmp_path: Path) -> None:
    """In a process that can write no byte to any file, and that may take 80 MiB of addresses more than it starts with:
    five times the largest skill."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.stores.archives.confined"],
        cwd=Path(__file__).parents[4],
        env={"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "PYTHONPATH": "src:."},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    expected = {attack.name: attack.rule for attack in ATTACKS} | {"the largest bundle": "taken"}
    assert {name: rule for name, (rule, _) in found.items()} == expected
    slow = {name: seconds for name, (_, seconds) in found.items() if seconds > 5}
    assert not slow
    assert list(tmp_path.iterdir()) == []
