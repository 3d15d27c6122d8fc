"""Facts of the server's methods. ``docs/generate.py`` writes this module from the method table."""

from __future__ import annotations

REPEATABLE = frozenset(
    {
        "blobs.delete",
        "blobs.list",
        "blobs.stat",
        "catalogue.approvals",
        "catalogue.diff",
        "catalogue.needs",
        "catalogue.problems",
        "catalogue.review",
        "catalogue.versions",
        "describe_skill",
        "environments.list",
        "environments.show",
        "list_skills",
        "load_skills_protocol_guide",
        "policy.explain",
        "policy.show",
        "read_blob",
        "read_skill_file",
        "rpc.discover",
        "runs.cancel",
        "runs.events",
        "runs.list",
        "runs.logs",
        "runs.show",
        "runs.wait",
        "secrets.audit",
        "secrets.list",
        "server.drain",
        "skills.job_cancel",
        "skills.job_status",
        "skills.job_watch",
        "skills.jobs",
        "skills.list",
        "skills.load",
        "skills.read_artifact",
        "skills.sessions",
        "skills.task_cancel",
        "skills.task_logs",
        "skills.task_status",
        "skills.task_watch",
        "skills.tasks",
        "tools.approve",
        "tools.list",
        "tools.revoke",
        "tools.rows",
        "tools.servers",
        "tools.stop",
    }
)
"""Methods that may be sent twice."""

RUNS = frozenset(
    {
        "execute_skill",
        "run_code",
        "skills.run_cmd",
        "skills.run_cmd_async",
        "skills.run_service",
        "skills.start_job",
        "tools.call",
    }
)
"""Methods that start a run."""
