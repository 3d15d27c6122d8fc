"""Skills' schemas, applied where it can be ended: in bounded processes that hold nothing else."""
