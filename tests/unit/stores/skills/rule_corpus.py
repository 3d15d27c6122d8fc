"""For each rule of validation a bundle that breaks it, and the levels that it has in the two profiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tests.unit.stores.skills.skilldirs import MAIN

NAME = "acme.text.count"
HEAD = f'name = "{NAME}"\nversion = "1.0.0"\ndescription = "A skill"\nkind = "action"\n'
RUNTIME = '[runtime]\nlanguage = "python"\nentrypoint = "code/main.py"\nexport = "main"\n'
SKILL_MD = "---\nname: count\ndescription: A skill\n---\nUse it.\n"
FINE = "name: pdf\ndescription: x\n"

Files = Mapping[str, str | bytes]


@dataclass(frozen=True)
class Case:
    """``strict`` and ``lenient`` are the levels of ``rule``, empty when it is not told there."""

    rule: str
    files: Files
    strict: str = "error"
    lenient: str = "error"
    directory: str = NAME


def toml(text: str, head: str = HEAD, *, more: Files | None = None) -> Files:
    """An action skill whose manifest ends with ``text``."""
    return {"skill.toml": f"{head}{RUNTIME}{text}", "SKILL.md": SKILL_MD, "code/main.py": MAIN, **(more or {})}


def head(text: str, more: Files | None = None) -> Files:
    """``text`` stands before the tables."""
    return toml("", f"{HEAD}{text}\n", more=more)


def named(key: str, value: str) -> Files:
    lines = [line for line in HEAD.splitlines() if not line.startswith(f"{key} ")]
    return toml("", "\n".join([*lines, f"{key} = {value}", ""]))


def runtime(old: str, new: str) -> Files:
    return {"skill.toml": f"{HEAD}{RUNTIME}".replace(old, new), "SKILL.md": SKILL_MD, "code/main.py": MAIN}


def front(lines: str, body: str = "Do this.\n") -> Files:
    return {"SKILL.md": f"---\n{lines}---\n{body}"}


def agent(rule: str, lines: str, lenient: str = "warning", directory: str = "pdf") -> Case:
    return Case(rule, front(lines), "error", lenient, directory)


def examples(text: str) -> Files:
    return toml("", more={"tests/examples.toml": f'[[example]]\nname = "a"\n{text}\n'})


DOUBLING = '"$ref" = "#/$defs/d0"\n[inputs."$defs"]\nd26 = {}\n' + "".join(
    f'd{n}.allOf = [{{ "$ref" = "#/$defs/d{n + 1}" }}, {{ "$ref" = "#/$defs/d{n + 1}" }}]\n' for n in range(26)
)


CASES = (
    # Files
    Case("file-name", toml("", more={"a\nb": "x"})),
    Case("portable-name", toml("", more={"code/Main.py": "x"}), "warning", "warning"),
    Case("portable-name", toml("", more={"resources/aux.txt": "x"}), "warning", "warning"),
    Case("tree-depth", toml("", more={"/".join("a" * 20) + "/x": "x"})),
    Case("tree-files", toml("", more={f"f{number}": "" for number in range(520)})),
    Case("tree-bytes", toml("", more={"big": bytes(17 * 1024 * 1024)})),
    # skill.toml
    Case("toml", {"skill.toml": "x = ", "SKILL.md": SKILL_MD}),
    Case("toml", toml("", more={"tests/examples.toml": "x = "}), "error", "warning"),
    Case("depth", toml("x-a = " + "[" * 70 + "]" * 70 + "\n")),
    Case("required", {**toml(""), "skill.toml": RUNTIME}),
    Case("required", {"skill.toml": f"{HEAD}{RUNTIME}"}),
    Case("required", toml("", more={"tests/examples.toml": "[[example]]\n"}), "error", "warning"),
    agent("required", "description: x\n"),
    Case("type", head("tags = 1")),
    agent("type", f"{FINE}license: [MIT]\n"),
    Case("empty", named("description", '" "')),
    Case("empty", examples('code = ""'), "error", "warning"),
    Case("number", head("x-a = inf")),
    Case("unknown-key", head("nonsense = 1"), "warning", "warning"),
    Case("kind", named("kind", '"acton"')),
    Case("semver", named("version", '"1.0"')),
    Case("semver", front(f"{FINE}metadata:\n  version: latest\n"), "warning", "warning", "pdf"),
    Case("one-line", named("description", '"a\\nb"'), "error", "warning"),
    Case("homepage", head('homepage = "here"'), "error", "warning"),
    Case("name-alphabet", named("name", '"Acme"')),
    Case("name-alphabet", named("name", '"acme-text.count"'), "error", "warning"),
    agent("name-alphabet", "name: Pdf\ndescription: x\n", "warning", "Pdf"),
    Case("name-length", named("name", f'"{"a" * 300}"')),
    agent("name-length", f"name: {'a' * 65}\ndescription: x\n", "warning", "a" * 65),
    Case("name-segment", named("name", '"acme.import"')),
    Case("name-hierarchy", named("name", '"count"'), "warning", "warning"),
    Case("namespace", head('namespace = "other"')),
    Case("directory-name", toml(""), "warning", "warning", "elsewhere"),
    agent("directory-name", FINE, "warning", "elsewhere"),
    Case("directory-version", toml(""), "error", "warning", f"{NAME}/2.0.0"),
    Case("runtime", runtime('kind = "action"', 'kind = "instruction"')),
    Case("language", runtime('"python"', '"ruby"')),
    Case("entrypoint-file", runtime("code/main.py", "code/main.sh")),
    Case("entrypoint-missing", runtime("code/main.py", "code/other.py")),
    Case("entrypoint-size", toml("", more={"code/main.py": MAIN + "#" * 1024 * 1024})),
    Case("entrypoint-size", toml("", more={"code/main.py": MAIN + "a;" * 200_000})),
    Case("entrypoint-syntax", toml("", more={"code/main.py": "def main(:\n"})),
    Case("entrypoint-syntax", toml("", more={"code/main.py": f"{MAIN}x = {'(' * 250}{')' * 250}\n"})),
    Case("export", runtime('export = "main"', 'export = "a b"')),
    Case("export-missing", runtime('export = "main"', 'export = "other"')),
    Case("environment", toml("environment = 'A B'\n")),
    Case("image", toml("image = 'python:3.11'\n")),
    Case("guarantee", toml("guarantees = ['warp']\n")),
    Case("path", runtime("code/main.py", "../main.py")),
    Case("path", examples('script = "../x"'), "error", "warning"),
    Case("limit", toml("[limits]\nram = 1\n")),
    Case("limit", examples("limits = { ram = 1 }"), "error", "warning"),
    Case("dependency", toml('[dependencies]\npython = ["git+https://x"]\n')),
    Case("requires", head('requires = ["a b c"]')),
    Case("requires-duplicate", head('requires = ["a.b", "a.b >=1"]')),
    Case("network-host", toml('[permissions]\nnetwork = ["http://x"]\n')),
    Case("network-port", toml('[permissions]\nnetwork = ["x.com:0"]\n')),
    Case("network-many", toml(f"[permissions]\nnetwork = {['x.com'] * 1001}\n")),
    Case("network-open", toml('[permissions]\nnetwork = ["*"]\n'), "warning", "warning"),
    Case("tool-name", toml('[permissions]\ntools = ["git.log"]\n')),
    Case("tools-many", toml(f"[permissions]\ntools = {[f'git__t{number}' for number in range(65)]}\n")),
    Case("secret-name", toml('[permissions]\nsecrets = ["PATH"]\n')),
    Case("secret-name", examples('secrets = { "a b" = "x" }'), "error", "warning"),
    Case("secret-duplicate", toml('[permissions]\nsecrets = ["A", "A"]\n')),
    Case("secret-delivery", toml('[permissions]\nsecrets = [{ name = "A", delivery = "x" }]\n')),
    Case("secret-host", toml('[permissions]\nsecrets = [{ name = "A", hosts = ["/"] }]\n')),
    Case("schema-twice", toml("[inputs]\n", f'{HEAD}inputs_schema = "a.json"\n', more={"a.json": "{}"})),
    Case("schema-missing", head('inputs_schema = "a.json"')),
    Case("schema-json", head('inputs_schema = "a.json"', more={"a.json": "["})),
    Case("schema-depth", toml(f"[inputs]\nproperties = {'{ a = { properties = ' * 20}{{}}{' } }' * 20}\n")),
    Case("schema-dialect", toml('[inputs]\n"$schema" = "http://json-schema.org/draft-07/schema#"\n')),
    Case("schema", toml('[inputs]\ntype = "objekt"\n')),
    Case("schema-type", toml('[inputs]\ntype = "string"\n')),
    Case("schema-keyword", toml('[inputs]\ntext = "string"\n'), "warning", "warning"),
    Case("schema-reference", toml('[inputs]\n"$ref" = "https://x.org/a"\n')),
    Case("schema-pattern", toml("[inputs.properties.a]\npattern = '('\n"), "error", "warning"),
    Case("schema-pattern", toml(f"[inputs.properties.a]\npattern = '{'a' * 1001}'\n"), "error", "warning"),
    Case("schema-pattern", toml("[inputs.properties.a]\npattern = '((a{100}){100}){100}'\n"), "error", "warning"),
    Case("schema-large", toml(f"[inputs]\nanyOf = [{'{}, ' * 5001}]\n"), "error", "warning"),
    Case(
        "schema-large",
        toml("[inputs.patternProperties]\n" + "".join(f"a{n} = {{}}\n" for n in range(101))),
        "error",
        "warning",
    ),
    Case("schema-expansion", toml("[inputs]\n" + DOUBLING), "error", "warning"),
    Case("schema", examples('[example.expect.schema]\ntype = "objekt"'), "error", "warning"),
    # SKILL.md
    Case("encoding", {"SKILL.md": f"---\n{FINE}---\n".encode() + b"\xff"}, "error", "warning", "pdf"),
    Case("front-matter", {"SKILL.md": "# Title\n"}, directory="pdf"),
    Case("front-matter", toml("", more={"SKILL.md": "# Title\n"}), "error", "warning"),
    agent("yaml", f"{FINE}license: &a x\n", "error"),
    agent("yaml", "name: pdf\ndescription: use when: always\n"),
    Case("name-unusable", front("name: a/b\ndescription: x\n"), directory="my tools"),
    agent("description-length", f"name: pdf\ndescription: {'a' * 1025}\n"),
    agent("compatibility-length", f"{FINE}compatibility: ''\n"),
    Case("hooks", front(f"{FINE}hooks: {{}}\n"), "warning", "warning", "pdf"),
    Case("body-length", front(FINE, "x\n" * 501), "warning", "warning", "pdf"),
    Case("invisible", front(FINE, "a\u200bb\n"), "warning", "warning", "pdf"),
    Case(
        "front-matter-name", toml("", more={"SKILL.md": SKILL_MD.replace("name: count", "name: Count")}), "warning", ""
    ),
    # Examples
    Case("example-many", examples("[[example]]\n" * 101), "error", "warning"),
    Case("example-duplicate", examples('[[example]]\nname = "a"'), "error", "warning"),
    Case("example-file", examples('script = "no"'), "error", "warning"),
    Case("example-way", examples('argv = ["x"]'), "error", "warning"),
    Case(
        "example-way", {**front(FINE), "tests/examples.toml": '[[example]]\nname = "a"\n'}, "warning", "warning", "pdf"
    ),
    Case("example-bytes", examples('expect = { blobs = [{ bytes = "x" }] }'), "error", "warning"),
    # Packages
    Case("requirement", toml("", more={"code/requirements.txt": "-r other.txt\n"}), "error", "warning"),
    Case("requirements-size", toml("", more={"code/requirements.txt": "a\n" * 200_000})),
)
