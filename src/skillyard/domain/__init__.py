"""Pure values and rules over the standard library; nothing awaits or has an effect."""
