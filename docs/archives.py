"""The page ``archives.md``: from the limits and the rules of the program."""

from __future__ import annotations

from collections.abc import Iterator

from skillyard.domain.rules import SECTIONS, Rule
from skillyard.stores.skills.archives import ArchiveLimits

_MIB = 1024 * 1024

HEAD = """# Archives, and what skills are installed from

A bundle comes as a directory, as a git checkout on disk, or as an archive: a zip, a tar or a gzipped tar, told apart by
content. Its maker is not trusted.

<!-- run -->
```sh
skillyard skill new acme.words.pack --dir work
tar czf work/pack.tar.gz -C work acme.words.pack
skillyard skill install work/pack.tar.gz
skillyard skill install work/acme.words.pack --json | grep '"created"'
```

<!-- shows -->
```text
…
acme.words.pack@0.1.0
  "created": false,
```

`skill install SOURCE` publishes into the server that is named, the one that runs on the data directory, or the data
directory itself ([publishing](publishing.md)). `--path DIR` names a skill's directory within the source.

## Directories and git checkouts

Of a directory all files are taken; of a directory with `.git` those that git tracks, as they lie in the work tree at
this moment: committed or not, without what is untracked or ignored. git is not run, and no configuration, hook, filter,
attribute or `fsmonitor` of the repository is: only its index is read (versions 2 to 4, SHA-1 and SHA-256, work trees
and submodules). A split or sparse index is refused. Tracked links are read as the tracked files that they lead to;
links to anything else are refused. Submodules are left out, with a note. A commit other than the one that is checked
out is not read: check it out, or make an archive of it with `git archive`.

## Archives

One leading directory is taken away when all files lie in it and it holds `SKILL.md` or `skill.toml`. What is never
part of a skill (`.git`, `.env`, `__pycache__` …) is left out, with a note. Of the rest only files and directories are
taken; of modes only whether the owner may execute a file. Owners, times, set-user-id bits and extended attributes count
for nothing.

There is one way to read an archive that is taken. The headers of a zip and its directory must say the same, and its
entries must fill it from the first byte to the directory, each byte once. A tar must be ustar's, pax' or GNU's, with
sound check sums, ends marked, and extended headers that do nothing but name a path. A gzip stream is one member.
Nothing is written to disk before all of it was read and checked, names are never joined to a path of the host's, and
memory and time are bounded by the limits below whatever an archive says.

`skill export` writes archives that are the same for the same content: sorted, without times or owners. Content that
would look like a bomb is stored uncompressed, so that every export can be published again.

"""


def archives_page(note: str) -> str:
    return note + HEAD + "\n".join([*_limits(ArchiveLimits()), "", *_rules("Archives"), "", *_rules("Sources"), ""])


def _limits(limits: ArchiveLimits) -> Iterator[str]:
    caps = limits.caps
    yield from ("## Limits\n", "| of | at most |", "| --- | --- |")
    yield f"| an archive | {limits.packed // _MIB} MiB (`skills.upload_bytes`) |"
    yield f"| files of a skill | {caps.files:,} |"
    yield f"| bytes of a skill's files | {caps.bytes // _MIB} MiB |"
    yield f"| directories that a file lies in | {caps.depth} |"
    yield f"| a name, a path | 255 and {1024:,} bytes |"
    yield f"| entries, with what is left out | {limits.entries:,} |"
    yield f"| bytes unpacked, with what is left out | {limits.unpacked // _MIB} MiB |"
    yield f"| bytes unpacked of each byte packed, from {limits.ratio_from // _MIB} MiB on | {limits.ratio} |"


def _rules(section: str) -> Iterator[str]:
    yield from (f"## {_TITLES[section]}\n", "| rule | what is wrong | mend |", "| --- | --- | --- |")
    for rule in SECTIONS[section]:
        yield f"| `{rule.id}`{_note(rule)} | {rule.meaning} | {rule.mend} |"


_TITLES = {"Archives": "What is refused in an archive", "Sources": "What is refused of a checkout or a source"}


def _note(rule: Rule) -> str:
    return " (a note)" if rule.strict == "note" else ""
