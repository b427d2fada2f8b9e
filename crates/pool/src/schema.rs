//! The schema of the database, as migrations from version to version.

/// Migrations: number N brings a database from version N to N + 1; the first one makes an empty database. Never change
/// one that has been released: databases in use have been through it.
pub(crate) const MIGRATIONS: [&str; 6] = [
    "
CREATE TABLE pool (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  name TEXT NOT NULL, owner INTEGER NOT NULL, gid INTEGER NOT NULL, title TEXT NOT NULL,
  source BLOB NOT NULL, is_made INTEGER NOT NULL, inode INTEGER NOT NULL,
  bytes INTEGER, files INTEGER,
  state TEXT NOT NULL, created_s INTEGER NOT NULL, expires_s INTEGER NOT NULL, ended_s INTEGER,
  extensions_left INTEGER NOT NULL);
CREATE UNIQUE INDEX pool_live ON pool (owner, name) WHERE state = 'live';
CREATE TABLE share (
  pool INTEGER NOT NULL REFERENCES pool (id), kind TEXT NOT NULL, grantee INTEGER NOT NULL, access TEXT NOT NULL,
  PRIMARY KEY (pool, kind, grantee));
CREATE TABLE attachment (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  pool INTEGER NOT NULL REFERENCES pool (id), formation TEXT NOT NULL, host TEXT NOT NULL, uid INTEGER NOT NULL,
  base BLOB NOT NULL, pid INTEGER NOT NULL, path TEXT NOT NULL, access TEXT NOT NULL, since_s INTEGER NOT NULL);
CREATE TABLE event (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  pool INTEGER REFERENCES pool (id), at_s INTEGER NOT NULL, uid INTEGER NOT NULL,
  what TEXT NOT NULL, detail TEXT NOT NULL, request TEXT UNIQUE);
CREATE TABLE rule (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
INSERT INTO rule VALUES ('days-max', 100), ('days-default', 30), ('extensions', 3), ('grace-days', 14);
",
    "ALTER TABLE attachment ADD COLUMN view TEXT NOT NULL DEFAULT ''",
    "
CREATE TABLE slot (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  uid INTEGER NOT NULL, pool INTEGER REFERENCES pool (id), way TEXT NOT NULL, title TEXT NOT NULL,
  bytes INTEGER NOT NULL, files INTEGER NOT NULL, earliest_s INTEGER NOT NULL, deadline_s INTEGER NOT NULL,
  rate_max INTEGER, or_later INTEGER NOT NULL, job TEXT, restarts INTEGER NOT NULL,
  state TEXT NOT NULL, begin_s INTEGER NOT NULL, end_s INTEGER NOT NULL, rate INTEGER NOT NULL,
  \"left\" INTEGER NOT NULL, given INTEGER NOT NULL, rank_s INTEGER NOT NULL, promised INTEGER NOT NULL,
  announced_s INTEGER NOT NULL, request TEXT UNIQUE);
CREATE INDEX slot_open ON slot (id) WHERE state IN ('waiting', 'missed', 'running');
",
    // Only the last version of a pool has its listing: the next one is compared with it.
    "
CREATE TABLE pool_version (
  pool INTEGER NOT NULL REFERENCES pool (id), number INTEGER NOT NULL, at_s INTEGER NOT NULL, uid INTEGER NOT NULL,
  what TEXT NOT NULL, job TEXT NOT NULL, files INTEGER NOT NULL, bytes INTEGER NOT NULL, entries INTEGER NOT NULL,
  added INTEGER, changed INTEGER, removed INTEGER, digest TEXT NOT NULL, listing BLOB NOT NULL,
  PRIMARY KEY (pool, number));
",
    "
ALTER TABLE pool ADD COLUMN remind_days INTEGER;
ALTER TABLE pool ADD COLUMN mail TEXT;
ALTER TABLE pool ADD COLUMN reminded_s INTEGER;
ALTER TABLE pool ADD COLUMN reminding_s INTEGER;
",
    "
ALTER TABLE pool ADD COLUMN location TEXT NOT NULL DEFAULT 'site';
ALTER TABLE pool ADD COLUMN archive BLOB;
ALTER TABLE pool ADD COLUMN archive_digest TEXT;
ALTER TABLE pool ADD COLUMN archived_s INTEGER;
",
];
