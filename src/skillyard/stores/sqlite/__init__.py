"""The database: run records, rows of blobs, publications, approvals and the audit of secrets."""
