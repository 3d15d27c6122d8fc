"""The demo of the project: the main job of a Skills Runtime on this machine, from nothing, in half a minute."""
