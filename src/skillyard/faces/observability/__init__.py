"""What operators see: logs, metrics, spans. All of it is fed by the engine's events and by the faces."""
