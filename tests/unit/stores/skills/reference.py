"""Our strict profile beside the reference validator ``skills-ref``, an oracle for tests alone: where the two part, and
why. ``docs/skills-ref.md`` holds the same table."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import skills_ref  # type: ignore[import-untyped]
import yaml

from skillyard.stores.skills.validation.bundle import validate
from skillyard.stores.skills.validation.skill_md import NoFrontMatter, split
from skillyard.yaml_values import Document, YamlRefused
from tests.unit.stores.skills.skilldirs import write

FINE = "name: pdf-tools\ndescription: Reads PDFs\n"


def front(lines: str, body: str = "Do this.\n") -> str:
    return f"---\n{lines}---\n{body}"


@dataclass(frozen=True)
class Sample:
    """A bundle: SKILL.md and perhaps other files, in a directory of this name."""

    text: str | bytes
    directory: str = "pdf-tools"
    more: dict[str, str | bytes] = field(default_factory=dict)
    file: str = "SKILL.md"

    def written(self, root: Path) -> Path:
        return write(root / self.directory, {self.file: self.text, **self.more})

    @property
    def plain(self) -> str:
        text = self.text if isinstance(self.text, str) else self.text.decode("utf-8", "replace")
        return text.removeprefix("\ufeff")

    @property
    def ours(self) -> str:
        """The front matter as we cut it out; empty when there is none."""
        try:
            return split(self.plain).yaml
        except NoFrontMatter:
            return ""

    @property
    def document(self) -> Document | None:
        try:
            return Document(self.ours)
        except YamlRefused:
            return None

    def value(self, key: str) -> object:
        """What the front matter says, ``...`` when it has no such key."""
        data = self.document.value if self.document else None
        return data.get(key, ...) if isinstance(data, dict) else ...

    def text_of(self, *path: str) -> str | None:
        return self.document.source.get(path) if self.document else None


def is_valid_for_us(directory: Path) -> bool:
    return not any(finding.level == "error" for finding in validate(directory, "strict"))


def is_valid_for_reference(directory: Path) -> bool:
    """A crash of the reference is no yes either: bytes that are no UTF-8, control characters and some comments cause
    one."""
    with suppress(Exception):
        return not skills_ref.validate(directory)
    return False


@dataclass(frozen=True)
class Difference:
    """``ours`` is whether we call the ``samples`` valid; the reference says the opposite. ``applies`` says whether the
    difference can be seen in a bundle."""

    id: str
    ours: bool
    what: str
    why: str
    samples: tuple[Sample, ...]
    applies: Callable[[Sample], bool]


def _extra_key(sample: Sample) -> bool:
    data = sample.document.value if sample.document else None
    known = {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
    return isinstance(data, dict) and bool(set(data) - known)


def _cut(sample: Sample) -> str:
    """The front matter as the reference cuts it out: between the first two runs of three dashes, anywhere."""
    parts = sample.plain.replace("\r\n", "\n").replace("\r", "\n").split("---", 2)
    return parts[1] if len(parts) == 3 and not parts[0] else ""


def _cuts_elsewhere(sample: Sample) -> bool:
    return _cut(sample).strip() != sample.ours.replace("\r\n", "\n").strip()


def _flows(sample: Sample) -> bool:
    with suppress(yaml.YAMLError):
        return any(getattr(event, "flow_style", False) for event in yaml.parse(sample.ours, Loader=yaml.SafeLoader))
    return False


def _separates(sample: Sample) -> bool:
    return re.search("[\x85\u2028\u2029]", sample.plain) is not None


def _is_map_of_texts(sample: Sample) -> bool:
    value = sample.value("metadata")
    return isinstance(value, dict) and all(sample.text_of("metadata", key) is not None for key in value)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _beyond_ascii(sample: Sample) -> bool:
    name = sample.text_of("name")
    return name is not None and not name.isascii() and unicodedata.normalize("NFKC", name).replace("-", "").isalnum()


def _blanks(sample: Sample) -> bool:
    name = sample.text_of("name")
    return name is not None and name != name.strip()


def _too_much(sample: Sample) -> bool:
    nodes = sample.ours.count("\n") + sample.ours.count(":")
    return len(sample.ours.encode()) > 65_536 or nodes > 5000 or "\n" + " " * 17 in sample.ours


DIFFERENCES = (
    Difference(
        "extra-key",
        True,
        "A key that the specification does not name, such as `tags` or `version`.",
        "The specification does not forbid it, and most skills in the wild have one. We warn and keep it.",
        (Sample(front(FINE + "tags: x\n")), Sample(front(FINE + "disable-model-invocation: true\n"))),
        _extra_key,
    ),
    Difference(
        "byte-order-mark",
        True,
        "A byte order mark before the first `---`.",
        "Editors write it, and nothing is ambiguous with it.",
        (Sample("\ufeff" + front(FINE)),),
        lambda sample: (sample.text if isinstance(sample.text, bytes) else sample.text.encode())[:3] == b"\xef\xbb\xbf",
    ),
    Difference(
        "dashes-in-a-value",
        True,
        "Three dashes inside a value or a comment.",
        "The reference ends the front matter there, in the middle of a line, and misses what follows.",
        (Sample(front("description: a --- b\nname: pdf-tools\n")), Sample(front("# ---- \n" + FINE))),
        _cuts_elsewhere,
    ),
    Difference(
        "flow-style",
        True,
        "A list or a map in brackets, such as `[Read, Grep]`.",
        "It is plain YAML; the reference's parser has a rule of its own against it.",
        (Sample(front(FINE + "allowed-tools: [Read, Grep]\n")), Sample(front(FINE + "metadata: {a: b}\n"))),
        _flows,
    ),
    Difference(
        "line-separators",
        True,
        "U+2028, U+2029 or U+0085 in a value.",
        "They are characters like any other since YAML 1.2; the reference's parser breaks the line there.",
        (Sample(front("name: pdf-tools\ndescription: >-\n  a\u2028b\n")),),
        _separates,
    ),
    Difference(
        "line-separators-in-comments",
        False,
        "U+2028, U+2029 or U+0085 in a comment, with a value behind it.",
        "The same: for the reference the comment ends there, for everybody else at the end of the line.",
        (Sample(front("name: pdf-tools\ndescription: # a\u2028b\n")),),
        _separates,
    ),
    Difference(
        "other-fence",
        False,
        "The front matter is opened or closed by a line that is not `---` alone: `----`, `--- x`, an indented one.",
        "The specification has lines of three dashes; hosts that look for those see no front matter.",
        (
            Sample("---\nname: pdf-tools\ndescription: x\n---- no fence\n"),
            Sample("--- # hi\n" + FINE + "---\n"),
            Sample("---\n" + FINE + "  ---\nDo this.\n"),
        ),
        _cuts_elsewhere,
    ),
    Difference(
        "carriage-returns",
        False,
        "Lines that end with a carriage return alone.",
        "No editor of today writes them; other hosts see one long line.",
        (Sample(front(FINE).replace("\n", "\r").encode()),),
        lambda sample: re.search("\r(?!\n)", sample.plain) is not None,
    ),
    Difference(
        "lower-case-file",
        False,
        "The file is named `skill.md`.",
        "The specification says `SKILL.md`, and hosts look for no other.",
        (Sample(front(FINE), file="skill.md"),),
        lambda sample: sample.file != "SKILL.md",
    ),
    Difference(
        "compatibility-empty",
        False,
        "`compatibility` is there and empty.",
        "The specification gives it 1 to 500 characters.",
        (Sample(front(FINE + "compatibility:\n")), Sample(front(FINE + "compatibility: ''\n"))),
        lambda sample: sample.text_of("compatibility") == "",
    ),
    Difference(
        "metadata",
        False,
        "`metadata` is not a map of strings.",
        "The specification has a map from strings to strings.",
        (
            Sample(front(FINE + "metadata: x\n")),
            Sample(front(FINE + "metadata:\n  a:\n    b: c\n")),
            Sample(front(FINE + "metadata:\n")),
        ),
        lambda sample: sample.value("metadata") is not ... and not _is_map_of_texts(sample),
    ),
    Difference(
        "license-type",
        False,
        "`license` is a list or a map.",
        "The specification has a name or a file.",
        (Sample(front(FINE + "license:\n- MIT\n")),),
        lambda sample: isinstance(sample.value("license"), (list, dict)),
    ),
    Difference(
        "allowed-tools-type",
        False,
        "`allowed-tools` is a map, or a list of something else than strings.",
        "The specification has a string with blanks. A list of strings is common, means the same, and both accept it.",
        (Sample(front(FINE + "allowed-tools:\n  a: b\n")), Sample(front(FINE + "allowed-tools:\n- a: b\n"))),
        lambda sample: (
            sample.text_of("allowed-tools") is None
            and sample.value("allowed-tools") is not ...
            and not _is_texts(sample.value("allowed-tools"))
        ),
    ),
    Difference(
        "letters",
        False,
        "The name has letters or digits beyond a-z and 0-9, such as `é`.",
        "The specification says a-z and 0-9; a name stands in paths, URLs and imports.",
        (Sample(front("name: é\ndescription: x\n"), "é"), Sample(front("name: \ufb01le\ndescription: x\n"), "file")),
        _beyond_ascii,
    ),
    Difference(
        "blanks-around-the-name",
        False,
        "A quoted name begins or ends with a blank.",
        "It is not the directory's name then. The reference strips it before it looks.",
        (Sample(front("name: ' pdf-tools '\ndescription: x\n")),),
        _blanks,
    ),
    Difference(
        "bounds",
        False,
        "More than 64 KiB, 5,000 values or 16 levels of front matter; more than 512 files, 16 MiB or 16 directories of "
        "depth in the bundle.",
        "A host need not support more, and a server reads bundles of unknown origin.",
        (
            Sample(front(f"{FINE}# {'x' * 66_000}\n")),
            Sample(front(FINE), more={f"f{number}": "" for number in range(520)}),
        ),
        lambda sample: _too_much(sample) or len(sample.more) > 500,
    ),
    Difference(
        "file-names",
        False,
        "A file's name holds control characters or backslashes, or is not UTF-8; a link leaves the bundle; something "
        "is neither file nor directory.",
        "Such a bundle cannot be packed, copied and read alike everywhere.",
        (Sample(front(FINE), more={"a\\b": "x"}),),
        lambda sample: any("\\" in path or not path.isprintable() for path in sample.more),
    ),
    Difference(
        "packages",
        False,
        "The bundle asks for more than 256 Python packages, or in a file of more than 256 KiB.",
        "They are resolved and installed; the specification knows of none.",
        (Sample(front(FINE), more={"requirements.txt": "".join(f"p{i}\n" for i in range(300))}),),
        lambda sample: "requirements.txt" in sample.more,
    ),
)
"""Where our strict profile and skills-ref 0.1.1 part."""


def explained(sample: Sample, ours: bool) -> list[str]:
    """The ids of the differences that can be seen in a bundle on which the two do not agree."""
    return [known.id for known in DIFFERENCES if known.ours == ours and known.applies(sample)]
