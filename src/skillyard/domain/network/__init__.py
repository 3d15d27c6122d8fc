"""The network of sandboxes: rules, policies and decisions.

Values only; the gate acts on them.
"""
