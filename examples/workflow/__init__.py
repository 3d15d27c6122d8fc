"""The minimal workflow of a skills service: an agent with seven tools does short and long work in a skill."""
