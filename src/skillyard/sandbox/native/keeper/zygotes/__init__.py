"""The zygotes of a keeper: how they are started, heard, replaced and closed."""
