"""``skillyard verify`` sends hostile programs through the public API and judges each.

The programs are those of :mod:`skillyard.testing.attacks`, and in ``families`` further ones that need an installation:
its principals, skills, secrets, policies, and its reading of answers. A program that did not run as it should is
*broken* and never counts as contained. A wall that the run's own record does not claim is not held against it. Benign
programs are judged too: a jail that breaks normal code has failed.
"""
