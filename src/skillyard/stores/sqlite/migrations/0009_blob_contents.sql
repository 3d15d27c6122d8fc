-- Contents are kept apart by owner: `content_key` names the file. Contents that were stored before keep the name that
-- their digest gave them.
ALTER TABLE blobs ADD COLUMN content_key TEXT NOT NULL DEFAULT '';
UPDATE blobs SET content_key = sha256;
CREATE INDEX blobs_content_key ON blobs (content_key);
DROP INDEX blobs_of_content;
