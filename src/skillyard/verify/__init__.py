"""``skillyard verify``: hostile programs sent through the public API, and a judge that says what became of each.

An attack says what it tries and which invariants, walls and limits it tests. Its program returns what it got; the judge
on this side decides. What did not run as it should is *broken* and never counts as contained. A wall that the run's own
record does not claim is not held against it. Benign programs are judged too: a jail that breaks normal code has failed.
"""
