"""Labels of work: pairs that a caller gives, and finds it again by."""

from __future__ import annotations

import re
from collections.abc import Mapping

from skillyard.domain.checks import check_unicode
from skillyard.domain.errors import InvalidInput, shape

MOST_LABELS = 16
LABEL_NAME = r"[a-z0-9][a-z0-9._/-]{0,62}"
MOST_CHARACTERS = 256
_NAME = re.compile(LABEL_NAME)


def check_labels(labels: Mapping[str, object]) -> dict[str, str]:
    """Returns the labels. Raises InvalidInput for too many, and for a name or a value that cannot be one."""
    if len(labels) > MOST_LABELS:
        raise InvalidInput("labels", f"must be at most {MOST_LABELS} labels", shape(labels))
    checked = {}
    for name, value in labels.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            rule = "must have names of a-z 0-9 . _ / -, a letter or digit first, at most 63 characters"
            raise InvalidInput("labels", rule, shape(name))
        if not isinstance(value, str) or len(value) > MOST_CHARACTERS:
            rule = f"must be text of at most {MOST_CHARACTERS} characters"
            raise InvalidInput(f"labels.{name}", rule, shape(value))
        check_unicode(f"labels.{name}", value)
        checked[name] = value
    return checked
