"""Rules on the files of a bundle, whatever they say."""

from __future__ import annotations

from skillyard.domain.rules.rule import Rule, advice, always

RULES: tuple[Rule, ...] = (
    always(
        "no-directory",
        "The path is not a directory that holds a skill.",
        "name the directory that holds SKILL.md or skill.toml",
    ),
    always("unreadable", "A file or directory cannot be read.", "give its owner the right to read it (chmod u+rX)"),
    always(
        "file-name",
        "A name is no UTF-8, or holds backslashes or control characters.",
        "rename it with letters, digits, '.', '_' and '-'",
    ),
    always(
        "special-file",
        "Something is neither a file, a directory nor a link: a socket, a pipe, a device.",
        "remove it: a bundle holds files",
    ),
    always("link-outside", "A link leaves the skill's directory.", "put a copy of the file in the link's place"),
    always(
        "link-excluded",
        "A link leads to what is never part of a skill, such as `.git` or `.env`.",
        "remove the link",
    ),
    always("link-loop", "A link leads to itself, or to a directory that holds it.", "remove the link"),
    always("link-broken", "A link leads to nothing.", "remove the link, or add the file that it names"),
    advice(
        "portable-name",
        "A name is none on other systems, or means the same file as another there: such a skill cannot be published.",
        "rename it: it must mean the same file on every system",
    ),
    always("tree-depth", "Directories are nested too deep.", "move the files nearer to the root"),
    always("tree-files", "The skill has too many files.", "remove what is not needed, or pack data into one file"),
    always("tree-bytes", "The skill has too many bytes.", "take large data out of the bundle and pass it as a blob"),
)
