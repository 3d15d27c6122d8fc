-- Apart from the record: it can be large, and a page of a list does without.
ALTER TABLE runs ADD COLUMN network TEXT;
