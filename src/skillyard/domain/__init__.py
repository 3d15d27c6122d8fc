"""Pure values and rules: the standard library only, nothing awaits, nothing touches the outside."""
