"""The rules for plain English find what they forbid, pass plain sentences, and hold a package to its number."""

from __future__ import annotations

import pytest

from tests.docs.prose import Text, faults, summary_of, texts_of_markdown, texts_of_python


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        ("It is no valid name.", "is-no"),
        ("These are no packages of ours.", "is-no"),
        ("What speaks against the blob; None when it is stored.", "clause-as-subject"),
        ("Stops it. Whatever asks waits.", "clause-as-subject"),
        ("Stops it. Whoever asks waits.", "whoever"),
        ("It is sent to whoever asked.", "whoever"),
        ("Says farewell to the peer.", "metaphor"),
        ("The mend is named.", "metaphor"),
        ("The reader has been renamed.", "narration"),
        ("Previously a list.", "narration"),
        (f"Returns {'a long ' * 15}list.", "long-summary"),
    ],
)
def test_a_rule_finds_what_it_forbids(words: str, rule: str) -> None:
    assert [finding.rule for finding in faults(Text("here:1", words, summarised=True))] == [rule]


@pytest.mark.parametrize(
    "words",
    [
        "It is not a valid name.",
        "The run is no longer there, and there is no lock.",
        "What does it enforce? Everything.",
        "Returns whatever comes.",
        "A finding names its `mend`, and `yard.read()` is code.",
        "The directory is used to be read from.",
        f"Returns the list. {'This explains it further. ' * 9}",
    ],
)
def test_plain_sentences_pass(words: str) -> None:
    assert [str(finding) for finding in faults(Text("here:1", words, summarised=True))] == []


def test_a_summary_is_the_first_sentence() -> None:
    assert summary_of("Returns a\n    list. Raises KeyError.\n\n    More.") == "Returns a list."


def test_texts_of_a_module_are_docstrings_help_and_errors() -> None:
    source = '''"""One."""
class A:
    """Two."""
    x = Field(description="Three.")
    """Four."""
def f(name):
    raise Refused("field", f"five {name} six", got="seven")
    print("not prose")
'''
    found = [text.words for text in texts_of_python(source, "m.py")]
    assert sorted(found) == sorted(["One.", "Two.", "Three.", "Four.", "field", "five … six", "seven"])


def test_texts_of_a_page_leave_out_code_headings_and_comments() -> None:
    page = "# What it is\n\nOne\ntwo.\n\n```sh\nthree\n```\n<!-- four -->\n- five\n- six\n\n| seven | eight |\n"
    found = [" ".join(text.words.split()) for text in texts_of_markdown(page, "p.md")]
    assert found == ["One two.", "five", "six", "seven", "eight"]
