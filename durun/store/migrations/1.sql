-- The life of a run, as rows.
--
-- A run is born together with its pinned plan, its first position and its first intent, in one transaction. From then on each
-- move of the machine is one transaction: it raises the run's seq, and changes just the rows that differ. A driver writes with
-- the fence it took; whoever takes a run over raises the fence, and from then on the old driver's writes find no row.
--
-- Times are integer UTC milliseconds. Data is JSON text with sorted keys. What a person with sqlite3 should read are the views
-- run, event and effect at the end; the tables may change with each version of this file.
--
-- What a column may hold is a chain of ORs, what comes most first: for a list behind IN SQLite builds a table of its own, anew for
-- each row that is written, which costs more than the row.
--
-- History: version 1, the first.

CREATE TABLE origin (
  one       INTEGER PRIMARY KEY CHECK (one = 1), -- which file this is: one that lies elsewhere with this row is a copy of it
  path      TEXT NOT NULL,
  device    INTEGER,
  inode     INTEGER,                      -- NULL: a backup of what lies at `path`
  backup_at INTEGER,                      -- made then
  floor     INTEGER NOT NULL DEFAULT 0    -- the highest number of a run that was pruned: none of them is given again
);

CREATE TABLE plans (
  digest    TEXT PRIMARY KEY,             -- SHA-256 of `canonical`
  canonical TEXT NOT NULL,                -- the plan as every run of it reads it
  source    TEXT NOT NULL                 -- the text a person wrote
) WITHOUT ROWID;

CREATE TABLE checked (
  mark TEXT PRIMARY KEY,                  -- SHA-256 over a text and the durun that found it to hold
  plan TEXT NOT NULL REFERENCES plans (digest) ON DELETE CASCADE
) WITHOUT ROWID;

CREATE TABLE literals (
  digest TEXT PRIMARY KEY,                -- SHA-256 of `text`: long scripts that many requests share
  text   TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE files (
  digest  TEXT PRIMARY KEY,               -- SHA-256 of `content`: pinned files, each stored once
  content BLOB NOT NULL
) WITHOUT ROWID;

CREATE TABLE trees (
  tree   TEXT NOT NULL,                   -- the digest of all its rows: what the plan that pins them names it by
  path   TEXT NOT NULL,                   -- relative to the folder of the plan
  digest TEXT NOT NULL REFERENCES files (digest),
  mode   INTEGER NOT NULL,                -- who may read and who may execute
  PRIMARY KEY (tree, path)
) WITHOUT ROWID;

CREATE TABLE drivers (
  place      TEXT PRIMARY KEY,            -- the folder of its lock and its notes
  pid        INTEGER NOT NULL,            -- for people: liveness is asked of the lock, never of a number
  boot       TEXT NOT NULL,
  host       TEXT NOT NULL,
  started_at INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE runs (
  no         INTEGER PRIMARY KEY,         -- names files on disk and tokens; never shown
  id         TEXT NOT NULL UNIQUE,
  plan       TEXT NOT NULL REFERENCES plans (digest),
  name       TEXT NOT NULL,               -- of the plan
  version    TEXT NOT NULL,
  language   INTEGER NOT NULL,
  file       TEXT NOT NULL,               -- where the plan was read from, for messages
  directory  TEXT NOT NULL,               -- where start was called: the directory of its commands
  namespace  TEXT NOT NULL,               -- what its keys are derived in
  bound_to   TEXT NOT NULL,               -- digest of plan and input: what an id given again must agree with
  named      INTEGER NOT NULL DEFAULT 0,  -- 1: its id was given with --id, and is kept when the run is pruned
  pins       TEXT NOT NULL,               -- JSON: env, base (PATH, HOME, …), durun, host
  input      TEXT,                        -- NULL: it lies in `large`
  types      TEXT NOT NULL,               -- JSON: the type each var keeps
  tools      TEXT,                        -- JSON: name -> {said} or {failed}, what each pinned tool says of itself
  drift      TEXT,                        -- JSON: [{tool, was, now}], the tools that hold it up; null: none does
  vars       TEXT,                        -- NULL: they lie in `large`
  status     TEXT NOT NULL CHECK (
    status = 'running' OR status = 'waiting' OR status = 'blocked' OR status = 'paused' OR status = 'compensating'
    OR status = 'succeeded' OR status = 'failed' OR status = 'cancelled' OR status = 'compensated'),
  reason     TEXT,
  state      TEXT,                        -- where the run itself stands, for listings
  visit      INTEGER,
  attempt    INTEGER,
  due        INTEGER,                     -- the first time at which something of it is due
  output     TEXT,
  error      TEXT,                        -- the last error a catch took or that ended it
  ended_by   TEXT,
  cancel     TEXT,
  undoing    TEXT,                        -- JSON {by, failed} while it compensates
  pivot      TEXT,                        -- the point of no return it has passed
  paused_at  INTEGER,
  restored   TEXT,                        -- JSON {why, at, from, status, reason}: in flight in a file that is a backup or a copy
  driven     INTEGER NOT NULL DEFAULT 0,  -- ms in which it was driven or its commands ran, as far as that is known
  awake      INTEGER,                     -- the reading from which that counts on (suspend not counted); null: not now
  awake_boot TEXT,                        -- in this boot
  gap        TEXT,                        -- JSON: [boot, from, to], readings between which nobody drove
  over_at    INTEGER,                     -- the driven time at which the run's own timeout is over
  driver     TEXT REFERENCES drivers (place),
  fence      INTEGER NOT NULL,
  seq        INTEGER NOT NULL,            -- moves so far
  events     INTEGER NOT NULL,            -- rows of history so far
  next_effect INTEGER NOT NULL,
  next_signal INTEGER NOT NULL DEFAULT 1,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  ended_at   INTEGER
);
CREATE INDEX runs_open ON runs (status) WHERE status NOT IN ('succeeded', 'failed', 'cancelled', 'compensated');
-- of runs that have ended, so that what is asked of them costs the same however many there are: written once a run, at its end
CREATE INDEX runs_ended ON runs (status) WHERE status IN ('succeeded', 'failed', 'cancelled', 'compensated');
CREATE INDEX runs_ended_of ON runs (name, status) WHERE status IN ('succeeded', 'failed', 'cancelled', 'compensated');
CREATE INDEX runs_ended_at ON runs (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX runs_driver ON runs (driver) WHERE driver IS NOT NULL;

CREATE TABLE large (
  run  INTEGER NOT NULL REFERENCES runs (no),
  what TEXT NOT NULL CHECK (what = 'input' OR what = 'vars'), -- the column that is NULL in the row of the run
  text TEXT NOT NULL,                     -- too long to be written anew with each move
  PRIMARY KEY (run, what)                 -- beside the rows: what is looked for in a table WITHOUT ROWID is compared with whole rows
);

CREATE TABLE pruned (
  id        TEXT PRIMARY KEY,             -- of a run that was started with --id: given again, it says how it ended
  name      TEXT NOT NULL,                -- of its plan
  bound_to  TEXT NOT NULL,
  status    TEXT NOT NULL CHECK (status = 'succeeded' OR status = 'failed' OR status = 'cancelled' OR status = 'compensated'),
  ended_at  INTEGER NOT NULL,
  pruned_at INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE leaving (
  run INTEGER PRIMARY KEY                 -- the number of a run that was pruned, of which rows are left: prune takes them bit by bit
);

CREATE TABLE drains (
  name TEXT PRIMARY KEY,                  -- of a plan of which no new run is begun
  by   TEXT NOT NULL,
  at   INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE positions (
  run    INTEGER NOT NULL REFERENCES runs (no),
  scope  TEXT NOT NULL,                   -- '' for the run itself
  state  TEXT NOT NULL,
  visit  INTEGER NOT NULL,
  phase  TEXT NOT NULL CHECK (
    phase = 'acting' OR phase = 'inside' OR phase = 'ready' OR phase = 'delayed' OR phase = 'queued'
    OR phase = 'waiting' OR phase = 'asked' OR phase = 'listening' OR phase = 'lost' OR phase = 'probing'
    OR phase = 'doubt' OR phase = 'held' OR phase = 'failed' OR phase = 'ended'),
  effect INTEGER,
  asking INTEGER,
  due    INTEGER,
  data   TEXT NOT NULL,                   -- JSON: what else the phase has
  PRIMARY KEY (run, scope)
) WITHOUT ROWID;

CREATE INDEX positions_due ON positions (due, run) WHERE due IS NOT NULL; -- what is due next, among many that wait
CREATE TABLE pinned (
  run  INTEGER NOT NULL REFERENCES runs (no),
  tree TEXT NOT NULL,                     -- a tree that something of it may still need
  PRIMARY KEY (run, tree)
) WITHOUT ROWID;

CREATE TABLE plans_left (
  run  INTEGER NOT NULL REFERENCES runs (no),
  plan TEXT NOT NULL REFERENCES plans (digest), -- one that it was moved away from, and that says how to undo what was done under it
  PRIMARY KEY (run, plan)
) WITHOUT ROWID;

CREATE TABLE states (
  run    INTEGER NOT NULL REFERENCES runs (no),
  scope  TEXT NOT NULL,
  state  TEXT NOT NULL,
  visits INTEGER NOT NULL,
  ended  INTEGER NOT NULL,                -- 0: entered, and not ended anew since
  effect INTEGER,                         -- its output is stored with this effect
  output TEXT,                            -- or here, where no effect gave it
  error  TEXT,
  exit   INTEGER,
  peak   INTEGER NOT NULL DEFAULT 0,      -- the highest number of a visit inside it
  child  TEXT,                            -- the id of the child run that its last visit started
  PRIMARY KEY (run, scope, state)
) WITHOUT ROWID;

CREATE TABLE items (
  run    INTEGER NOT NULL REFERENCES runs (no),
  path   TEXT NOT NULL,                   -- of the parallel or map that holds it
  no     INTEGER NOT NULL,                -- from 0, in the order they begin
  label  TEXT NOT NULL,
  item   TEXT NOT NULL,                   -- JSON
  status TEXT NOT NULL CHECK (
    status = 'begun' OR status = 'succeeded' OR status = 'not_begun' OR status = 'failed' OR status = 'stopped'),
  output TEXT,
  error  TEXT,
  PRIMARY KEY (run, path, no)
) WITHOUT ROWID;

CREATE TABLE effects (
  run         INTEGER NOT NULL REFERENCES runs (no),
  no          INTEGER NOT NULL,           -- from 1 upwards; of a once, which its own process writes, from -1 downwards
  scope       TEXT NOT NULL,
  state       TEXT NOT NULL,
  visit       INTEGER NOT NULL,
  kind        TEXT NOT NULL CHECK (kind = 'run' OR kind = 'http' OR kind = 'probe' OR kind = 'undo' OR kind = 'once'),
  key         TEXT NOT NULL,
  request     TEXT NOT NULL,              -- JSON, frozen
  status      TEXT NOT NULL CHECK (
    status = 'begin' OR status = 'done' OR status = 'waiting' OR status = 'not_done' OR status = 'not_certain'
    OR status = 'in_doubt' OR status = 'withdrawn'),
  attempt     INTEGER NOT NULL,
  boot        TEXT,                       -- the boot and the place it was issued to
  place       TEXT,
  intended_at INTEGER NOT NULL,
  first_at    INTEGER,
  ended_at    INTEGER,
  exit        INTEGER,
  error       TEXT,
  output      TEXT,
  PRIMARY KEY (run, no)
) WITHOUT ROWID;

CREATE TABLE undos (
  run           INTEGER NOT NULL REFERENCES runs (no),
  effect        INTEGER NOT NULL,         -- what it undoes; registered with the intent of that effect
  status        TEXT NOT NULL CHECK (
    status = 'registered' OR status = 'owed' OR status = 'undone' OR status = 'not_needed' OR status = 'failed'),
  request       TEXT,                     -- rendered when the effect is done
  key           TEXT NOT NULL,
  error         TEXT NOT NULL,            -- why it could not be rendered
  by            INTEGER,                  -- the effect that undid it, or failed to
  PRIMARY KEY (run, effect)
) WITHOUT ROWID;

CREATE TABLE messages (
  run     INTEGER NOT NULL REFERENCES runs (no),
  effect  INTEGER NOT NULL,               -- what is delivered, while its run goes on; born with the intent of that effect
  status  TEXT NOT NULL CHECK (
    status = 'waiting' OR status = 'sending' OR status = 'delivered' OR status = 'dead' OR status = 'dropped'
    OR status = 'withdrawn'),
  ordered INTEGER NOT NULL,               -- 1: after those before it; 0: it waits for none and holds none back
  due     INTEGER,                        -- when it may be delivered, where it waits
  data    TEXT NOT NULL,                  -- JSON: its rules, what was counted, its probe and its undo as they were rendered
  place   TEXT,                           -- who has claimed it: that driver's or deliverer's lock is held while it lives
  fence   INTEGER NOT NULL DEFAULT 0,     -- goes up with each claim: who was superseded writes no row
  PRIMARY KEY (run, effect)
) WITHOUT ROWID;
CREATE INDEX messages_open ON messages (run, effect) WHERE status IN ('waiting', 'sending', 'dead');

CREATE TABLE onces (
  run    INTEGER NOT NULL,
  effect INTEGER NOT NULL,                -- its row in effects
  step   INTEGER NOT NULL,                -- the effect whose command calls for it
  key    TEXT NOT NULL,
  file   TEXT NOT NULL,                   -- its process holds it locked, and its command prints into it
  stdout BLOB,                            -- what it printed, told to later calls; NULL where there is nothing to tell
  UNIQUE (run, step, key),
  FOREIGN KEY (run, effect) REFERENCES effects (run, no) ON DELETE CASCADE
);
CREATE INDEX onces_effect ON onces (run, effect);

CREATE TABLE notes (
  no   INTEGER PRIMARY KEY AUTOINCREMENT,
  run  INTEGER NOT NULL REFERENCES runs (no),
  kind TEXT NOT NULL,                     -- what another process wants: cancel, pause, resume; or an answer, a signal, accepted already
  data TEXT NOT NULL,
  by   TEXT NOT NULL,
  at   INTEGER NOT NULL
);
CREATE INDEX notes_run ON notes (run);

CREATE TABLE hold (
  one INTEGER PRIMARY KEY CHECK (one = 1), -- a row here: `pause --all` holds the whole file, until `resume --all`
  by  TEXT NOT NULL,
  at  INTEGER NOT NULL
);

CREATE TABLE answers (
  no     INTEGER PRIMARY KEY,             -- in the order they were given
  run    INTEGER NOT NULL REFERENCES runs (no),
  scope  TEXT NOT NULL,
  state  TEXT NOT NULL,
  visit  INTEGER NOT NULL,
  answer TEXT NOT NULL,
  reject INTEGER NOT NULL,                -- 1: it is a no
  data   TEXT NOT NULL,                   -- JSON: what was filled in
  by     TEXT NOT NULL,
  note   TEXT NOT NULL,
  digest TEXT NOT NULL,                   -- of what was shown
  at     INTEGER NOT NULL,
  UNIQUE (run, scope, state, visit)       -- each question is answered once
);

CREATE TABLE signals (
  run     INTEGER NOT NULL REFERENCES runs (no),
  no      INTEGER NOT NULL,
  name    TEXT NOT NULL,
  payload TEXT NOT NULL,                  -- JSON
  error   TEXT,
  message TEXT NOT NULL,
  dedupe  TEXT,
  by      TEXT NOT NULL,
  at      INTEGER NOT NULL,
  scope   TEXT,                           -- the visit that took it; NULL: it is kept for a wait that is to come
  state   TEXT,
  visit   INTEGER,
  PRIMARY KEY (run, no)
) WITHOUT ROWID;
CREATE INDEX signals_kept ON signals (run, no) WHERE visit IS NULL;
CREATE UNIQUE INDEX signals_once ON signals (run, name, dedupe) WHERE dedupe IS NOT NULL;

CREATE TABLE limits (
  name   TEXT PRIMARY KEY,                -- as plans call it
  period INTEGER NOT NULL,                -- the longest in which a rate of some plan counts: ms; 0: none has one
  until  INTEGER,                         -- an answer asked to leave it alone until then,
  length INTEGER,                         -- which is so long
  boot   TEXT,                            -- after this reading of the clock of this boot
  clock  INTEGER
) WITHOUT ROWID;

CREATE TABLE places (
  no     INTEGER PRIMARY KEY,         -- in the order they were taken
  name   TEXT NOT NULL,                   -- of the limit
  run    INTEGER REFERENCES runs (no) ON DELETE SET NULL,
  effect INTEGER NOT NULL,
  at     INTEGER NOT NULL,                -- when it was taken,
  boot   TEXT NOT NULL,                   -- and at which reading of the clock of this boot: what rates count from
  clock  INTEGER NOT NULL,
  open   INTEGER NOT NULL CHECK (open IN (0, 1)) -- 1: its attempt has not ended
);
CREATE INDEX places_open ON places (name) WHERE open = 1;
CREATE UNIQUE INDEX places_effect ON places (run, effect) WHERE open = 1;
CREATE INDEX places_taken ON places (name, boot, clock);

CREATE TABLE queue (
  run   INTEGER NOT NULL REFERENCES runs (no) ON DELETE CASCADE,
  scope TEXT NOT NULL,                    -- of the position that waits for a place
  name  TEXT NOT NULL,                    -- of the limit
  since INTEGER NOT NULL,
  PRIMARY KEY (run, scope)
) WITHOUT ROWID;
CREATE INDEX queue_turn ON queue (name, since, run, scope);

CREATE TABLE grouped (
  run  INTEGER PRIMARY KEY REFERENCES runs (no) ON DELETE CASCADE,
  name TEXT NOT NULL                      -- of the group: of all that have not ended only the oldest is past its beginning
);
CREATE INDEX grouped_name ON grouped (name, run);

CREATE TABLE history (
  run     INTEGER NOT NULL REFERENCES runs (no),
  no      INTEGER NOT NULL,               -- from 1, without gaps
  at      INTEGER NOT NULL,
  kind    TEXT NOT NULL,
  scope   TEXT NOT NULL,
  state   TEXT,
  visit   INTEGER,
  attempt INTEGER,
  data    TEXT NOT NULL,                  -- JSON: vars changed, the effect whose output it was, the error
  PRIMARY KEY (run, no)
) WITHOUT ROWID;
CREATE INDEX history_children ON history (data ->> 'run') WHERE kind = 'child_begun'; -- a child by its id

CREATE VIEW run AS
  SELECT id, name AS plan, version, status, reason, state, visit, attempt, due, created_at, updated_at, ended_at,
         coalesce(input, (SELECT text FROM large WHERE run = no AND what = 'input')) AS input,
         coalesce(vars, (SELECT text FROM large WHERE run = no AND what = 'vars')) AS vars,
         output, coalesce(ended_by, error) AS error, pins
  FROM runs;

CREATE VIEW effect AS
  SELECT runs.id AS run, effects.no, effects.scope, effects.state, effects.visit, kind, key, request, effects.status,
         effects.attempt, intended_at, first_at, effects.ended_at, exit, effects.error, effects.output
  FROM effects JOIN runs ON runs.no = effects.run;

CREATE VIEW event AS
  SELECT runs.id AS run, history.no, at, kind, scope, history.state, history.visit, history.attempt, data
  FROM history JOIN runs ON runs.no = history.run;
