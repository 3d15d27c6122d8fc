"""Turn a sheet of leads into a signed batch."""

import csv
import hashlib
import hmac
import json
import os

from runtime import blobs, log

from .leads import check_lead


def main(args):
    with open(blobs.path(args["sheet_blob"]), encoding="utf-8-sig", newline="") as stream:
        result = sync_leads(csv.DictReader(stream), os.environ["EXAMPLES_CRM_KEY"])
    for row in result["rejected"][:5]:
        log.warning(f"line {row['line']}: {row['reason']}")
    return _reply(result, args.get("dry_run", False))


def sync_leads(rows, key):
    """Checked leads without duplicates, the refused rows, and a signature over the leads (HMAC-SHA-256, hex)."""
    leads, rejected, duplicates = {}, [], 0
    for line, row in enumerate(rows, 2):
        lead, reason = check_lead(row)
        if lead is None:
            rejected.append({"line": line, "reason": reason})
        elif lead["email"] in leads:
            duplicates += 1
        else:
            leads[lead["email"]] = lead
    batch = list(leads.values())
    return {"leads": batch, "rejected": rejected, "duplicates": duplicates, "signature": sign(batch, key)}


def sign(leads, key):
    text = json.dumps(leads, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()


def _reply(result, dry_run):
    leads, rejected = result["leads"], result["rejected"]
    reply = {
        "summary": f"{len(leads)} leads accepted, {result['duplicates']} duplicates, {len(rejected)} rejected.",
        "accepted": len(leads),
        "duplicates": result["duplicates"],
        "rejected": len(rejected),
    }
    if rejected:
        reply["rejected_blob"] = blobs.write_json(rejected)
    if not dry_run:
        account = os.environ.get("EXAMPLES_CRM_ACCOUNT", "default")
        reply["batch_blob"] = blobs.write_json({"account": account, "leads": leads, "signature": result["signature"]})
    return reply
