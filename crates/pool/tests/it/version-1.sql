-- A database as the first version made it, with a pool.
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
INSERT INTO pool VALUES (1, 'kept', 1000, 1000, '', x'2f64', 0, 0, NULL, NULL, 'live', 0, 9, NULL, 3);
PRAGMA user_version = 1;
