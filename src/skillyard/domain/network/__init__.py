"""What a sandbox may reach: rules, policies and decisions.

Values only; the gate acts on them.
"""
