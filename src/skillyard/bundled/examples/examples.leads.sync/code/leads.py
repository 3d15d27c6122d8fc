"""Rules on one row of a lead sheet."""

import re

_EMAIL = re.compile(r"[^@\s,;<>]{1,64}@[a-z0-9-]+(?:\.[a-z0-9-]+)+")


def check_lead(row):
    """(lead, None), or (None, reason)."""
    email = (row.get("email") or "").strip().lower()
    name = " ".join((row.get("name") or "").split())
    if _EMAIL.fullmatch(email) is None:
        return None, "the email is no address" if email else "the email is missing"
    if not name:
        return None, "the name is missing"
    return {"email": email, "name": name, "company": (row.get("company") or "").strip()}, None
