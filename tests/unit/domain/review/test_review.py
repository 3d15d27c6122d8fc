"""What a review finds, and that it finds nothing in honest bundles."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillyard.bundled import EXAMPLES, GUIDE
from skillyard.domain.review.bundle import Review
from skillyard.domain.review.file import File, Text
from skillyard.domain.review.markdown import code_lines
from skillyard.domain.rules import RULES, SECTIONS
from skillyard.domain.skill.skill import Finding
from skillyard.stores.skills.tree import Caps, Tree, TreeFile, digest_of, read_tree
from skillyard.stores.skills.validation.bundle import Bundle, Place, check_bundle
from tests.unit.domain.review.corpus import CASES, MANIFEST, SKILL_MD, Case, files_of, review_here


def reviewed(files: dict[str, tuple[bytes, bool]], name: str = "acme.text.count") -> Review:
    entries = {path: TreeFile(data, executable, "0") for path, (data, executable) in sorted(files.items())}
    tree = Tree(entries, digest_of(entries))
    skill, _ = check_bundle(Bundle(tree, Place(name), Path(name), True))
    return review_here([File(path, data, executable) for path, (data, executable) in files.items()], skill)


def texts(**files: str | bytes) -> dict[str, tuple[bytes, bool]]:
    bundle = {"skill.toml": MANIFEST, "SKILL.md": SKILL_MD, "code/main.py": "def main(args): ...", **files}
    return {path: (text.encode() if isinstance(text, str) else text, False) for path, text in bundle.items()}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_is_found(case: Case) -> None:
    found = [(f.rule, f.level, f.file, f.line) for f in reviewed(files_of(case)).findings]
    assert (case.rule, case.level, case.file, case.line) in found, found


def test_every_rule_of_a_review_is_found_somewhere() -> None:
    """Two more are tried below: what is left out, and what a host is steered by."""
    rules = {rule.id for rule in SECTIONS["Review"]}
    assert {case.rule for case in CASES.values()} | {"review-partial", "steering"} == rules


def test_levels_are_those_of_the_documentation() -> None:
    for case in CASES.values():
        assert case.level in RULES[case.rule].review, case


def test_honest_bundles_have_nothing_dangerous() -> None:
    for directory in sorted([*EXAMPLES.iterdir(), GUIDE]):
        tree, _ = read_tree(directory, Caps())
        assert tree is not None
        skill, _ = check_bundle(Bundle(tree, Place.of(directory), directory, False))
        found = review_here([File(path, file.data, file.executable) for path, file in tree.files.items()], skill)
        assert [f for f in found.findings if f.level == "danger"] == []
        assert [f for f in found.findings if f.level == "warning" and f.rule != "need-secret"] == []


def test_honest_text_has_nothing_to_say() -> None:
    text = (
        """\
# Über Größe: naïve Ångström, 中文, Ελληνικά, русский, עברית, 日本語

Flags \U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f,
families \U0001f468\u200d\U0001f469\u200d\U0001f467,
hearts \u2764\ufe0f, Persian \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645, 5 \u03bcm, k\u03a9, \u0394t.
<b style="color: red">bold</b> <details><summary>more</summary>text</details> <br>

| a | b |
| --- | --- |
| x  |  """
        + " " * 100
        + """| y |

    pip install acme  # [not a link](
"""
    )
    assert reviewed(texts(**{"a.md": text})).findings[1:] == ()  # the first is the skill that the manifest requires


def test_a_hidden_message_is_spelt_out() -> None:
    finding = reviewed(files_of(CASES["tags"])).findings[0]
    assert "'ignore all'" in finding.message
    assert str(finding).isascii()


def test_secrets_are_not_repeated() -> None:
    for name in ("aws", "github", "url password", "random"):
        case = CASES[name]
        assert isinstance(case.content, str)
        said = json.dumps([asdict(f) for f in reviewed(files_of(case)).findings if f.rule == "secret"])
        assert said != "[]"
        assert not any(word in said for word in ("AKIA", "ghp_", "hunter2", "q9X2"))


@pytest.mark.parametrize(
    "text",
    [
        "AKIAIOSFODNN7EXAMPLE",
        'password = "your-password-here-please"',
        'token = "${TOKEN_FROM_ENV_HERE}"',
        "postgres://user:{password}@db/x",
        "sk-your-key-goes-here-0000000000000000000",
    ],
)
def test_placeholders_are_no_secrets(text: str) -> None:
    assert [f for f in reviewed(texts(**{"a.md": text})).findings if f.rule == "secret"] == []


def test_imports_are_told_apart() -> None:
    code = """\
from __future__ import annotations
import os.path, json as j
import numpy as np
from PIL import Image
from runtime import blobs
from .words import count
import helper
from skills.acme.text.words import words_of
from skills.acme.text.count import main
import requests
def main(args): ...
text = "import nothing"  # import nothing_either
model.eval()
"""
    found = reviewed(
        texts(
            **{
                "skill.toml": MANIFEST + '[dependencies]\npython = ["numpy>=2", "Pillow"]\n',
                "code/main.py": code,
                "code/helper.py": "",
            }
        )
    )
    assert found.imports == {
        "standard": ("__future__", "json", "os"),
        "declared": ("PIL", "numpy"),
        "own": ("helper", "runtime"),
        "skills": ("skills.acme.text.count", "skills.acme.text.words"),
        "undeclared": ("requests",),
    }
    assert {f.rule for f in found.findings} == {"need-package", "need-skill", "undeclared-import", "undeclared-network"}


def test_needs_are_told_as_declared() -> None:
    found = reviewed(files_of(CASES["secret used"]))
    assert found.needs["secrets"] == [{"name": "KEY", "optional": False, "delivery": "gate", "hosts": ["a.dev"]}]
    assert found.needs["requires"] == ["acme.text.words >=1.0.0"]


def test_an_invalid_bundle_is_reviewed_too() -> None:
    found = reviewed({"SKILL.md": (b"no front matter <!-- x -->", False), "a": (b"\x7fELF" + bytes(9), False)})
    assert {f.rule for f in found.findings} == {"hidden-comment", "program"}
    assert found.needs == {}


def test_a_plain_agent_skill(tmp_path: Path) -> None:
    text = "---\nname: pdf\ndescription: x\ndisable-model-invocation: true\nallowed-tools: [Read, 'Bash(git:*)']\n---\n"
    found = reviewed({"SKILL.md": (text.encode(), False)}, "pdf")
    assert [(f.rule, f.line) for f in found.findings] == [("allowed-tools", 5), ("steering", 4)]
    assert found.needs["allowed_tools"] == ["Read", "Bash(git:*)"]


def test_the_gravest_comes_first_and_floods_are_cut() -> None:
    flood = texts(**{f"f{i}.md": "<!-- x -->\n" * 400 for i in range(90)}, **{"z.md": tagged_line()})
    found = reviewed(flood)
    assert found.findings[0].rule == "hidden-characters"
    assert len(found.findings) == 501
    assert found.findings[-1].rule == "review-partial"
    few = reviewed(texts(**{"a.md": "<!-- x -->\n" * 400})).findings
    assert [f.message for f in few if f.line == 0] == ["and 395 more places in this file"]


def tagged_line() -> str:
    return "\U000e0041\U000e0042"


def test_what_is_not_looked_at_is_said() -> None:
    long = "a" * 1_400_000 + "<!-- x -->"
    found = reviewed(texts(**{f"f{i}.md": long for i in range(8)}))
    partial = [f for f in found.findings if f.rule == "review-partial"]
    assert [f.file for f in partial] == [f"f{i}.md" for i in range(8)]
    assert sum("was not read" in f.message for f in partial) == 5


LONG_WORD = "aZ9" * 30
SECRETS = {
    "a private key": "-----BEGIN OPENSSH PRIVATE KEY-----",
    "an AWS access key": "ASIA2E7Q6KBVTXLMNOPQ",
    "a GitHub token": f"github_pat_{LONG_WORD}",
    "a GitLab token": f"glpat-{LONG_WORD[:20]}",
    "a Slack token": f"xoxb-{LONG_WORD}",
    "a Slack webhook": f"https://hooks.slack.com/services/T{LONG_WORD[:9]}/B{LONG_WORD[:9]}/{LONG_WORD[:24]}",
    "a Google API key": f"AIza{LONG_WORD[:35]}",
    "an Anthropic key": f"sk-ant-{LONG_WORD}",
    "an OpenAI key": f"sk-proj-{LONG_WORD}",
    "a Stripe key": f"rk_live_{LONG_WORD}",
    "an npm token": f"npm_{LONG_WORD[:36]}",
    "a PyPI token": f"pypi-AgEI{LONG_WORD}",
    "a Hugging Face token": f"hf_{'aZq' * 12}"[:37],
    "a SendGrid key": f"SG.{LONG_WORD[:22]}.{LONG_WORD[:43]}",
    "a Telegram token": f"987654321:AA{LONG_WORD[:33]}",
    "a signed token (JWT)": f"eyJ{LONG_WORD}.eyJ{LONG_WORD}.{LONG_WORD}",
    "an Azure account key": f"AccountKey={LONG_WORD[:86]}==",
    "a password in a URL": "redis://me:hunter2hunter@db.acme.dev",
}


@pytest.mark.parametrize("sort", SECRETS)
def test_each_sort_of_secret_is_found(sort: str) -> None:
    found = reviewed(texts(**{"a.txt": f"x\n{SECRETS[sort]}\n"})).findings
    assert [(f.line, f.message) for f in found if f.rule == "secret"] == [(2, f"holds what looks like {sort}")]


@pytest.mark.parametrize("name", ["PASSWORD", "passwd", "\u017fecret", "to\u212aen", "Api_Key", "accesskey", "AUTH"])
def test_each_name_of_a_secret_is_known(name: str) -> None:
    found = reviewed(texts(**{"a.txt": f"{name} = 'q9X2vB7kLm3Pz8Rt'"})).findings
    assert [f.level for f in found if f.rule == "secret"] == ["warning"]


def test_a_review_is_json() -> None:
    for case in CASES.values():
        made = reviewed(files_of(case)).as_dict()
        assert json.loads(json.dumps(made)) == made
        assert sum(made["counts"].values()) == len(made["findings"])
        assert all(Finding(**finding).mend for finding in made["findings"])


SCRAPS = st.sampled_from(
    [
        *(
            b"<",
            b"<!--",
            b"-->",
            b"<a style='",
            b"color:",
            b"![",
            b"](",
            b"[x]: #",
            b"http://",
            b"@",
            b"curl ",
            b"| sh",
        ),
        *(b"\xe2\x80\xae", b"\xf3\xa0\x81\x81", b"\xff", b"\0", b"\n", b" " * 200, b"\n" * 100, b"A1b2" * 60, b"eyJ"),
        *(b"password='", b"-----BEGIN PRIVATE KEY-----", b"#!", b"PK\x03\x04", b"MZ", b"\x80\x04.", b"import os\n"),
        *(
            b"eval(",
            b"f'{",
            b"'''",
            b"\\",
            b'{"scripts":{"install":1}}',
            b"[build-system]",
            b"\xef\xbb\xbf",
            b"\xff\xfe",
        ),
    ]
)
PATHS = st.sampled_from(
    [
        "SKILL.md",
        "skill.toml",
        "a.py",
        "a.md",
        "a.png",
        "a",
        "package.json",
        "pyproject.toml",
        ".claude/x",
        "a.html",
        "id_rsa",
    ]
)


@given(st.dictionaries(PATHS, st.lists(SCRAPS | st.binary(max_size=8), max_size=12).map(b"".join), max_size=4))
def test_any_bundle_has_a_review(files: dict[str, bytes]) -> None:
    made = reviewed({path: (data, False) for path, data in files.items()})
    for finding in made.findings:
        text = files[finding.file].decode("utf-16" if files[finding.file][:2] == b"\xff\xfe" else "utf-8", "replace")
        assert finding.rule in RULES
        assert finding.level in RULES[finding.rule].review
        assert 0 <= finding.line <= text.count("\n") + 1
        assert finding.message.isprintable()
    assert json.loads(json.dumps(made.as_dict())) == made.as_dict()


BOMBS = {
    "tags": b"<a " * 23_000,
    "attributes": b'<a x="' * 13_000,
    "comments": b"<!--" * 20_000,
    "images": b"![" * 33_000,
    "curl": b"curl " * 16_000,
    "pipes": b"curl |" * 13_000,
    "tokens": b"eyJ-" * 20_000,
    "blanks": b" " * 83_000,
    "lines": b"\n" * 83_000,
    "blank lines": b" \r\n" * 26_000,
    "base64": b"A1" * 40_000,
    "short base64": (b"A1" * 99 + b" ") * 400,
    "urls": b"http://" * 11_000,
    "brackets": b"](" * 40_000,
    "selectors": "\ufe0f".encode() * 26_000,
    "direction": "\u202e".encode() * 26_000,
    "cyrillic": "a\u0430".encode() * 26_000,
    "passwords": b"password='" * 8_000,
    "nested json": b'{"a":' * 16_000,
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", BOMBS)
def test_bombs_end(name: str) -> None:
    """The benchmark measures that a bomb of twice the size takes about twice as long."""
    data = BOMBS[name]
    review_here([File("a.md", data), File("package.json", data)])


@pytest.mark.parametrize(
    ("flood", "last", "rule"),
    [
        ("<br>\n", "<p hidden>x</p>", "hidden-text"),
        ("https://docs.acme.dev/\n", "https://bit.ly/x", "odd-host"),
        ("[x](SKILL.md)\n", "[x](../y)", "link-leaves"),
        ("token = 'your-token-goes-here'\n", 'token = "q9X2vB7kLm3Pz8Rt"', "secret"),
        ("sk-your-key-goes-here-0000000000000000000\n", "AKIA2E7Q6KBVTXLMNOPQ", "secret"),
        (f"{'=' * 3}{'a' * 250}\n", base64.b64encode(bytes(range(256))).decode(), "encoded"),
        ("\U0001f3f4\U000e0067\U000e007f\n", "\U000e0041", "hidden-characters"),
        ("import os\n", "import ctypes", "import"),
        ("eval = 1\n", "eval(x)", "call"),
    ],
)
def test_a_flood_of_harmless_things_hides_nothing(flood: str, last: str, rule: str) -> None:
    name = "a.py" if rule in ("import", "call") else "a.md"
    found = reviewed(texts(**{name: flood * 3000 + last}))
    assert (rule, name, 3001) in [(f.rule, f.file, f.line) for f in found.findings]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```\na\n```\nb", {2, 3}),
        ("a\n~~~ html\na\n```\n~~~~\nb", {3, 4, 5}),
        ("````\n```\n````\nb", {2, 3}),
        ("   ```\na", {2}),
        ("    ```\na", set()),
        ("``` a`b\na", set()),
        ("<!--\n```\n-->\na", set()),
        ("<!--\n\n```\n-->\na", set()),
        ("<div>\n```\n\na", set()),
        ("<div>\n\n```\na", {4}),
        ("<pre>\n\n```\n</pre>\na", set()),
        ("<!-- x -->\n```\na", {3}),
        ("a <!--\n```\na", {3}),
    ],
)
def test_lines_of_code(text: str, code: set[int]) -> None:
    assert code_lines(Text(text)) == code
