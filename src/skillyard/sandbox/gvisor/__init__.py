"""The gVisor backend: each sandbox has a user-space kernel of its own, behind the keeper's outer walls."""
