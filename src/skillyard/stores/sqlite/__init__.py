"""The database: records, rows of blobs, publications, approvals, the audit of secrets."""
