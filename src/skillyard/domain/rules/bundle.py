"""Rules on every bundle: its files, archives, sources, served directories and packages."""

from __future__ import annotations

from skillyard.domain.rules.rule import Rule, advice, always, form

_AGAIN = "make it anew with tar, zip, git archive or skillyard skill export"
_PORTABLE = "rename it: it must mean the same file on every system"
_LEAVE = "nothing, unless it was meant to be there"

FILES: tuple[Rule, ...] = (
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
"""On the files of a bundle, whatever they say."""

ARCHIVES: tuple[Rule, ...] = (
    always(
        "archive-format",
        "By its content it is neither a zip, a tar nor a gzipped tar.",
        "make a .zip or a .tar.gz",
    ),
    always("archive-size", "The archive has more bytes than one may have.", "leave out what the skill does not need"),
    always(
        "archive-empty",
        "It holds no file that can be part of a skill.",
        "put SKILL.md and the skill's files into it",
    ),
    always("archive-truncated", "It ends before it is complete.", "make or send it again"),
    always("archive-damaged", "A check sum is wrong, a length does not hold, or compressed data is none.", _AGAIN),
    always("archive-trailing", "There are bytes before, between or behind what the archive describes.", _AGAIN),
    always("archive-header", "A header does not follow the format, or says one thing in two ways.", _AGAIN),
    always("archive-extended", "An extended header is too large, doubled, or changes how content is read.", _AGAIN),
    always("archive-mismatch", "A zip's directory and its entries do not say the same.", _AGAIN),
    always("archive-overlap", "Entries of a zip share bytes.", _AGAIN),
    always("archive-disks", "It is one part of an archive in several parts.", "make one archive of it"),
    always("archive-zip64", "It is a zip of the format for more than 4 GiB or 65,535 entries.", "make a plain zip"),
    always("archive-encrypted", "An entry is encrypted.", "make it without a password"),
    always("archive-method", "An entry of a zip is neither stored nor deflated.", "use deflate, which every tool has"),
    always(
        "archive-entries",
        "It has more entries or directories than one archive may have.",
        "leave out what the skill does not need",
    ),
    always("archive-files", "It has more files than a skill may have.", "leave out what the skill does not need"),
    always("archive-bytes", "More bytes would come out than may.", "leave out what the skill does not need"),
    always("archive-ratio", "It unpacks to hundreds of times its size.", "store such files uncompressed"),
    always("archive-depth", "A file lies deeper than a skill's may.", "nest them less"),
    always("archive-encoding", "A name is no UTF-8.", "rename it, or make the archive with UTF-8 names"),
    always("archive-name", "A name is empty, or holds characters that do not print or that nobody sees.", "rename it"),
    always("archive-name-length", "A name has more than 255 bytes, or a path more than 1,024.", "use shorter names"),
    always("archive-backslash", "A name holds a backslash.", "use / between directories"),
    always(
        "archive-absolute",
        "A path is absolute, or begins with a drive letter.",
        "make the archive from inside the directory",
    ),
    always("archive-traversal", "A path goes up (`..`).", "make the archive from inside the directory"),
    always(
        "archive-reserved-name",
        "A name is a device's on Windows (CON, NUL, COM1 …), or holds what has a meaning there (`:`, `*`, `<` …).",
        _PORTABLE,
    ),
    always("archive-name-end", "A name ends in a dot or a space.", _PORTABLE),
    always(
        "archive-duplicate",
        "A path is there twice, or a file where there is a directory of that name.",
        "keep one",
    ),
    always("archive-collision", "Two names differ only in case, or in how Unicode spells them.", _PORTABLE),
    always(
        "archive-link",
        "An entry is a symbolic or a hard link.",
        "put the file itself there (tar --dereference, zip without -y)",
    ),
    always("archive-special", "An entry is a device, a FIFO, a sparse file or of an unknown kind.", "leave it out"),
    Rule(
        "archive-stripped",
        "note",
        "note",
        "All files lie in one directory, which is taken for the skill's own.",
        "nothing: tar and zip make archives so",
    ),
    Rule(
        "archive-dropped",
        "note",
        "note",
        "Entries were left out that are never part of a skill, such as `.git`.",
        "nothing, unless one of them was meant to be there: then rename it",
    ),
)
"""Each is an error, whatever the profile, since there is no bundle then."""

SOURCES: tuple[Rule, ...] = (
    always(
        "git-index",
        "The checkout's index cannot be read: damaged, split, sparse or of an unknown version.",
        "git update-index --no-split-index; git sparse-checkout disable",
    ),
    always("git-empty", "Nothing is tracked there.", "git add the skill's files, or name another directory by --path"),
    always(
        "git-link",
        "A tracked link leads to nothing that is tracked in the skill.",
        "put a copy of the file in the link's place",
    ),
    Rule("git-submodule", "note", "note", "A submodule is not read.", _LEAVE),
    Rule("git-missing", "note", "note", "A tracked file is not in the work tree.", _LEAVE),
    always("source-choice", "The source holds skills, and is none itself.", "choose one with --path"),
)
"""On the place that a bundle is installed from."""

CATALOGUE: tuple[Rule, ...] = (
    Rule(
        "root-missing",
        "",
        "warning",
        "A directory of the settings is not there.",
        "create it, or take it out of skills_dirs",
    ),
    Rule(
        "scan-project",
        "",
        "note",
        "The directory is a project: only the places of its skills are searched.",
        "name a directory of skills itself to have all of it searched",
    ),
    Rule(
        "scan-depth",
        "",
        "warning",
        "Skills may lie deeper than is searched.",
        "move them nearer to the directory in skills_dirs",
    ),
    Rule(
        "scan-directories",
        "",
        "warning",
        "The search ended before it saw every directory.",
        "keep skills in a directory of their own",
    ),
    Rule(
        "snapshot",
        "",
        "error",
        "The only copy of a published version is missing or damaged.",
        "publish the same bundle again",
    ),
    Rule(
        "duplicate-version",
        "",
        "warning or error",
        "The same name and version lies in two places; one of them is served.",
        "remove one of them, or raise its version",
    ),
    Rule("guide-reserved", "", "error", "The name is the built-in guide's.", "choose another name"),
    Rule(
        "withdrawn",
        "",
        "warning",
        "A directory holds a version that was withdrawn; it is served from nowhere.",
        "restore it, or remove the directory",
    ),
    Rule(
        "published", "", "error", "A publication cannot be served any more.", "publish a version that keeps the rules"
    ),
    Rule("more-problems", "", "note", "There are more problems than are told.", "mend those that are told first"),
)
"""On the directories and publications that a catalogue serves from; bundles alone break none of these."""

PACKAGES: tuple[Rule, ...] = (
    form("requirement", "A line is no plain requirement.", "write a name with versions, such as numpy>=2,<3"),
    always("requirements-size", "A requirements file is too large.", "list only what the code imports"),
    always("dependencies-many", "The skill asks for too many packages.", "list only what the code imports"),
    form("script-toml", "Inline script metadata is not TOML.", "mend the line named; strings stand in quotes"),
    form("script-type", "A value of inline script metadata is of the wrong type.", "write it as PEP 723 says"),
    form("script-size", "Inline script metadata is too large.", "list only what the script imports"),
    form("script-twice", "A script has two blocks of metadata.", "keep one"),
    advice("script-unclosed", "Inline script metadata has no end.", "end it with a line '# ///'"),
    form("requires-python", "requires-python is no range of versions.", 'write it like ">=3.11"'),
    advice("python-version", "The script asks for another Python than runs have.", "run it where its Python is"),
)
"""On requirements files and on the inline metadata of scripts (PEP 508, PEP 723). In an Agent Skill a breach of form is
a warning in each profile: its specification says nothing of them."""
