"""Rules on archives: each is an error, whatever the profile, since there is no bundle then."""

from __future__ import annotations

from skillyard.domain.rules.rule import Rule, always

_AGAIN = "make it anew with tar, zip, git archive or skillyard skill export"
_PORTABLE = "rename it: it must mean the same file on every system"

RULES: tuple[Rule, ...] = (
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
