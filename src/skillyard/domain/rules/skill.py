"""Rules on what a skill says of itself: skill.toml, SKILL.md and tests/examples.toml."""

from __future__ import annotations

from skillyard.domain.rules.rule import Rule, advice, always, form


def _mixed(id: str, meaning: str, mend: str) -> Rule:
    """An error; lenient only warns where it does not keep the skill from being served."""
    return Rule(id, "error", "error or warning", meaning, mend)


MANIFEST: tuple[Rule, ...] = (
    _mixed("toml", "skill.toml is not TOML.", "mend the line named; strings stand in quotes"),
    always("depth", "Tables are nested too deep.", "flatten them"),
    _mixed("required", "Something required is missing.", "add it"),
    Rule(
        "type",
        "error",
        "error or warning",
        "A value is of the wrong type.",
        "write it in the form that the message names",
    ),
    _mixed("empty", "A value is empty.", "give it a value, or take the key away"),
    always("number", "A number is infinite or none at all.", "give a finite number"),
    advice(
        "unknown-key",
        "Nothing reads this key.",
        "look for a slip of the pen; keys of your own start with 'x-', in SKILL.md they go below 'metadata'",
    ),
    always("kind", "The kind is neither `action` nor `instruction`.", 'write kind = "action" for a skill that runs'),
    Rule(
        "semver",
        "error or warning",
        "error or warning",
        "A version is no semantic version.",
        "write three numbers, such as 1.4.0",
    ),
    form("one-line", "The description has several lines.", "keep one line here; the rest belongs into SKILL.md"),
    form("homepage", "The homepage is no web address.", "start it with https://"),
    Rule(
        "name-alphabet",
        "error",
        "error or warning",
        "The name has characters that names do not have.",
        "use lowercase letters and digits, joined by dots in skill.toml and by hyphens in an Agent Skill",
    ),
    Rule("name-length", "error", "error or warning", "The name is too long.", "shorten it"),
    always(
        "name-segment", "A part of the name cannot be imported by Python.", "start it with a letter; avoid keywords"
    ),
    advice("name-hierarchy", "The name has no namespace.", "put your own before it, such as 'acme.text.count'"),
    always("namespace", "The namespace is not the first part of the name.", "take the key away: the name has it"),
    Rule(
        "directory-name",
        "error or warning",
        "warning",
        "The directory is not named as the skill is.",
        "rename one of the two",
    ),
    form("directory-version", "The directory's version is not the skill's.", "rename the directory"),
    always("runtime", "An instruction skill has a [runtime].", 'take it away, or write kind = "action"'),
    always("language", "The language is not Python.", 'write language = "python"'),
    always("entrypoint-file", "The entrypoint is no Python file.", "name a file that ends with .py"),
    always("entrypoint-missing", "The skill has no such file as its entrypoint.", "add it, or name the one it has"),
    always("entrypoint-size", "The entrypoint is too large to be checked.", "move data out of the code"),
    always("entrypoint-syntax", "The entrypoint is no Python.", "mend the line named"),
    always("export", "The export is no name of a function.", "name a function of the entrypoint, such as main"),
    always("export-missing", "The entrypoint does not define the export.", "add def main(args): at its top level"),
    always("environment", "The environment's name breaks the rules.", "use lowercase letters, digits and '._-'"),
    always("image", "The image is not named by digest.", "write it like python@sha256:… or sha256:…"),
    _mixed("path", "A path leaves the skill or is no plain relative path.", "write it like code/main.py"),
    _mixed("limit", "A limit is unknown, too small or no number.", "see [limits] in docs/skills.md"),
    always("dependency", "A dependency is no plain requirement.", "write a name with versions, such as numpy>=2,<3"),
    always(
        "requires", "An entry of requires is not a skill with versions.", "write it like 'acme.text.count >=1.2,<2'"
    ),
    always("requires-duplicate", "A skill is required twice.", "keep one entry with both ranges"),
    always("network-host", "A network rule names no host that can be reached.", "write it like api.example.com:443"),
    always("network-port", "A network rule has an impossible port.", "ports are from 1 to 65535"),
    always(
        "guarantee",
        "`guarantees` names something that no sandbox promises.",
        "use names that `skillyard doctor` shows, such as own_kernel",
    ),
    always("network-many", "There are too many network rules.", "use patterns such as *.example.com"),
    advice("network-open", "The skill asks for every host.", "name the hosts that it needs"),
    _mixed("secret-name", "A secret's name is no variable's name, or one that steers programs.", "choose another"),
    always("secret-duplicate", "A secret is named twice.", "keep one entry"),
    always("secret-delivery", "The delivery of a secret is unknown.", 'write "env" or "gate"'),
    always("secret-host", "A secret is bound to no host that it could be sent to.", "write it like api.example.com"),
    always("tool-name", "A tool is not named with its server.", "write it like git__git_log or git__*"),
    always("tools-many", "There are too many tools.", "use patterns such as git__*"),
    always("schema-twice", "A schema stands in the manifest and in a file.", "keep one of them"),
    always("schema-missing", "The skill has no such file as its schema.", "add it, or name the one it has"),
    always("schema-json", "A schema file holds no JSON object.", "mend the line named"),
    always("schema-depth", "A schema is nested too deep.", "describe less of the depth"),
    always("schema-dialect", "A schema is not JSON Schema 2020-12.", "take $schema away, and adapt older keywords"),
    _mixed("schema", "A schema breaks the rules of JSON Schema 2020-12.", "mend the keyword that the message names"),
    always("schema-type", "A schema describes no object.", 'write type = "object": args and outputs are objects'),
    advice("schema-keyword", "A word in a schema is no keyword.", "put the fields of args below 'properties'"),
    always("schema-reference", "A schema refers to another document.", "copy it below $defs and refer to '#/$defs/…'"),
    form(
        "schema-pattern",
        "A pattern is not a regular expression, or too large a one; where it is served, runs fail.",
        "mend or shorten it; in TOML use '…' quotes for backslashes",
    ),
    form(
        "schema-large",
        "A schema has too many subschemas or patterns; where it is served, runs fail.",
        "describe less of the value; check the rest in the code",
    ),
    form(
        "schema-expansion",
        "A schema's references multiply: one value meets too many subschemas; where it is served, runs fail.",
        "refer to each definition once",
    ),
)
"""On skill.toml and on the files that it names (skills-protocol §8)."""

SKILL_MD: tuple[Rule, ...] = (
    form("encoding", "SKILL.md is not UTF-8.", "save it as UTF-8"),
    Rule(
        "front-matter",
        "error",
        "error or warning",
        "SKILL.md has no front matter, or it is never closed.",
        "put name and description between two lines '---' at the start",
    ),
    Rule(
        "yaml",
        "error",
        "error or warning",
        "The front matter is not valid YAML, or uses anchors, tags or duplicate keys.",
        "mend the line named; a value that holds ': ' stands in quotes",
    ),
    always(
        "name-unusable",
        "Neither the front matter nor the directory has a name that can be served.",
        "name both alike, with lowercase letters, digits and hyphens",
    ),
    form("description-length", "The description is too long.", "keep what it does and when to use it"),
    form(
        "compatibility-length", "`compatibility` is empty or too long.", "say in a line what it needs, or leave it out"
    ),
    advice("hooks", "The front matter asks hosts to run commands by themselves.", "take it away: nothing runs here"),
    advice(
        "body-length",
        "The instructions are longer than the specification advises.",
        "move parts into references/, and say when to read them",
    ),
    advice("invisible", "A character is invisible to people and read by models.", "delete it"),
    Rule(
        "front-matter-name",
        "warning",
        "",
        "The name in SKILL.md is a title, which Agent Skills hosts refuse.",
        "write the last part of the skill's name, and the title as metadata.title",
    ),
)
"""The Agent Skills specification, and the rules for a SKILL.md beside a skill.toml."""

EXAMPLES: tuple[Rule, ...] = (
    form("example-many", "There are too many examples.", "keep those that show something of their own"),
    form("example-duplicate", "Two examples have the same name.", "name each after what it shows"),
    form("example-file", "An example names a file that the skill has not.", "write its path from the skill's root"),
    Rule(
        "example-way",
        "error or warning",
        "warning",
        "An example says twice, or not at all, what is to be run or expected.",
        "see docs/skill-tests.md for what goes together",
    ),
    form("example-bytes", "The expected bytes are not hexadecimal.", "write them like 89504e47"),
)
