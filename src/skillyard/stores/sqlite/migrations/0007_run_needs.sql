-- What the skills of a run declared that they need, and what of it was granted; apart from the record, as its network.
ALTER TABLE runs ADD COLUMN needs TEXT;
