"""Secrets that were left in. A finding names the place and the sort, never the value."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import log2

from skillyard.domain.review.file import File, Text
from skillyard.domain.review.notes import Notes

_KNOWN: tuple[tuple[str, tuple[str, ...], re.Pattern[str]], ...] = tuple(
    (name, words, re.compile(pattern))
    for name, words, pattern in (
        ("a private key", ("PRIVATE KEY",), r"-----BEGIN (?:[A-Z0-9]{2,10} ){0,2}PRIVATE KEY(?: BLOCK)?-----"),
        ("an AWS access key", ("AKIA", "ASIA"), r"(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z2-7]{16}(?![A-Za-z0-9])"),
        (
            "a GitHub token",
            ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
            r"\bgh[pousr]_[A-Za-z0-9]{36,255}|\bgithub_pat_[A-Za-z0-9_]{60,255}",
        ),
        ("a GitLab token", ("glpat-",), r"\bglpat-[A-Za-z0-9_-]{20,64}"),
        ("a Slack token", ("xox",), r"\bxox[abeposr]-[A-Za-z0-9-]{20,255}"),
        (
            "a Slack webhook",
            ("hooks.slack.com",),
            r"hooks\.slack\.com/services/T[A-Za-z0-9]{6,16}/B[A-Za-z0-9]{6,16}/[A-Za-z0-9]{16,64}",
        ),
        ("a Google API key", ("AIza",), r"\bAIza[0-9A-Za-z_-]{35}(?![0-9A-Za-z_-])"),
        ("an Anthropic key", ("sk-ant-",), r"\bsk-ant-[A-Za-z0-9_-]{20,255}"),
        ("an OpenAI key", ("sk-",), r"\bsk-(?!ant-)(?:proj-|svcacct-)?[A-Za-z0-9_-]{32,255}"),
        ("a Stripe key", ("k_live_",), r"\b[rs]k_live_[0-9A-Za-z]{20,255}"),
        ("an npm token", ("npm_",), r"\bnpm_[A-Za-z0-9]{36}(?![A-Za-z0-9])"),
        ("a PyPI token", ("pypi-",), r"\bpypi-AgEI[A-Za-z0-9_-]{50,255}"),
        ("a Hugging Face token", ("hf_",), r"\bhf_[A-Za-z]{34}(?![A-Za-z])"),
        ("a SendGrid key", ("SG.",), r"\bSG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}"),
        ("a Telegram token", (":AA",), r"\b[0-9]{8,10}:AA[A-Za-z0-9_-]{33}(?![A-Za-z0-9_-])"),
        (
            "a signed token (JWT)",
            (".eyJ",),
            r"\beyJ[A-Za-z0-9_-]{10,300}\.eyJ[A-Za-z0-9_-]{10,300}\.[A-Za-z0-9_-]{20,300}",
        ),
        ("an Azure account key", ("AccountKey=",), r"AccountKey=[A-Za-z0-9+/]{80,90}=="),
        (
            "a password in a URL",
            ("://",),
            r"\b[a-z][a-z0-9+.-]{1,20}://[^\s/:@<>\"'{}$]{1,64}:[^\s/:@<>\"'{}$]{6,64}@[\w.-]{3,}",
        ),
    )
)
"""Each with words, of which every match holds one: a search for words takes far less time than one for a pattern."""
_NAMES_OF_SECRETS = ("passw", "secret", "token", "key", "auth")
_ASSIGNED = re.compile(
    r"(?i)(?:password|passwd|secret|token|api_?key|access_?key|auth)[\"']?[ \t]{0,8}[:=]"
    r"[ \t]{0,8}[\"']([^\"'\s]{16,200})[\"']"
)
_FILES = re.compile(
    r"(?i)id_(?:rsa|dsa|ecdsa|ed25519)|.*\.(?:p12|pfx|jks|keystore|kdbx|ppk)|\.(?:netrc|pypirc|pgpass|htpasswd)|\.env(?:\..+)?|credentials"
)
_PLACEHOLDER = re.compile(
    r"(?i)example|placeholder|your[_-]|dummy|sample|fake|test|xxxx|0000|1234|abcd|<|\.\.\.|\$\{|\{\{"
)


def check_secrets(file: File, notes: Notes) -> None:
    if _FILES.fullmatch(file.name) and not file.name.endswith((".example", ".sample", ".template")):
        notes.danger(file.path, 0, "secret", "is named like a file of secrets")
    text = file.text
    if text is None:
        return
    for line, what in _found(text):
        notes.danger(file.path, line, "secret", f"holds what looks like {what}")
    folded = text.casefold()
    for found in _ASSIGNED.finditer(text) if any(word in folded for word in _NAMES_OF_SECRETS) else ():
        if not _PLACEHOLDER.search(found[1]) and _entropy(found[1]) >= 3.5:
            line = text.line_of(found.start())
            notes.warn(file.path, line, "secret", "sets what is called a secret to a text that looks random")


def _found(text: Text) -> Iterator[tuple[int, str]]:
    for what, words, pattern in _KNOWN:
        if not any(word in text for word in words):
            continue
        for found in pattern.finditer(text):
            if what == "a private key" or not _PLACEHOLDER.search(found[0]):
                yield text.line_of(found.start()), what


def _entropy(text: str) -> float:
    """Bits for each character."""
    return -sum((share := text.count(c) / len(text)) * log2(share) for c in set(text))
