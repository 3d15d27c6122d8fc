"""Findings of a review. None makes a skill invalid; the remedy is the author's or the reader's."""

from __future__ import annotations

from skillyard.domain.rules.rule import Rule, seen

REVIEW: tuple[Rule, ...] = (
    seen("review-partial", "warning", "Something was too much to be looked at.", "read the rest yourself"),
    seen(
        "hidden-characters",
        "danger",
        "Characters that nobody sees spell something, or carry bytes.",
        "delete them; ask who put them there",
    ),
    seen(
        "writing-direction",
        "danger",
        "A control of the writing direction: text is shown in another order than it is read.",
        "delete it; ask who put it there",
    ),
    seen("invisible-characters", "warning", "A character that nobody sees.", "delete it"),
    seen("control-characters", "warning", "A control character in text.", "delete it"),
    seen("mixed-alphabets", "warning", "A word of letters from several alphabets that look alike.", "write it anew"),
    seen(
        "disguised-name",
        "danger",
        "A name in the code is written in letters that Python reads as others.",
        "write the plain letters; ask why it was done",
    ),
    seen(
        "hidden-comment", "warning or note", "Markdown that is not shown, and that models read.", "read it; delete it"
    ),
    seen("hidden-text", "danger or warning", "Text that is formatted so that it is not shown.", "read it; delete it"),
    seen("active-element", "warning", "HTML in Markdown that does something where it is shown.", "delete it"),
    seen("fetched", "warning", "An image or frame from the network.", "put the file into the bundle"),
    seen(
        "far-away", "danger", "Text far to the right or far below, where nobody looks.", "read it; move it to the rest"
    ),
    seen(
        "long-line",
        "warning or note",
        "A line that is too long to be read.",
        "break it; ask for the source of minified code",
    ),
    seen("encoded", "warning or danger", "Long encoded data.", "put it into a file of its own kind; ask what it is"),
    seen(
        "program", "danger or warning", "A program or library that nobody can read.", "ask for its source, or remove it"
    ),
    seen("archive", "warning", "An archive, which was not opened.", "unpack it into the bundle, or look into it"),
    seen("binary", "note", "Bytes of no known kind.", "ask what they are"),
    seen("script", "note", "A file that can be executed.", "read it"),
    seen(
        "disguise",
        "danger or warning",
        "The content is not what the name says.",
        "name it after what it is; ask why it was not",
    ),
    seen(
        "odd-encoding",
        "warning or danger",
        "Text that is not UTF-8, or that Python decodes otherwise.",
        "save it as UTF-8, without a line that names a codec",
    ),
    seen(
        "runs-by-itself",
        "danger, warning or note",
        "Programs run or obey this file without being asked, where the bundle is copied or opened.",
        "remove it unless it is needed; read it",
    ),
    seen("allowed-tools", "warning", "The front matter grants itself tools.", "decide it in your host's own settings"),
    seen("steering", "note", "The front matter steers hosts.", "know it"),
    seen("url", "note", "A host that is pointed to.", "know it"),
    seen("odd-host", "warning", "A host that hides who it is.", "name the host itself"),
    seen("url-account", "warning", "A URL with an account before the host.", "take it away: it hides or gives away"),
    seen("fetch-and-run", "danger", "Something is fetched and executed unread.", "put what it fetches into the bundle"),
    seen("link-leaves", "warning", "A link to a file outside the bundle.", "put the file into the bundle"),
    seen("link-nothing", "note", "A link to a file that the bundle has not.", "add the file, or mend the link"),
    seen("secret", "danger or warning", "A secret seems to be left in.", "revoke it, then take it out of the bundle"),
    seen(
        "unread-python",
        "danger or warning",
        "Python code that cannot be read as such: nobody looked for its imports and calls.",
        "mend it, or read it yourself",
    ),
    seen("import", "warning or note", "A module that can do more than compute.", "read what is done with it"),
    seen("call", "warning or note", "A call that can do more than compute.", "read what is given to it"),
    seen(
        "hidden-code",
        "danger",
        "Text is executed in a file that also decodes data.",
        "find out what is executed before you trust it",
    ),
    seen("shadowed", "warning", "A file takes the place of a module of the standard library.", "rename it"),
    seen("undeclared-import", "warning", "An import that nothing declared gives.", "declare the package"),
    seen("undeclared-network", "warning", "The network is used and not declared.", "declare it in [permissions]"),
    seen("undeclared-skill", "warning", "Another skill is imported and not required.", "name it in requires"),
    seen("need-network", "note or warning", "The skill asks for hosts.", "allow those that it should reach, no others"),
    seen(
        "need-secret",
        "warning or note",
        "The skill asks for a secret.",
        'ask for delivery = "gate" where it is possible',
    ),
    seen("need-package", "note", "The skill asks for a package.", "know whose code it is"),
    seen("need-tool", "warning", "The skill calls tools of MCP servers.", "check that it has a use for each"),
    seen("need-skill", "note", "The skill asks for another skill.", "review that one too"),
    seen("need-limit", "note", "The skill asks for limits of its own.", "compare it with what it does"),
)
